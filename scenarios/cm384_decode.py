"""CloudMatrix384, 144 cards = 288 dies: decode of DeepSeek-R1 with INT8 weights and activations, BF16 cache, one MTP
module, EP288 with shared experts on dies of their own.

Published by Huawei, "DeepSeek V3/R1 inference deployment best practice on Ascend servers" (2025). The length of the
cache is not published: 4.2K on average, requests evenly spread over a 2K output. How skewed the routing is, is not
published either: the hottest of 256 experts gets 1.6 times the mean.
"""

from __future__ import annotations

from simulator.study.scenario import Expected, Requests, RoutingSpec, Scenario, Source, Study
from workloads.cm384_decode import BOUND, EXCHANGE, ITERATION, Dies, Knobs

_expect = Source("Huawei, DeepSeek V3/R1 inference deployment best practice on Ascend servers, 2025").expects
SPREAD = 0.14  # standard deviation of a 2K output's progress, 577 tokens, over 4200


def decode_50ms() -> Scenario:
    """96 requests per card: the most that keep 50 ms per output token."""
    return Scenario(
        title="CloudMatrix384 decode: 144 cards, EP288, 96 requests per card",
        machine="cloudmatrix384",
        model="deepseek_r1",
        kernels="cann_decode_2025",
        cards=144,
        batch=Requests(per_card=96, prompt_tokens=3200, output_tokens=2000, length_spread=SPREAD),
        layout=Dies(),
        routing=RoutingSpec(skew=0.1),
        knobs=Knobs(),
        workload=ITERATION,
        expected=(
            _expect("cm384.decode.50ms", "throughput_tok_s_per_card", 1920,
                    note=": a cache of 4.7K instead of 4.2K tokens, floors as measured eagerly, weights that the second"
                    " micro-batch does not find in L2, or a fused dispatch and combine that keep all 48 vector cores"
                    " busy where they get 16: each takes off about as much or more (see the studies); which holds is"
                    " not published"),
            _expect("cm384.decode.50ms", "iteration_ms", 85.0),
            _expect("cm384.decode.50ms", "tpot_ms", 50.0, ": at most 50 ms", band=(None, 50.0)),
        ),
    )


def decode_low() -> Scenario:
    """8 requests per card; so few gain nothing from a second micro-batch."""
    return decode_50ms().variant(
        title="CloudMatrix384 decode: 144 cards, EP288, 8 requests per card",
        batch=decode_50ms().batch.model_copy(update={"per_card": 8}),
        knobs=Knobs(micro_batches=1),
        expected=(
            _expect("cm384.decode.low", "tpot_ms", 15.0, note=": floors as measured eagerly make it 20% longer"),
            _expect("cm384.decode.low", "iteration_ms", 25.5),
        ),
    )


def decode_one_micro_batch() -> Scenario:
    """96 requests per card in one micro-batch: every exchange and every wait is exposed."""
    return decode_50ms().variant(
        title="CloudMatrix384 decode: 96 requests per card, one micro-batch", knobs=Knobs(micro_batches=1), expected=()
    )


def decode_length_aware() -> Scenario:
    """As decode_50ms, with requests placed so that every die caches as many tokens."""
    return decode_50ms().variant(
        title="CloudMatrix384 decode: 96 requests per card, placed by length",
        batch=decode_50ms().batch.model_copy(update={"placement": "length_aware"}),
        expected=(),
    )


# --- without chance: every die of a role does the same ----------------------------------------------------------------


def decode_even() -> Scenario:
    """As decode_50ms with equal lengths and forced even routing: what chance adds is the difference."""
    return decode_50ms().variant(
        title="CloudMatrix384 decode: 96 requests per card, even lengths and routing",
        batch=decode_50ms().batch.model_copy(update={"length_spread": 0.0}),
        routing=RoutingSpec(),
        expected=(),
        studies=(
            Study(
                title="The length of the cache is not published: prompts around an output of 2000",
                key="batch.prompt_tokens",
                values=("2200", "2700", "3200", "3700", "4200"),
                metrics=("iteration_ms", "throughput_tok_s_per_card"),
                beside=("cm384_decode:decode_low_even",),
            ),
            Study(
                title="Floors of kernels: inside a graph, or as measured on eager small kernels",
                key="kernels",
                values=("cann_decode_2025", "cann_decode_2025_slow"),
                metrics=("iteration_ms", "throughput_tok_s_per_card"),
                beside=("cm384_decode:decode_low_even",),
            ),
            Study(
                title="A layer's weights just fit L2, where the second micro-batch finds them if the cache of tokens"
                " streams past; less room stands for one that does not",
                key="machine.chip.l2.capacity",
                values=("64 MiB", "128 MiB", "192 MiB"),
                metrics=("iteration_ms", "throughput_tok_s_per_card"),
                beside=("cm384_decode:decode_1k",),
            ),
            Study(
                title="Cube cores of the attention and the MoE stream",
                key="knobs.split",
                values=("12/12", "14/10", "16/8", "none"),
                metrics=("iteration_ms",),
                beside=("cm384_decode:decode_1k",),
            ),
        ),
    )


def decode_low_even() -> Scenario:
    """As decode_low with equal lengths and forced even routing."""
    return decode_low().variant(
        title="CloudMatrix384 decode: 8 requests per card, even lengths and routing",
        batch=decode_low().batch.model_copy(update={"length_spread": 0.0}),
        routing=RoutingSpec(),
        expected=(),
    )


def decode_1k() -> Scenario:
    """As decode_even with short caches: MLA needs fewer cores."""
    return decode_even().variant(
        title="CloudMatrix384 decode: 96 requests per card, 1K context",
        batch=Requests(per_card=96, prompt_tokens=24, output_tokens=2000),
        studies=(),
    )


# --- chance, on a sixth of the layers ---------------------------------------------------------------------------------


def decode_ten_layers() -> Scenario:
    """The first 10 of 61 layers of decode_50ms, to see what skew and uneven lengths do."""
    return decode_50ms().variant(
        title="CloudMatrix384 decode: 10 layers",
        model_changes={"shapes.layers": "10"},
        expected=(),
        studies=(
            Study(
                title="How skewed the routing is, is not published, nor whether rows keep 24 or 48 vector cores busy;"
                " and one micro-batch instead of two (10 of 61 layers)",
                key="routing.skew",
                values=("0", "0.1", "0.2", "0.3"),
                metrics=("iteration_ms", "waiting_comm_ms"),
                beside=("cm384_decode:ten_layers_48_cores", "cm384_decode:ten_layers_one_micro_batch"),
            ),
            Study(
                title="How uneven lengths are, is not published (10 of 61 layers)",
                key="batch.length_spread",
                values=("0", "0.14", "0.4"),
                metrics=("iteration_ms", "waiting_comm_ms"),
            ),
        ),
    )


def ten_layers_48_cores() -> Scenario:
    """As decode_ten_layers, with fused kernels that need all 48 vector cores for their rate, not 24."""
    numbers = {"cores.vector": "48", "rows.in_flight": "1", "rows.receive": "0.5 us"}
    changes = {f"collectives.{engine}.{key}": value for engine in ("fused_both", "fused_both_combine")
               for key, value in numbers.items()}  # fmt: skip
    return decode_ten_layers().variant(
        title="CloudMatrix384 decode: 10 layers, rows keep 48 vector cores busy", machine_changes=changes, studies=()
    )


def ten_layers_one_micro_batch() -> Scenario:
    """As decode_ten_layers in one micro-batch."""
    return decode_ten_layers().variant(
        title="CloudMatrix384 decode: 10 layers, one micro-batch", knobs=Knobs(micro_batches=1), studies=()
    )


# --- the fused kernels alone ------------------------------------------------------------------------------------------


def exchange_push() -> Scenario:
    """Dispatch and combine of a layer alone, written by their senders."""
    return decode_even().variant(
        title="CloudMatrix384: dispatch and combine alone, push",
        knobs=Knobs(dispatch="fused_push"),
        workload=EXCHANGE,
        studies=(),
    )


def exchange_pull() -> Scenario:
    """The same, read by their receivers."""
    return exchange_push().variant(
        title="CloudMatrix384: dispatch and combine alone, pull", knobs=Knobs(dispatch="fused_pull")
    )


def exchange_both() -> Scenario:
    """The same, written and read at the same time."""
    return exchange_push().variant(
        title="CloudMatrix384: dispatch and combine alone, push and pull (SMTurbo-CPP)",
        knobs=Knobs(dispatch="fused_both"),
        expected=(
            _expect("cm384.comm.cpp", "dispatch_combine_us", 0.86, ": 8% to 20% shorter",
                    against="cm384_decode:exchange_push", band=(0.80, 0.92)),
        ),
    )  # fmt: skip


def exchange_128() -> Scenario:
    """128 tokens per die, as in the published table of these kernels."""
    table = "CloudMatrix384 paper, arXiv 2506.12708 (remembered), EP256: the rate follows from it"
    return exchange_push().variant(
        title="CloudMatrix384: dispatch and combine of 128 tokens at EP256",
        cards=128,
        batch=Requests(per_card=128, prompt_tokens=3200, output_tokens=2000),
        layout=Dies(expert_parallel=256),
        expected=(
            Expected(id="cm384.comm.table", metric="dispatch_us", value=152, role="fit", note=table),
            Expected(id="cm384.comm.table", metric="combine_us", value=149, role="fit", note=table),
        ),
        studies=(
            Study(
                title="Fused dispatch and combine of 128 tokens by EP degree (published: 116 and 118 us at EP8, 152 and"
                " 149 at EP256)",
                key="layout.expert_parallel",
                values=("8", "16", "32", "64", "128", "256"),
                metrics=("dispatch_us", "combine_us"),
            ),
        ),
    )


# --- the theoretical bound --------------------------------------------------------------------------------------------


def bound() -> Scenario:
    """3K context, no limit on latency: attention alone, on 16 of 24 cores, hides everything else."""
    return decode_even().variant(
        title="CloudMatrix384: theoretical bound, attention alone",
        batch=Requests(per_card=192, prompt_tokens=2072, output_tokens=2000),
        workload=BOUND,
        expected=(
            _expect("cm384.decode.bound", "throughput_tok_s_per_card", 4800, ": about 2.5 times 1920",
                    band=(4320.0, 5280.0)),
        ),
        studies=(),
    )  # fmt: skip


def decode_3k() -> Scenario:
    """The whole iteration at the batch and context of the bound."""
    return bound().variant(
        title="CloudMatrix384 decode: 192 requests per card, 3K context, beside its bound",
        workload=ITERATION,
        expected=(
            _expect("cm384.decode.bound", "throughput_tok_s_per_card", 1.0, ": the bound is theoretical",
                    against="cm384_decode:bound", band=(None, 1.0)),
        ),
    )  # fmt: skip


# --- other deployments ------------------------------------------------------------------------------------------------


def decode_ep320() -> Scenario:
    """160 cards: 256 routed experts, 32 replicas of the hottest, 32 shared ones."""
    return decode_50ms().variant(
        title="CloudMatrix384 decode: 160 cards, EP320 with 32 redundant experts",
        cards=160,
        layout=Dies(expert_parallel=320, shared_dies=32),
        expected=(),
    )


def decode_ep128() -> Scenario:
    """64 cards: three slots per die."""
    return decode_even().variant(
        title="CloudMatrix384 decode: 64 cards, EP128", cards=64, layout=Dies(expert_parallel=128), studies=()
    )
