"""KV cache transfer layer by layer over EFA, from 8 prefill GPUs to 8 decode GPUs, under a prefill in progress."""

from __future__ import annotations

from simulator.scenario import Expected, Scenario, Study
from workloads.kv_transfer import KV_TRANSFER, Knobs, Prompt

SOURCE = "TransferEngine and MoE kernels of Perplexity, arXiv 2510.27656"


def long_prompt() -> Scenario:
    """A prompt of 4096 tokens per GPU."""
    lengths = Study(
        title="A layer's transfer against the compute of the next layer, by prompt length",
        key="batch.prompt_tokens", values=("128", "512", "1024", "2048", "4096", "8192"),
        metrics=("layer_us", "kv_transfer_us", "kv_exposed_us"),
    )  # fmt: skip
    hidden = Expected(id="pplx.kv", metric="kv_transfer_per_layer", value=1.0, role="predict", band=(None, 1.0),
                      note=f"{SOURCE}: hidden under the next layer's compute for long prompts")
    none = Expected(id="pplx.kv", metric="kv_exposed_us", value=0.0, role="predict", band=(None, 1.0),
                    note=f"{SOURCE}: nothing is left when prefill ends")
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
