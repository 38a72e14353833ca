"""FlashComm and conversion are placements: what they buy on models and machines that no source has."""

from __future__ import annotations

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate

INT8 = {"knobs.precision": "all=int8,router=fp32,kv_b=bf16"}
SPLIT, LATENTS = {"knobs.residual": "split"}, {"knobs.residual": "split_latents", "layout.o_proj": "1"}
MACHINES = {"atlas_a2": ("cann_2025", 8), "atlas_a3": ("cann_recipes_2025", 4),
            "cloudmatrix384": ("cann_recipes_2025", 4)}  # fmt: skip


def run(model: str, machine: str = "atlas_a2", **changes: str) -> Result:
    """Four prompts of 4K on 8 ranks that split all heads, a few layers."""
    kernels, cards = MACHINES[machine]
    base = {"machine": machine, "kernels": kernels, "cards": str(cards), "model": model, "batch.requests": "4",
            "layout.tp": "8", "model.shapes.layers": "4", "knobs.algorithm": "direct"}  # fmt: skip
    return simulate(load_scenario("transformer:prefill").replace({**base, **changes}))


def sent(result: Result, name: str) -> float:
    """Wire bytes of a rank's collectives whose names begin so."""
    names, size = result.columns["name"], result.columns["wire_bytes"]
    return float(sum(size[index] for index, one in enumerate(names) if str(one).startswith(name)))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", ["llama_3_1_70b", "qwen3_32b"])
def test_splitting_the_residual_saves_a_quarter_of_the_bytes_where_gathers_are_quantised(model: str,
                                                                                         machine: str) -> None:
    """An AllReduce is a ReduceScatter and an AllGather of BF16 each; an INT8 AllGather is half of one of them."""
    whole, split = (run(model, machine, **INT8, **more) for more in ({}, SPLIT))
    assert sent(split, "attention.") == pytest.approx(0.75 * sent(whole, "attention."), rel=1e-3)
    assert split.metrics["ttft_ms"] < whole.metrics["ttft_ms"]


def test_in_bf16_it_saves_none_but_norms_are_of_own_tokens() -> None:
    whole, split = run("llama_3_1_70b"), run("llama_3_1_70b", **SPLIT)
    assert sent(split, "attention.") == pytest.approx(sent(whole, "attention."), rel=1e-3)
    assert split.metrics["vector_ms"] < whole.metrics["vector_ms"]


def test_projecting_back_from_all_heads_of_own_tokens_sends_heads_instead_of_sums() -> None:
    """As many values as the hidden size has, of own tokens, once: an eighth of what partial sums of all tokens are."""
    split, converted = (run("llama_3_1_70b", **INT8, **more) for more in (SPLIT, LATENTS))
    assert sent(converted, "attention.heads_to_tokens") == pytest.approx(sent(split, "attention.reduce_scatter") / 8)
    assert converted.metrics["ttft_ms"] < split.metrics["ttft_ms"]


def test_latents_are_narrower_than_hidden_states_and_projected_once() -> None:
    moe = {**INT8, "layout.ep": "8", "knobs.exchange": "all_to_all", "layout.shared": "1", "layout.dense": "1"}
    hidden, latents = (run("deepseek_r1", **moe, **more) for more in ({**LATENTS, **SPLIT}, LATENTS))
    ratio = sent(latents, "attention.gather") / sent(hidden, "attention.gather")
    assert ratio == pytest.approx(2 * (1536 + 576) / 7168, rel=1e-3)
    assert latents.metrics["gemm_ms"] < hidden.metrics["gemm_ms"]


def test_an_output_projection_on_some_ranks_lies_between_all_and_one() -> None:
    """Fewer ranks that split it mean wider heads for fewer tokens, and fewer partial sums; as many operations."""
    runs = [run("llama_3_1_70b", **INT8, **SPLIT, **{"layout.o_proj": str(split)}) for split in (1, 2, 4, 8)]
    sums = [sent(one, "attention.reduce_scatter") for one in runs]
    assert sums == sorted(sums)
    assert sums[0] == 0 < sums[1]
    flops = [one.columns["flops"][one.columns["name"] == "attention.o"].sum() for one in runs]
    assert flops == pytest.approx([flops[0]] * 4)
