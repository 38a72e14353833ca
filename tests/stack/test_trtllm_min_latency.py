"""Kernels of TensorRT-LLM at minimum latency: what fusions leave out, what work stays, and other models on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import weights, with_precision
from simulator.stack.stacks import stack_of
from simulator.stack.trtllm_min_latency import STACK, MinLatency
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate

R1 = with_precision(load_transformer("deepseek_r1"), {"all": "nvfp4", "attention": "bf16"})
MLA, DENSE, EXPERTS = R1.layers[0].attention, R1.layers[0].feed_forward, R1.layers[-1].feed_forward
PLAIN = replace(STACK, fused_kernels=False, fused_top_k=False, fuse_a_kernel=False, router_kernel=False,
                quantised=False, moe="cutlass")  # fmt: skip
B200 = {"machine": "dgx_b200", "kernels": "trtllm_1_3", "model": "deepseek_r1", "layout.tp": "8", "batch.requests": "1",
        "batch.context": "2048", "knobs.precision": "all=nvfp4,attention=bf16"}  # fmt: skip


def layer(stack: MinLatency) -> dict[str, Work]:
    batch = MicroBatch(decodes=((4, 2048),))
    return dict([*stack.inputs(R1, MLA, 4, 8, False), *stack.attend(R1, MLA, batch, 8, 1), *stack.output(R1, MLA, 4, 8),
                 *stack.route(R1, EXPERTS, 4), *stack.experts(R1, EXPERTS, 4, (1,) * 32, 1),
                 *stack.shared(R1, EXPERTS, 4, 8, False), *stack.finalize(R1, EXPERTS, 4, False)])  # fmt: skip


def test_fusions_leave_out_launches_and_no_products() -> None:
    fused, plain = layer(STACK), layer(PLAIN)
    assert len(plain) - len(fused) == 5 + 1 + 2 + 2 + 3 + 1  # top-k, RoPE, SwiGLU, quantise, sort to sum, last sum
    assert {name for name, work in plain.items() if work.flops} == {name for name, work in fused.items() if work.flops}
    for name, work in fused.items():
        assert (work.flops, work.weight_bytes) == (plain[name].flops, plain[name].weight_bytes)


def test_a_rank_reads_its_share_of_attention_and_all_of_fuse_a() -> None:
    sizes = {one.name: one.elements for one in weights(MLA, 7168)}
    whole = sizes["attention.q_a"] + sizes["attention.kv_a"]
    split = sizes["attention.q_b"] + sizes["attention.kv_b"] + sizes["attention.o"]
    read = sum(work.weight_bytes for name, work in layer(STACK).items() if name.startswith("attention"))
    assert read == 2 * (whole + split / 8)


def test_plain_products_take_all_tokens_through_every_active_expert() -> None:
    rows = (2, 0, 1)
    gemms, grouped = (dict(replace(STACK, moe=moe).experts(R1, EXPERTS, 4, rows, 2)) for moe in ("gemms", "cutlass"))
    assert gemms["experts.gate_up"].rows == (4, 4)
    assert grouped["experts.gate_up"].rows == (2, 1)
    assert gemms["experts.gate_up"].weight_bytes == grouped["experts.gate_up"].weight_bytes


def test_generations_of_the_machine_find_it() -> None:
    for generation in ("trtllm_1_3", "trtllm_2025", "trtllm_2025_own"):
        assert stack_of(generation, R1, "decode") is STACK
    assert stack_of("trtllm", R1, "decode").name == "trtllm"


def tpot(**changes: str) -> float:
    keys = {key.replace("__", "."): text for key, text in changes.items()}
    return simulate(load_scenario("transformer:decode").replace(B200 | keys)).metrics["tpot_ms"]


def test_any_latent_attention_decodes_with_it() -> None:
    """Dependent launch hides prologues, drafts share an iteration, and an older generation is slower."""
    assert tpot(knobs__programmatic_launch="true") < tpot() < tpot(kernels="trtllm_2025")
    assert tpot(batch__drafts="3", batch__acceptance="0.8") < tpot()
    assert tpot(model="kimi_k2") < tpot()  # half the heads


def test_what_it_has_no_kernels_for_is_refused() -> None:
    with pytest.raises(InputError, match="its kernels are of latent attention; qwen3_235b has grouped-query"):
        tpot(model="qwen3_235b")
    with pytest.raises(InputError, match="without prompts"):
        tpot(batch__phase="prefill")
