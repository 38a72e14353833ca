"""Times of kernels and collectives by name, worked out by hand."""

from __future__ import annotations

from simulator.observe.columns import select
from simulator.observe.kernel_times import Spread, kernel_times
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.observe.hand import comm, task, timeline


def test_times_are_over_all_ranks_and_layers_and_waiting_is_apart() -> None:
    one = [task("gemm", 0, 10, layer=0), task("gemm", 10, 40, layer=1), comm("sum", 45, 50, ready=40)]
    other = [task("gemm", 0, 20, layer=0), task("gemm", 20, 40, layer=1), comm("sum", 45, 55, ready=45)]
    columns = timeline(one, other).columns()
    gemm, total = kernel_times(columns)
    assert (gemm.name, gemm.per_rank, gemm.work) == ("gemm", 2.0, Spread(20.0, 10, 30))
    assert (total.name, total.work, total.waiting) == ("sum", Spread(7.5, 5, 10), Spread(2.5, 0, 5))


def test_a_row_counts_for_all_ranks_that_it_stands_for() -> None:
    scenario = load_scenario("a3_prefill:dp").replace({"model.shapes.layers": "4"})
    folded, whole = (kernel_times(simulate(scenario, ranks=ranks).columns) for ranks in ("roles", "all"))
    assert [(one.name, one.per_rank, one.work.longest) for one in folded] == [
        (one.name, one.per_rank, one.work.longest) for one in whole]


def test_nothing_recorded_is_nothing_told() -> None:
    columns = timeline([task("gemm", 0, 10)]).columns()
    assert kernel_times(select(columns, columns["rank"] < 0)) == []
