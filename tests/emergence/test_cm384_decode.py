"""Effects that nobody coded: take the cause away and the effect goes with it (CloudMatrix384 decode)."""

from __future__ import annotations

from functools import cache

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate
from tests.published.runs import run

EVEN, FEW, SHORT = "cm384_decode:decode_even", "cm384_decode:decode_low_even", "cm384_decode:decode_1k"
FOUR = {"model.shapes.layers": "4", "batch.draft_tokens": "0"}


def iteration_ms(name: str, **changes: str) -> float:
    return run(name, **changes).metrics["iteration_ms"]


@cache
def drawn(**changes: str) -> Result:
    """Four layers of the drawn scenario, one of them with experts."""
    settings = {key.replace("__", "."): text for key, text in changes.items()}
    return simulate(load_scenario("cm384_decode:decode_50ms").replace({**FOUR, **settings}))


def test_the_core_split_that_wins_depends_on_the_context() -> None:
    """Long caches want cores for attention; short ones leave the MoE stream as the longer one."""
    assert iteration_ms(EVEN) < 0.9 * iteration_ms(EVEN, knobs__split="12/12")
    assert iteration_ms(SHORT, knobs__split="12/12") < 0.9 * iteration_ms(SHORT)


def test_without_a_split_a_greedy_kernel_starves_the_other_stream() -> None:
    assert iteration_ms(EVEN, knobs__split="none") > 1.1 * iteration_ms(EVEN)


def test_the_second_micro_batch_finds_the_first_ones_weights() -> None:
    """Without L2 it reads them again: at small batch that is most of its time."""
    no_l2 = {"machine__chip__l2__capacity": "1 MB"}
    assert iteration_ms(FEW, knobs__micro_batches="2", **no_l2) > 1.1 * iteration_ms(FEW, knobs__micro_batches="2")
    assert iteration_ms(FEW, **no_l2) == pytest.approx(iteration_ms(FEW), rel=0.01)


def test_skewed_routing_shows_as_waiting_not_as_longer_writes() -> None:
    even, skewed = drawn(routing__skew="none"), drawn(routing__skew="0.3")
    ours, theirs = skewed.measured.communication, even.measured.communication
    assert ours["combine.arrive"].waiting_ps > 1.5 * theirs["combine.arrive"].waiting_ps
    assert ours["dispatch.write"].busy_ps == pytest.approx(theirs["dispatch.write"].busy_ps, rel=0.02)
    assert skewed.metrics["iteration_ms"] > 1.02 * even.metrics["iteration_ms"]


@pytest.mark.slow
def test_uneven_lengths_cost_and_placement_by_length_gives_it_back() -> None:
    even = drawn(routing__skew="none", batch__length_spread="0").metrics["iteration_ms"]
    uneven = drawn(routing__skew="none", batch__length_spread="0.4").metrics["iteration_ms"]
    level = drawn(routing__skew="none", batch__length_spread="0.4", batch__placement="length_aware")
    placed = level.metrics["iteration_ms"]
    assert uneven > 1.04 * even
    assert placed - even < 0.3 * (uneven - even)


@pytest.mark.slow
def test_replicas_of_hot_experts_shorten_the_iteration() -> None:
    layout = {"cards": "160", "layout__expert_parallel": "320", "layout__shared_dies": "32", "routing__skew": "0.3",
              "batch__length_spread": "0"}  # fmt: skip
    in_order, level = drawn(**layout, layout__placement="in_order"), drawn(**layout)
    assert level.metrics["iteration_ms"] < 0.98 * in_order.metrics["iteration_ms"]
    waits = [one.measured.communication["combine.arrive"].waiting_ps for one in (level, in_order)]
    assert waits[0] < 0.5 * waits[1]


def test_writing_and_reading_at_once_helps_only_what_is_bound_by_the_copying_cores() -> None:
    both, push = (run(f"cm384_decode:exchange_{how}").metrics["dispatch_combine_us"] for how in ("both", "push"))
    assert both < 0.92 * push
    few = {"batch__per_card": "2"}
    both, push = (
        run(f"cm384_decode:exchange_{how}", **few).metrics["dispatch_combine_us"] for how in ("both", "push")
    )
    assert both > 0.97 * push  # start-up and latency are what is left


def exchange_us(dies: int, **changes: str) -> dict[str, float]:
    """Dispatch and combine of 128 tokens on each of so many dies."""
    group = {"cards": str(dies // 2), "layout__expert_parallel": str(dies), "layout__head_parallel": "2"}
    metrics = run("cm384_decode:exchange_push", batch__per_card="128", **group, **changes).metrics
    return {name: metrics[f"{name}_us"] for name in ("dispatch", "combine")}


def test_more_dies_send_more_of_their_rows_away_and_wait_longer_for_the_hottest() -> None:
    few, many = exchange_us(18), exchange_us(288)
    assert 120 < few["dispatch"] < many["dispatch"] < 160
    assert few["combine"] < many["combine"] < 200
    drawn_few, drawn_many = (exchange_us(dies, routing__skew="0")["combine"] for dies in (18, 288))
    assert 3 < drawn_few - few["combine"] < drawn_many - many["combine"] < 20


@pytest.mark.slow
def test_two_micro_batches_pay_where_there_is_something_to_wait_for() -> None:
    """The other micro-batch hides waiting for hot experts and long caches; without any it is not worth its cost."""

    def layer_ms(micro_batches: str, **changes: str) -> float:
        settings = {"knobs__micro_batches": micro_batches, "batch__draft_tokens": "1", **changes}
        short, long = (drawn(**settings, model__shapes__layers=layers).metrics["iteration_ms"] for layers in "45")
        return long - short

    even = {"routing__skew": "none", "batch__length_spread": "0"}
    assert 1.03 < layer_ms("1") / layer_ms("2") < 1.15
    assert layer_ms("1", **even) < layer_ms("2", **even)
    assert layer_ms("1", batch__per_card="8", **even) < layer_ms("2", batch__per_card="8", **even)


def test_a_deeper_draft_pays_only_while_it_is_accepted() -> None:
    def tpot_ms(depth: str, acceptance: str) -> float:
        changes = {"batch__draft_tokens": depth, "batch__acceptance": acceptance}
        return run(FEW, **changes).metrics["tpot_ms"]

    assert tpot_ms("2", "0.95") < tpot_ms("1", "0.95")
    assert tpot_ms("3", "0.3") > tpot_ms("1", "0.3")


@pytest.mark.parametrize("name", [EVEN, FEW, "cm384_decode:exchange_both"])
def test_roles_give_the_unfolded_run_to_the_picosecond(name: str) -> None:
    scenario = load_scenario(name).replace({"model.shapes.layers": "4"})
    folded, unfolded = simulate(scenario), simulate(scenario, ranks="all")
    assert folded.header["classes"] <= 2
    assert folded.makespan_ps == unfolded.makespan_ps
