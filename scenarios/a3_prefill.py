"""Atlas A3, 16 cards = 32 dies: prefill of DeepSeek-R1, 64 prompts of 4K tokens, balanced experts.

Published by Huawei's cann-recipes-infer, "DeepSeek-R1 prefill optimisation on Atlas A3".
"""

from __future__ import annotations

from simulator.study.scenario import Layout, Prompts, Scenario, Source, Study
from workloads.a3_prefill import DATA_PARALLEL, MICRO_BATCH, SP_TP_SP, SP_TP_SP_PIPELINED, Knobs

_expect = Source("cann-recipes-infer, DeepSeek-R1 prefill optimisation on Atlas A3").expects
LONGER = (1.0, None)  # a sign: the ratio is above one
SHORTER = (None, 1.0)
UNEVEN = Prompts(prompt_lengths=(16384, 12288, 8192, 8192, *(4096,) * 12, *(1024,) * 48))


def dp() -> Scenario:
    """MLA data parallel, experts expert parallel, one stream: nothing is hidden."""
    return Scenario(
        title="Atlas A3 prefill: MLA DP32 + MoE EP32, one stream",
        machine="atlas_a3",
        model="deepseek_r1",
        kernels="cann_recipes_2025",
        cards=16,
        batch=Prompts(requests=64, prompt_tokens=4096),
        layout=Layout(expert_parallel=32),
        knobs=Knobs(),
        workload=DATA_PARALLEL,
        expected=(
            _expect("a3.prefill.dp", "latency_ms", 3128, role="fit"),
            _expect("a3.prefill.dp", "throughput_tok_s", 83805, role="fit"),
            _expect("a3.prefill.dp", "throughput_tok_s_per_card", 5237, role="fit"),
            _expect("a3.prefill.share", "communication_share", 0.30,
                    note=": up to 30% before overlap", band=(0.25, 0.31)),
        ),
    )


def dp_tnd() -> Scenario:
    """As dp, with FlashAttention's operands in TND layout instead of NTD."""
    return dp().variant(
        title="Atlas A3 prefill: FlashAttention on TND operands",
        knobs=Knobs(attention="tnd"),
        expected=(
            _expect("a3.prefill.ntd", "attention_ms", 1.15, ": NTD makes FlashAttention 15% faster", role="fit",
                    against="a3_prefill:dp"),
        ),
    )  # fmt: skip


def microbatch() -> Scenario:
    """Two micro-batches on two streams: dispatch and combine run under the other micro-batch's compute."""
    return dp().variant(
        title="Atlas A3 prefill: two micro-batches on two streams",
        workload=MICRO_BATCH,
        expected=(
            _expect("a3.prefill.microbatch", "latency_ms", 2512),
            _expect("a3.prefill.microbatch", "throughput_tok_s", 104356),
            _expect("a3.prefill.microbatch", "throughput_tok_s_per_card", 6522),
            _expect("a3.prefill.microbatch", "throughput_tok_s", 1.25, against="a3_prefill:dp"),
            _expect("a3.prefill.stretch", "compute_stretch", 1.10, note=": what the two latencies and a share of 25 to"
                    " 31% imply; the agreement of the latency itself is weak evidence, the mechanism was chosen knowing"
                    " it. A higher All2All rate moves work, not the latency, and above 120 GB/s its copies take"
                    " memory from kernels (results/calibration.md): see the study"),
            _expect("a3.prefill.stretch", "compute_stretch_beside_communication", 1.25, note=": implied likewise."
                    " Vector kernels, bound by HBM, stretch most beside staging copies; the copies of an All2All are"
                    " inferred from those of an AllGather (6.7 bytes of memory traffic per byte on the wire)"),
        ),
        studies=(
            Study(
                title="The All2All rate is published nowhere for SDMA, and decides share and stretch",
                key="machine.collectives.sdma.ladder.default.0.rate",
                values=("85 GB/s", "89.2 GB/s", "95 GB/s", "100 GB/s", "110 GB/s", "120 GB/s", "130 GB/s"),
                metrics=("latency_ms", "communication_share", "compute_stretch",
                         "compute_stretch_beside_communication"),
                beside=("a3_prefill:dp",),
            ),
            Study(
                title="Fairness between collectives and kernels is an assumption: the weight of a collective",
                key="machine.collectives.sdma.weight",
                values=("0.1", "0.3", "1", "3", "10"),
                metrics=("latency_ms", "compute_stretch", "exposed_comm_ms"),
            ),
        ),
    )


def microbatch_aiv() -> Scenario:
    """As microbatch, with vector cores moving the bytes: mixed kernels then get fewer cube cores too."""
    return microbatch().variant(
        title="Atlas A3 prefill: two micro-batches, collectives on vector cores",
        knobs=Knobs(engine="aiv"),
        expected=(
            _expect("a3.prefill.aiv", "latency_ms", 1.0,
                    note=": AIV communication is slower while micro-batching. The sign holds by a hair: vector cores"
                    " also move the bytes 9% faster here, which gives back most of what the cores cost",
                    against="a3_prefill:microbatch", band=LONGER),
        ),
        studies=(),
    )  # fmt: skip


def dp_slow_host() -> Scenario:
    """As dp, with a host that launches ten times slower."""
    return dp().variant(
        title="Atlas A3 prefill: one stream, slow host", machine_changes={"host.launch_eager": "530 us"}, expected=()
    )


def microbatch_slow_host() -> Scenario:
    """As microbatch, with a host that launches ten times slower: twice the launches make two streams lose."""
    return microbatch().variant(
        title="Atlas A3 prefill: two micro-batches, slow host",
        machine_changes={"host.launch_eager": "530 us"},
        expected=(
            _expect("a3.prefill.host", "latency_ms", 1.0,
                    note=": a host that launches too slowly makes two streams lose",
                    against="a3_prefill:dp_slow_host", band=LONGER),
        ),
        studies=(),
    )  # fmt: skip


def sp_tp_sp() -> Scenario:
    """Sequence parallel projections, tensor parallel attention; two micro-batches with a stream each."""
    return dp().variant(
        title="Atlas A3 prefill: SP-TP-SP, two micro-batches",
        workload=SP_TP_SP,
        expected=(
            _expect("a3.prefill.sp", "latency_ms", 1.0, note=": with plenty of even requests DP wins",
                    against="a3_prefill:microbatch", band=LONGER),
        ),
    )  # fmt: skip


def sp_tp_sp_pipelined() -> Scenario:
    """The same with every exchange of one micro-batch under a kernel of the other."""
    return sp_tp_sp().variant(
        title="Atlas A3 prefill: SP-TP-SP, two micro-batches in a pipeline", workload=SP_TP_SP_PIPELINED, expected=()
    )


def sp_tp_sp_one_stream() -> Scenario:
    """SP-TP-SP without micro-batches."""
    return sp_tp_sp().variant(
        title="Atlas A3 prefill: SP-TP-SP, one stream",
        knobs=Knobs(micro_batches=1),
        expected=(
            _expect("a3.prefill.sp", "latency_ms", 1.0, note=": with plenty of even requests DP wins",
                    against="a3_prefill:dp", band=LONGER),
        ),
    )  # fmt: skip


def dp_long_prompt() -> Scenario:
    """One prompt of 32K tokens: one rank of 32 computes attention (at 128K its activations do not fit)."""
    return dp().variant(
        title="Atlas A3 prefill: one 32K prompt, DP", batch=Prompts(requests=1, prompt_tokens=32768), expected=()
    )


def sp_tp_sp_long_prompt() -> Scenario:
    """One prompt of 32K tokens, its sequence and heads split over all ranks."""
    return _sp_wins(dp_long_prompt(), "Atlas A3 prefill: one 32K prompt, SP-TP-SP", "a3_prefill:dp_long_prompt")


def dp_few_prompts() -> Scenario:
    """Eight prompts of 4K tokens on 32 ranks."""
    return dp().variant(title="Atlas A3 prefill: 8 prompts, DP", batch=Prompts(requests=8), expected=())


def sp_tp_sp_few_prompts() -> Scenario:
    """Eight prompts of 4K tokens, split over all ranks."""
    return _sp_wins(dp_few_prompts(), "Atlas A3 prefill: 8 prompts, SP-TP-SP", "a3_prefill:dp_few_prompts")


def dp_uneven() -> Scenario:
    """Prompts of 1K to 16K tokens: ranks with short ones wait in every dispatch."""
    return dp().variant(title="Atlas A3 prefill: uneven prompts, DP", batch=UNEVEN, expected=())


def sp_tp_sp_uneven() -> Scenario:
    """Prompts of 1K to 16K tokens, split over all ranks."""
    return _sp_wins(dp_uneven(), "Atlas A3 prefill: uneven prompts, SP-TP-SP", "a3_prefill:dp_uneven")


def sp_tp_sp_128k() -> Scenario:
    """One prompt of 128K tokens, which fits no single rank."""
    return sp_tp_sp_one_stream().variant(
        title="Atlas A3 prefill: one 128K prompt, SP-TP-SP",
        batch=Prompts(requests=1, prompt_tokens=131072),
        expected=(),
    )


def _sp_wins(parent: Scenario, title: str, against: str) -> Scenario:
    note = ": SP-TP-SP wins for one long request, for fewer requests than ranks and for uneven lengths"
    return parent.variant(
        title=title,
        workload=SP_TP_SP,
        knobs=Knobs(micro_batches=1),
        expected=(_expect("a3.prefill.sp", "latency_ms", 1.0, note=note, against=against, band=SHORTER),),
    )
