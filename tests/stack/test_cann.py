"""Which kernels of CANN a generation has for a phase."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Model
from simulator.stack.cann import quantised
from simulator.stack.stacks import stack_of

R1, LLAMA = quantised(load_transformer("deepseek_r1")), load_transformer("llama_3_1_70b")
DECODES, PROMPTS = MicroBatch(0, ((2, 4096),) * 8), MicroBatch(0, (), ((1024, 0), (512, 512)), 2)
BOTH = MicroBatch(0, DECODES.decodes, PROMPTS.prompts, 2)


def attention_flops(model: Model, phase: str, batch: MicroBatch) -> float:
    stack, attention = stack_of("cann_2025", model, phase), model.layers[0].attention
    kernels = [*stack.inputs(model, attention, batch.tokens, 4, False), *stack.attend(model, attention, batch, 4, 1)]
    assert len({name for name, _ in kernels}) == len(kernels)
    return sum(work.flops for _, work in kernels)


@pytest.mark.parametrize("model", [R1, LLAMA], ids=lambda model: model.name)
def test_a_mixed_pass_does_what_decode_and_prefill_do(model: Model) -> None:
    apart = attention_flops(model, "decode", DECODES) + attention_flops(model, "prefill", PROMPTS)
    assert attention_flops(model, "mixed", BOTH) == apart
    for phase, batch in (("decode", DECODES), ("prefill", PROMPTS)):
        assert attention_flops(model, "mixed", batch) == attention_flops(model, phase, batch)


def test_a_mixed_pass_attends_prompts_with_the_kernels_of_prefill() -> None:
    """Those that the machine has."""
    mixed, prefill = (stack_of("cann_2025", R1, phase) for phase in ("mixed", "prefill"))
    families = [{work.family for _, work in stack.attend(R1, R1.layers[0].attention, PROMPTS, 4, 1)}
                for stack in (mixed, prefill)]  # fmt: skip
    assert families[0] >= families[1] > {"vector"}


def test_recipes_have_kernels_of_prefill_alone() -> None:
    for phase in ("decode", "mixed"):
        with pytest.raises(InputError, match=f"'cann_recipes_2025' are of prefill here: batch.phase={phase} has none"):
            stack_of("cann_recipes_2025", R1, phase)


def test_a_mixed_pass_gathers_hidden_states() -> None:
    attention = R1.layers[0].attention
    with pytest.raises(InputError, match="latents are gathered in prefill alone"):
        stack_of("cann_2025", R1, "mixed").latents(attention)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["decode", "prefill", "mixed"])
def test_collectives_of_a2_go_node_by_node(phase: str) -> None:
    assert stack_of("cann_2025", R1, phase).algorithm == "hierarchical"
