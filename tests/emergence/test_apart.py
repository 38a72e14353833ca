"""Attention and experts on different ranks: what several micro-batches in turn gain, and where it vanishes."""

from __future__ import annotations

from functools import cache

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate

BASE = {"machine": "dgx_h200", "model": "qwen3_30b_a3b", "kernels": "vllm", "cards": "8", "layout.tp": "1",
        "layout.dp": "6", "layout.ep": "2", "layout.apart": "2", "model.shapes.layers": "6", "batch.requests": "6144",
        "batch.context": "1024", "knobs.exchange": "all_to_all", "knobs.schedule": "ping_pong",
        "routing.skew": "0"}  # fmt: skip
SLOW = {"machine.fabric.node.link_rate": "100 GB/s"}
FEW = {"batch.requests": "96"}


@cache
def _run(changes: tuple[tuple[str, str], ...]) -> Result:
    return simulate(load_scenario("transformer:decode").replace(dict(changes)))


def run(micro_batches: int, settings: dict[str, str]) -> Result:
    return _run(tuple(sorted({**BASE, **settings, "knobs.micro_batches": str(micro_batches)}.items())))


def ms(micro_batches: int, settings: dict[str, str]) -> float:
    return run(micro_batches, settings).makespan_ps / 1e9


def busy_ms(result: Result, rank: int, block: str) -> float:
    """Of a rank in a block, added up."""
    columns = result.columns
    there = (columns["rank"] == rank) & [name.startswith(block) for name in columns["name"]]
    return float((columns["end_ps"] - columns["start_ps"])[there].sum()) / 1e9


@pytest.mark.parametrize("exchange", ["all_to_all", "put_collect"])
@pytest.mark.parametrize("links", [{}, SLOW], ids=["fast", "slow"])
def test_two_micro_batches_beat_one(exchange: str, links: dict[str, str]) -> None:
    """One is attended while the experts compute the other."""
    way = {"knobs.exchange": exchange, **links}
    assert ms(2, way) < 0.75 * ms(1, way)


def test_one_micro_batch_takes_the_sum_of_its_parts() -> None:
    result = run(1, SLOW)
    parts = [busy_ms(result, rank, block) for rank, block in (
        (0, "attention"), (0, "gate"), (0, "dispatch"), (6, "experts"), (0, "combine"))]
    assert 0.95 < sum(parts) / (result.makespan_ps / 1e9) <= 1.0


def test_three_beat_two_where_the_way_takes_as_long_as_the_work() -> None:
    result = run(1, SLOW)
    attention, experts = busy_ms(result, 0, "attention"), busy_ms(result, 6, "experts")
    assert busy_ms(result, 0, "dispatch") > max(attention, experts)
    slow, fast = (ms(2, links) / ms(3, links) for links in (SLOW, {}))
    assert slow > 1.2
    assert fast < slow


def test_weights_that_are_read_once_more_cost_more_than_the_way_of_few_tokens() -> None:
    assert ms(1, FEW) < ms(2, FEW) < ms(3, FEW)


def test_more_ranks_of_experts_shorten_the_experts() -> None:
    """With the same ranks that attend."""
    few = run(2, {"layout.dp": "4", "cards": "6"})
    many = run(2, {"layout.dp": "4", "layout.ep": "4", "layout.apart": "4"})
    assert busy_ms(many, 4, "experts") < 0.65 * busy_ms(few, 4, "experts")
    assert busy_ms(many, 0, "attention") == pytest.approx(busy_ms(few, 0, "attention"), rel=0.05)
    assert many.makespan_ps < few.makespan_ps


def test_neighbours_that_split_each_expert_share_the_work_and_pay_for_the_border() -> None:
    """Half of all experts' columns instead of all columns of half the experts, and rows are gathered."""
    places, split = run(2, {}), run(2, {"layout.ep": "1"})
    assert busy_ms(split, 6, "experts.gather") > 0
    assert busy_ms(split, 6, "experts") > busy_ms(places, 6, "experts")
