"""FlowMLA (Ant Group, on SGLang): DeepSeek-R1 on 8 x H20 in FP8 and on 32 x H800 in BF16, 1024 tokens in, 2048 out.

How many requests fit follows from the memory of each card, and the run from how many there are. One number per machine
is fitted on the rows without FlowMLA: on H20 how skewed the experts' popularity is, which is the model's and holds on
H800 too; on H800 the share of memory that the server gets, of which no launch flag is published.
"""

from __future__ import annotations

from simulator.study.scenario import Layout, RoutingSpec, Scenario, Source, Study
from workloads.flow_mla import FLOW_MLA, Batch, Knobs

_expect = Source("FlowMLA, Ant Group").expects
LONGER = (1.0, None)
SPAN = (": the gain moves by twenty points with CTAs, padding, routing and the passes of MoE kernels, none of which is "
        "published")  # fmt: skip
LACKING = ": counted, nothing was fitted on it; the 52nd lacks 0.12 GB of 98"
EXCHANGES = ": nothing on H800 is fitted on throughput; exchanges of all tokens grow with the batch"
SCHEDULER = (": no time of the scheduler between steps is published, and none is simulated; nor is which tiles "
             "multiply experts, or how many CTAs the gather has: 24 as NCCL says in its log, 16 give 208 (study)")
UNFITTED = ": nothing is fitted on it; NCCL's rates are a table's, popularity is H20's"
CTAS = "machine.collectives.nccl_background.cores.sm"
RUN = ("throughput_tok_s_per_card", "tpot_ms", "prefetch_stall_ms")


def _h800(**more: object) -> Knobs:
    """BF16, graphs of up to 160 requests (below 90 GiB), NCCL for whatever size, on several nodes."""
    return Knobs(**{"dtype": "bf16", "captured": 160, "small_engine": "nccl", **more})


def h20_tp() -> Scenario:
    """Baseline: tensor parallel attention, whose latent cache is on every card."""
    return Scenario(
        title="FlowMLA baseline: 8 x H20, FP8, TP8",
        machine="h20_node",
        model="deepseek_r1",
        kernels="sglang_2025",
        cards=8,
        batch=Batch(chunk_tokens=8192),
        layout=Layout(),
        routing=RoutingSpec(skew=1.14),
        knobs=Knobs(attention="tp"),
        workload=FLOW_MLA,
        expected=(
            _expect("flow.h20.tp", "requests", 52, LACKING, "fit"),
            _expect("flow.h20.tp", "throughput_tok_s_per_card", 128, ": fits the skew of experts' popularity", "fit"),
        ),
        studies=(
            Study(
                title="Popularity of experts is published nowhere; with more skew fewer are read (the power_law_1.01 "
                "tables of aiconfigurator for H100 touch as many as 0.6 does)",
                key="routing.skew",
                values=("0.0", "0.6", "1.0", "1.14"),
                metrics=("throughput_tok_s_per_card",),
                beside=("flow_mla:h20_flow",),
            ),
            Study(
                title="Rows of a tile of experts: 64 without a tuned file, as in 0.4.10; 16 up to 512 tokens with "
                "that of 2025-08-13, which cost as much as 32 here (Triton multiplies FP8 as FP16 below 64 rows)",
                key="machine.kernels.sglang_2025.fused_gemm_fp8.granule",
                values=("32", "64"),
                metrics=("throughput_tok_s_per_card",),
                beside=("flow_mla:h20_flow",),
            ),
        ),
    )


def h20_dp() -> Scenario:
    """Data parallel attention with all of it on every card: does not fit."""
    return h20_tp().variant(title="8 x H20, FP8, DP8", batch=Batch(), knobs=Knobs(), expected=(), studies=())


def h20_flow() -> Scenario:
    """FlowMLA: o_proj sharded over the node."""
    return h20_dp().variant(
        title="FlowMLA: 8 x H20, FP8, DP8, o_proj sharded",
        knobs=Knobs(sharded=("o",)),
        expected=(
            _expect("flow.h20.dp", "fitting_requests_unsharded", 0, ": does not fit without FlowMLA"),
            _expect("flow.h20.flow", "requests", 136, note=": counted, 17.3 on each of 8 cards"),
            _expect("flow.h20.flow", "requests", 136 / 52, note=": 2.6 times", against="flow_mla:h20_tp"),
            _expect("flow.h20.flow", "throughput_tok_s_per_card", 181, note=SCHEDULER),
            _expect("flow.h20.flow", "throughput_tok_s_per_card", 1.41, note=SPAN, against="flow_mla:h20_tp"),
        ),
        studies=(
            Study(
                title="CTAs of the gather: each holds an SM, and drives as much of NVLink",
                key=CTAS,
                values=("1", "2", "4", "8", "12", "16", "20", "24", "32"),
                metrics=RUN,
            ),
        ),
    )  # fmt: skip


def h20_batch_1() -> Scenario:
    """One request a card: layers are shortest, and the gather is hidden all the same."""
    return h20_flow().variant(
        title="FlowMLA: 8 x H20, batch 1",
        batch=Batch(requests=1, cached_tokens=1024, samples=2),
        expected=(_expect("flow.hidden", "prefetch_stall_ms", 0, note=": the prefetch is hidden even at batch 1"),),
        studies=(),
    )


def h20_copy_engines() -> Scenario:
    """Copy engines gather: no SM is held."""
    return h20_flow().variant(
        title="FlowMLA: 8 x H20, copy engines gather",
        knobs=Knobs(sharded=("o",), gather_engine="copy_engine"),
        expected=(),
        studies=(),
    )


def h20_few_ctas() -> Scenario:
    """A quarter of NCCL's CTAs."""
    return h20_flow().variant(
        title="FlowMLA: 8 x H20, 6 CTAs",
        machine_changes={CTAS.removeprefix("machine."): "6"},
        expected=(
            _expect("flow.sm", "tpot_ms", 1.0, note=": fewer CTAs lower TPOT until bandwidth runs out",
                    against="flow_mla:h20_flow", band=(None, 1.0)),
            _expect("flow.sm", "tpot_ms", 1.0, note=": communication kernels that take SMs raise TPOT",
                    against="flow_mla:h20_copy_engines", band=LONGER),
        ),
        studies=(),
    )  # fmt: skip


def h20_queries_too() -> Scenario:
    """All projections of the attention block sharded, not only o_proj."""
    return h20_flow().variant(
        title="FlowMLA: 8 x H20, q and kv projections sharded too",
        knobs=Knobs(sharded=("qkv_a", "q_b", "o")),
        expected=(),
        studies=(),
    )


def h800_dp() -> Scenario:
    """Baseline on 4 nodes: data parallel attention, all of it on every card, experts expert parallel."""
    return h20_dp().variant(
        title="FlowMLA baseline: 32 x H800, BF16, DP32",
        machine="h800_cluster",
        cards=32,
        batch=Batch(samples=1),
        layout=Layout(expert_parallel=32),
        knobs=_h800(),
        expected=(
            _expect("flow.h800.dp", "requests_per_card", 30, ": fits the share of memory that the server gets", "fit"),
            _expect("flow.h800.dp", "throughput_tok_s_per_card", 280, UNFITTED, "fit"),
        ),
    )


def h800_flow() -> Scenario:
    """FlowMLA: o_proj sharded inside each node."""
    return h800_dp().variant(
        title="FlowMLA: 32 x H800, BF16, DP32, o_proj sharded over 8",
        knobs=_h800(sharded=("o",)),
        expected=(
            _expect("flow.h800.flow", "requests_per_card", 83, note=": over how many cards it is sharded is not said"),
            _expect("flow.h800.flow", "requests_per_card", 83 / 30, note=": 2.8 times", against="flow_mla:h800_dp"),
            _expect("flow.h800.flow", "throughput_tok_s_per_card", 400, note=EXCHANGES),
            _expect("flow.h800.flow", "throughput_tok_s_per_card", 1.43, note=SPAN, against="flow_mla:h800_dp"),
        ),
        studies=(
            Study(
                title="What the feed-forward gave comes back by an AllReduce of all tokens in SGLang 0.4.10, by a "
                "ReduceScatter of half the bytes later; which release ran is not published",
                key="knobs.combine",
                values=("all_reduce", "reduce_scatter"),
                metrics=("throughput_tok_s_per_card",),
                beside=("flow_mla:h800_dp",),
            ),
            Study(
                title="Experts that are not equally popular: on whole experts the fullest rank decides",
                key="routing.skew",
                values=("none", "0.6", "1.14"),
                metrics=("throughput_tok_s_per_card",),
                beside=("flow_mla:h800_dp",),
            ),
        ),
    )


def h800_flow_32() -> Scenario:
    """Sharded over all 32 cards: more memory is free, and the gather crosses nodes."""
    return h800_flow().variant(
        title="FlowMLA: 32 x H800, o_proj sharded over 32",
        knobs=_h800(sharded=("o",), shards=32),
        expected=(),
        studies=(),
    )


def kimi_dp() -> Scenario:
    """Kimi-K2, half the heads of DeepSeek-R1, in FP8 on 16 H800: data parallel attention, all of it on every card."""
    return h800_dp().variant(
        title="Kimi-K2: 16 x H800, FP8, DP16",
        model="kimi_k2",
        cards=16,
        layout=Layout(expert_parallel=16),
        routing=RoutingSpec(),
        knobs=_h800(dtype="fp8"),
        expected=(),
    )


def kimi_flow() -> Scenario:
    """Kimi-K2 with FlowMLA: queries and o_proj sharded inside each node."""
    return kimi_dp().variant(
        title="Kimi-K2: 16 x H800, FP8, FlowMLA",
        knobs=_h800(dtype="fp8", sharded=("q_b", "o")),
    )


def qwen3_tp() -> Scenario:
    """Qwen3-235B in BF16 on 8 H800: 4 heads of keys and values, so that tensor parallelism keeps the cache twice."""
    return h800_dp().variant(
        title="Qwen3-235B: 8 x H800, BF16, TP8",
        model="qwen3_235b",
        cards=8,
        batch=Batch(chunk_tokens=8192, samples=1),
        layout=Layout(),
        routing=RoutingSpec(),
        knobs=_h800(attention="tp"),
        expected=(),
    )


def qwen3_dp() -> Scenario:
    """Data parallel attention: every request's cache once, all of attention on every card."""
    return qwen3_tp().variant(
        title="Qwen3-235B: 8 x H800, BF16, DP8",
        batch=Batch(samples=1),
        knobs=_h800(),
    )


def qwen3_flow() -> Scenario:
    """With FlowMLA: o_proj, almost half of attention, sharded over the node."""
    return qwen3_dp().variant(
        title="Qwen3-235B: 8 x H800, BF16, FlowMLA",
        knobs=_h800(sharded=("o",)),
    )


def qwen3_flow_all() -> Scenario:
    """All of attention sharded: twice the bytes in every gather, more than a layer hides on an H800's NVLink."""
    return qwen3_dp().variant(
        title="Qwen3-235B: 8 x H800, BF16, FlowMLA, all projections sharded",
        knobs=_h800(sharded=("qkv", "o")),
    )


def glm_tp() -> Scenario:
    """GLM-4.5 in BF16 on 16 H800: 8 heads of keys and values for 16 cards."""
    return qwen3_tp().variant(
        title="GLM-4.5: 16 x H800, BF16, TP16",
        model="glm_4_5",
        cards=16,
        knobs=_h800(attention="tp"),
    )


def glm_dp() -> Scenario:
    """Data parallel attention, whole experts on every card."""
    return glm_tp().variant(
        title="GLM-4.5: 16 x H800, BF16, DP16",
        batch=Batch(samples=1),
        layout=Layout(expert_parallel=16),
        knobs=_h800(),
    )


def glm_flow() -> Scenario:
    """With FlowMLA: all projections sharded inside each node."""
    return glm_dp().variant(
        title="GLM-4.5: 16 x H800, BF16, FlowMLA",
        knobs=_h800(sharded=("qkv", "o")),
    )
