"""KV cache transfer layer by layer over EFA from GPUs that prefill to GPUs that decode, under a prefill in progress."""

from __future__ import annotations

from simulator.parallel.mesh import Mesh
from simulator.study.scenario import RoutingSpec, Scenario, Source, Study
from workloads.kv_transfer import KV_TRANSFER, Knobs, Prompts

_expect = Source("TransferEngine and MoE kernels of Perplexity, arXiv 2510.27656").expects


def long_prompt() -> Scenario:
    """DeepSeek-R1, EP8 and a prompt of 4096 tokens on each of 8 GPUs; eight layers."""
    lengths = Study(
        title="A layer's transfer against the compute of the next layer, by prompt length",
        key="batch.context", values=("128", "512", "1024", "2048", "4096", "8192"),
        metrics=("layer_us", "kv_transfer_us", "kv_exposed_us"),
    )  # fmt: skip
    hidden = _expect("pplx.kv", "kv_transfer_per_layer", 1.0,
                     ": hidden under the next layer's compute for long prompts", band=(None, 1.0))
    none = _expect("pplx.kv", "kv_exposed_us", 0.0, ": nothing is left when prefill ends", band=(None, 1.0))
    return Scenario(
        title="KV transfer layer by layer over EFA, prompts of 4096 tokens",
        machine="aws_p5en",
        model="deepseek_r1",
        kernels="vllm",
        cards=16,
        batch=Prompts(requests=8),
        layout=Mesh(dp=8, ep=8),
        routing=RoutingSpec(skew=None),
        knobs=Knobs(layers=8, exchange="all_to_all"),
        workload=KV_TRANSFER,
        expected=(hidden, none),
        studies=(lengths,),
    )


def at_the_end() -> Scenario:
    """As long_prompt, but nothing leaves before the last layer: the whole transfer is exposed."""
    parent = long_prompt()
    return parent.variant(title="KV transfer after the last layer, prompts of 4096 tokens",
                          knobs=parent.knobs.model_copy(update={"layer_by_layer": False}), expected=(), studies=())


def qwen3_8k() -> Scenario:
    """Qwen3-235B on four GPUs for four others, one prompt of 8192 tokens, pages of 128 tokens."""
    transfer = _expect("pplx.kv.8k", "kv_transfer_us", 952,
                       ": 512 pages of 32 KB on four ranks, 128 on each. Here the wire (97 us), latency and the"
                       " watcher are all there is. 512 pages one after the other, 1.86 us each, would be the published"
                       " time: one layer timed with 128, 256 and 512 pages, on one rank and on four, would name what"
                       " is missing")
    note = ("; engine and precision of the source are not published, see the study",
            ": 68 ms more than colocated, here one decode step and a hand-over; the source times neither by itself")
    stacks = Study(
        title="Whose kernels prefill: the source's own engine and its precision are not published",
        key="kernels", values=("vllm", "sglang", "trtllm"),
        metrics=("layer_us", "kv_transfer_us", "ttft_colocated_ms", "ttft_split_ms"),
    )  # fmt: skip
    pages = Study(
        title="Tokens of a page: up to 64 posts decide, from 128 on the wire",
        key="batch.page_tokens", values=("16", "32", "64", "128", "512"), metrics=("kv_transfer_us", "ttft_split_ms"),
    )  # fmt: skip
    return Scenario(
        title="KV transfer of Qwen3-235B layer by layer over EFA, TP4, one prompt of 8192 tokens",
        machine="aws_p5en",
        machine_changes={"fabric.node.size": "4"},
        model="qwen3_235b",
        kernels="vllm",
        cards=8,
        batch=Prompts(requests=1, context=8192, page_tokens=128),
        layout=Mesh(tp=4),
        routing=RoutingSpec(skew=0.0),
        knobs=Knobs(),
        workload=KV_TRANSFER,
        expected=(transfer, _expect("pplx.kv.8k", "ttft_colocated_ms", 433, note[0]),
                  _expect("pplx.kv.8k", "ttft_split_ms", 501, note[1])),
        studies=(stacks, pages),
    )


def qwen3_8k_chunked() -> Scenario:
    """As qwen3_8k, in chunks of 2048 tokens."""
    parent = qwen3_8k()
    return parent.variant(title=f"{parent.title} in chunks of 2048", expected=(), studies=(),
                          batch=parent.batch.model_copy(update={"chunk": 2048}))
