"""Micro-batches on their way through stages: how many, and what stages say to each other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import simulator.collective.algorithms  # noqa: F401 - enters its names
from simulator.model.library import load_transformer
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Model
from simulator.parallel.border import Engines
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.forward import Forward
from simulator.parallel.mesh import Mesh
from simulator.parallel.pipeline import Stage, in_flight
from simulator.parallel.tokens import Tokens
from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.stack.sglang import STACK

LLAMA = load_transformer("llama_3_1_8b")
SIXTEEN = [MicroBatch(decodes=((1, 100),) * 16)]
MESH = Mesh(tp=2, pp=2)
GROUPS = {"world": 4, "tensor": 2, "head": 2, "embedding": 2, "pipe": 2}


def stage_of(number: int, model: Model = LLAMA, residual_split: bool = False) -> Stage:
    npu = Rank({"rank": 2 * number}, GROUPS)
    step = Forward(npu, model, MESH, STACK, Engines("nccl"), ExchangeSettings("all_reduce"), residual_split, (),
                   range(1), model.layers[:1])  # fmt: skip
    return Stage(number, step, residual_split)


def messages(stage: Stage, rounds: int) -> list[tuple[str, str, int]]:
    """Kind, name and bytes of all that a stage sends and receives in so many rounds."""
    stage.run(SIXTEEN, 0, 1, rounds, lambda step, *tokens: None, lambda tokens: None)
    return [(work.kind, task.name, work.bytes_per_pair) for task, work in stage.step.npu.program.works()
            if isinstance(work, Collective) and work.kind in ("send", "recv")]


@pytest.mark.parametrize(("requests", "parts", "stages", "sizes"), [
    (16, 1, 4, [[4], [4], [4], [4]]),
    (16, 2, 2, [[4, 4], [4, 4]]),
    (3, 1, 4, [[1], [1], [1]]),  # fewer than there are stages
])  # fmt: skip
def test_as_many_are_on_their_way_as_there_are_stages(requests: int, parts: int, stages: int,
                                                      sizes: Sequence[Sequence[int]]) -> None:
    found = in_flight([MicroBatch(decodes=((1, 100),) * requests)], 0, parts, stages)
    assert [[one.batch.tokens for one in together] for together in found] == sizes


def test_hidden_states_go_on_and_sampled_tokens_go_back() -> None:
    share = 2 * LLAMA.hidden * 8 // 2  # eight tokens over two ranks, BF16
    first, last = messages(stage_of(0), 2), messages(stage_of(1), 2)
    sent = [("send", "pipeline.hidden", share)] * 2
    assert first == [*sent, *[("recv", "pipeline.sampled", 64), sent[0]] * 2]
    assert sorted(last) == sorted([("recv", "pipeline.hidden", share)] * 4 + [("send", "pipeline.sampled", 64)] * 2)


@pytest.mark.parametrize("residual_split", [False, True])
def test_a_stage_gathers_what_it_receives_unless_ranks_hold_shares(residual_split: bool) -> None:
    stage, forms = stage_of(1, residual_split=residual_split), []  # type: tuple[Stage, list[str]]

    def order(_: Forward, *tokens: Tokens) -> None:
        forms.extend(one.form for one in tokens)

    stage.run(SIXTEEN, 0, 1, 1, order, lambda tokens: None)
    names = [task.name for task, _ in stage.step.npu.program.works()]
    assert names.count("pipeline.gather") == (0 if residual_split else 2)
    assert forms == ["own" if residual_split else "all"] * 2
