"""Ends of prompts over all ranks, counted by hand: what each rank computes and sends of 3,000 tokens."""

from __future__ import annotations

import pytest

import simulator.collective.algorithms  # noqa: F401 - enters its names
from simulator.model.library import load_transformer
from simulator.parallel.border import Engines, Form
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.forward import Forward
from simulator.parallel.mesh import Mesh
from simulator.parallel.vocabulary import embed_prompts, head_of_prompts
from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.stack.cann import DEPLOYED

R1, LENGTHS = load_transformer("deepseek_r1"), (2500, 400, 100)


def step_of(ranks: int) -> Forward:
    return Forward(Rank({"rank": 0}, {"world": ranks}), R1, Mesh(dp=ranks), DEPLOYED, Engines("sdma", "direct"),
                   ExchangeSettings("all_gather"), False, (), range(1), R1.layers[:1])  # fmt: skip


def sent(step: Forward) -> list[tuple[str, int]]:
    return [(task.name, work.bytes_per_pair) for task, work in step.npu.program.works() if isinstance(work, Collective)]


@pytest.mark.parametrize(("form", "found"), [
    ("own", ("embedding.reduce_scatter", 3000 // 8 * 2 * 7168)), ("all", ("embedding.all_reduce", 3000 * 2 * 7168)),
])  # fmt: skip
def test_sums_of_all_tokens_leave_a_rank_with_its_share_or_with_all(form: Form, found: tuple[str, int]) -> None:
    step = step_of(8)
    embed_prompts(step, LENGTHS, form)
    assert sent(step) == [found]


def test_one_row_of_each_prompt_has_logits() -> None:
    step = step_of(8)
    head_of_prompts(step, LENGTHS)
    assert sent(step) == [("head.gather_tokens", 2 * 7168), ("head.gather_logits", 2 * 129280 // 8)]
    (product,) = (work for _, work in step.npu.program.works() if getattr(work, "kind", "") == "gemm")
    assert product.flops == 2 * 3 * 7168 * 129280 // 8
