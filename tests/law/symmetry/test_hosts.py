"""One rank with its cards stands for all where all do the same, to the last picosecond; else each for itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from simulator.parallel.mesh import Mesh
from simulator.spec.faults import fault_of
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from simulator.study.simulate import Result, simulate

EVEN = {"routing.skew": "none"}
LOW, NORMAL = "deepep_ll", "deepep_normal"


def on(cards: int, requests: int, phase: str = "decode", **changes: str) -> Scenario:
    """So many requests of 1K tokens on every card of DeepSeek's deployment, with even routing."""
    scenario = load_scenario(f"deepseek_h800:{phase}")
    batch: Any = scenario.batch.model_copy(update={"requests": requests * cards, "context": 1024})
    settings = {**EVEN, **{key.replace("__", "."): text for key, text in changes.items()}}
    mesh = Mesh(dp=cards, ep=cards)
    return scenario.variant(cards=cards, layout=mesh, batch=batch, expected=()).replace(
        {"machine.chip.hbm.capacity": "900 GB"} | settings)


def rows(result: Result, rank: int) -> Counter[tuple[Any, ...]]:
    """What a rank does, by its program and its cards."""
    mine = result.columns["rank"] == rank
    columns = [result.columns[name][mine].tolist() for name in ("name", "stream", "kind", "layer", "ready_ps",
                                                                "start_ps", "end_ps", "bound_by")]  # fmt: skip
    return Counter(zip(*columns, strict=True))


def assert_same(scenario: Scenario, ranks: range) -> None:
    folded, whole = simulate(scenario), simulate(scenario, ranks="all")
    assert (folded.header["classes"], whole.header["classes"]) == (1, scenario.cards)
    assert folded.makespan_ps == whole.makespan_ps
    assert folded.metrics == pytest.approx(whole.metrics, rel=1e-12)
    stands = rows(folded, 0)
    assert all(rows(whole, rank) == stands for rank in ranks)


@pytest.mark.parametrize("scenario", [
    on(16, 4),
    on(16, 3),  # micro-batches of two sizes, rows of which there are fewer than places
    on(32, 20),
    on(16, 8, knobs__schedule="one_stream"),
    on(16, 40, knobs__dispatch_dtype="bf16"),
    on(8, 16),  # one node: nothing crosses the cards
    on(16, 4, machine__nic__per_die="2", machine__nic__pcie="30 GB/s"),  # cards that share what is behind them
    on(16, 4, machine__nic__goodput="2 GB/s", machine__nic__standing_queue="10 kB"),
    on(16, 2, "prefill"),
    on(32, 1, "prefill"),
    on(16, 2, "prefill", knobs__schedule="one_stream", knobs__exchange_sms="8"),
    on(16, 4, knobs__exchange=NORMAL),
], ids=lambda scenario: " ".join(scenario.changes.values()))  # fmt: skip
def test_one_rank_with_its_cards_is_all_of_them(scenario: Scenario) -> None:
    assert_same(scenario, range(scenario.cards))


@pytest.mark.parametrize("scenario", [
    on(16, 4, routing__skew="0.0"),  # rows are drawn for every rank
    on(16, 4, knobs__exchange="generic_proxy"),  # proxies send rows in an order by chance
    on(16, 4, machine__fabric__slow="die 3 to cluster 0: 0.5"),
    on(16, 4).variant(faults=(fault_of("10 us: rank 3 hbm 0.5"),)),
    on(16, 4, launch_jitter="0.1"),
], ids=["drawn", "proxies", "a slow link", "a rate that changes", "jitter"])  # fmt: skip
def test_ranks_that_differ_are_simulated_one_by_one(scenario: Scenario) -> None:
    folded = simulate(scenario)
    assert folded.header["classes"] == scenario.cards
    assert folded.makespan_ps == simulate(scenario, ranks="all").makespan_ps


def test_a_group_with_more_requests_is_another_rank() -> None:
    """15 ranks of 4 requests, and one of 5."""
    scenario = on(16, 4)
    batch: Any = scenario.batch
    uneven = scenario.variant(batch=batch.model_copy(update={"requests": 65}))
    assert simulate(uneven).header["classes"] == 16
