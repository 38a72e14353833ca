"""KV cache transfer layer by layer over EFA, from 8 prefill GPUs to 8 decode GPUs, under a prefill in progress."""

from __future__ import annotations

from simulator.study.scenario import Scenario, Source, Study
from workloads.kv_transfer import KV_TRANSFER, Knobs, Prompt

_expect = Source("TransferEngine and MoE kernels of Perplexity, arXiv 2510.27656").expects


def long_prompt() -> Scenario:
    """A prompt of 4096 tokens per GPU."""
    lengths = Study(
        title="A layer's transfer against the compute of the next layer, by prompt length",
        key="batch.prompt_tokens", values=("128", "512", "1024", "2048", "4096", "8192"),
        metrics=("layer_us", "kv_transfer_us", "kv_exposed_us"),
    )  # fmt: skip
    hidden = _expect("pplx.kv", "kv_transfer_per_layer", 1.0,
                     ": hidden under the next layer's compute for long prompts", band=(None, 1.0))
    none = _expect("pplx.kv", "kv_exposed_us", 0.0, ": nothing is left when prefill ends", band=(None, 1.0))
    return Scenario(
        title="KV transfer layer by layer over EFA, prompts of 4096 tokens",
        machine="p5en_h200",
        model="deepseek_r1",
        kernels="pplx_2025",
        cards=16,
        batch=Prompt(),
        knobs=Knobs(),
        workload=KV_TRANSFER,
        expected=(hidden, none),
        studies=(lengths,),
    )


def at_the_end() -> Scenario:
    """As long_prompt, but nothing leaves before the last layer: the whole transfer is exposed."""
    return long_prompt().variant(title="KV transfer after the last layer, prompts of 4096 tokens",
                                 knobs=Knobs(layer_by_layer=False), expected=(), studies=())
