"""Linear attention takes the same whatever the context in decode, grows with tokens in prefill, and keeps one state for
each request; models without it are as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.micro_batch import MicroBatch
from simulator.parallel.ledger import STATES
from simulator.spec.load import load_machine
from simulator.stack.stacks import Kernels, stack_of
from simulator.study.scenario import Scenario
from simulator.study.simulate import simulate
from simulator.study.step import StepWords, memory_of, step_of

MODEL = load_transformer("qwen3_5_397b")
LINEAR = MODEL.layers[0].attention
TP = 8
STATE_BYTES = 64 // TP * 128 * 128 * 4  # of a request, in one layer on one rank
CONV_BYTES = 3 * 12_288 // TP * 2


def kernels(batch: MicroBatch, stack: str = "vllm") -> Kernels:
    """Of one linear layer on one rank."""
    of = stack_of(stack, MODEL, "mixed", ("bf16", "fp8"))
    return [*of.inputs(MODEL, LINEAR, batch.tokens, TP, False), *of.attend(MODEL, LINEAR, batch, TP, 1),
            *of.output(MODEL, LINEAR, batch.tokens, TP)]  # fmt: skip


def moved(found: Kernels) -> float:
    """Bytes of all kernels, through HBM or L2, without those of weights."""
    return sum(work.hbm_bytes - work.weight_bytes + work.cached_bytes for _, work in found)


def step(phase: str = "decode", model: str = "qwen3_5_397b", stack: str = "vllm", **settings: str) -> Scenario:
    """A step of four layers on a node of H200."""
    given = {"model.shapes.layers": "4", **{name.replace("__", "."): value for name, value in settings.items()}}
    return step_of(StepWords(model, "dgx_h200", stack, f"tp={TP}", phase, given))


@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm"])
def test_decode_is_the_same_whatever_the_context(stack: str) -> None:
    short, long = (kernels(MicroBatch(0, ((1, held),) * 8), stack) for held in (16, 200_000))
    assert short == long
    core = dict(short)["attention.core"]
    assert core.streamed_bytes == 2 * 8 * STATE_BYTES, "each state is read once and written once"


def test_decode_grows_by_the_state_of_each_request() -> None:
    """Even where activations stay in L2, states come from HBM."""
    one, two = (sum(work.streamed_bytes for _, work in kernels(MicroBatch(0, ((1, 4096),) * count)))
                for count in (1, 2))
    assert two == 2 * one == 4 * (STATE_BYTES + CONV_BYTES)


def test_a_prompt_is_linear_in_its_tokens() -> None:
    """In whole chunks, however many tokens are before them."""
    sizes = [64, 4096, 8192, 16384]
    first, *more = (moved(kernels(MicroBatch(0, (), ((new, 0),), 1))) for new in sizes)
    per_chunk = (more[-1] - first) / (16384 // 64 - 1)
    assert more == pytest.approx([first + per_chunk * (new // 64 - 1) for new in sizes[1:]], rel=1e-9)
    assert kernels(MicroBatch(0, (), ((4096, 0),), 1)) == kernels(MicroBatch(0, (), ((4096, 100_000),), 1))


def test_chunks_of_one_prompt_take_turns_and_those_of_several_do_not() -> None:
    def turns(prompts: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Thread blocks, and chunks of the busiest."""
        work = dict(kernels(MicroBatch(0, (), tuple(prompts), 1)))["attention.chunk_states"]
        return len(work.rows), max(work.rows)

    blocks = 64 // TP * 2  # a head's 128 columns are two blocks
    assert turns([(8192, 0)]) == (blocks, 128)
    assert turns([(4096, 0)] * 2) == (2 * blocks, 64)
    assert turns([(65, 0)]) == (blocks, 2)


def test_heads_are_shared_out_over_ranks() -> None:
    of = stack_of("vllm", MODEL, "decode", ("bf16",))
    widths = [dict(of.inputs(MODEL, LINEAR, 1, tp, False))["attention.qkvz"].n for tp in (1, 8)]
    assert widths == [2 * 16 * 128 + 2 * 64 * 128, (2 * 16 * 128 + 2 * 64 * 128) // 8]
    with pytest.raises(InputError, match="heads of keys of linear attention"):
        memory_of(step_of(StepWords("qwen3_5_397b", "gb200_nvl72", "vllm", "tp=32", "decode", {})))


def states(scenario: Scenario) -> float:
    return sum(item.size_bytes for item in memory_of(scenario).items if item.name.startswith(STATES))


def test_the_ledger_has_a_state_for_each_request() -> None:
    assert states(step(batch__requests="1")) == 3 * (STATE_BYTES + CONV_BYTES)
    assert states(step(batch__requests="64", batch__context="131072")) == 64 * states(step(batch__requests="1"))
    halved = states(step(batch__requests="1", knobs__precision="state=bf16"))
    assert halved == 3 * (STATE_BYTES / 2 + CONV_BYTES)
    assert states(step(model="qwen3_235b")) == 0.0


@pytest.mark.parametrize(("phase", "stack"), [("decode", "vllm"), ("prefill", "vllm"), ("mixed", "vllm"),
                                              ("decode", "sglang"), ("prefill", "trtllm")])
def test_steps_run(phase: str, stack: str) -> None:
    result = simulate(step(phase, stack=stack, batch__requests="4", batch__context="2048"))
    assert result.makespan_ps > 0
    names = {task.name for program in result.world.programs for task, _ in program.works()}
    assert {"attention.qkvz", "attention.qkv"} <= names, "linear layers, and full ones between them"


def test_longer_contexts_cost_a_step_its_full_layers_alone() -> None:
    def seconds(model: str, context: int, **more: str) -> float:
        return simulate(step(model=model, batch__requests="32", batch__context=str(context), **more)).makespan_ps / 1e12

    def slope(**more: str) -> float:
        return seconds("qwen3_5_397b", 65536, **more) - seconds("qwen3_5_397b", 8192, **more)

    whole: dict[str, Any] = {"model.shapes.full_every": "1"}
    assert 4 * slope() == pytest.approx(slope(**whole), rel=0.02)


def test_stacks_without_its_kernels_say_so() -> None:
    machine = load_machine("atlas_a3")
    for generation in machine.kernels:
        with pytest.raises(InputError, match="has linear attention"):
            stack_of(generation, MODEL, "prefill", machine.chip.dtypes)


def test_context_parallelism_is_refused() -> None:
    with pytest.raises(InputError, match="cp=2: the linear attention"):
        memory_of(step_of(StepWords("qwen3_5_397b", "dgx_h200", "vllm", "tp=4,cp=2", "decode", {})))
