"""What stands side by side where names do not match: streams, kinds, and the order of kinds."""

from __future__ import annotations

from simulator.observe.columns import Columns
from simulator.observe.side_by_side import MOST_RUNS, Departure, kind_use, orders, stream_use
from tests.observe.hand import comm, task, timeline


def columns(kinds: str, stream: str = "main", times: int = 1) -> Columns:
    """Tasks of these kinds, a letter each, behind each other; beside them a collective on its own stream."""
    names = {"g": "gemm", "a": "attention", "v": "vector"}
    rows = [task(f"{letter}{number}", 10 * number, 10 * number + 9, kind=names[letter], stream=stream)
            for number, letter in enumerate(kinds)]
    return timeline([*rows, comm("exchange", 0, 4)], multiplicity=(times,)).columns()


def test_streams_and_kinds_are_those_of_an_average_rank() -> None:
    (main, exchange) = stream_use(columns("ggav", times=3))
    assert (main.stream, main.tasks, main.work_ps) == ("main", 4, 36)
    assert main.kinds == {"gemm": 18, "attention": 9, "vector": 9}
    assert (exchange.stream, exchange.work_ps) == ("comm", 4)
    uses = {one.kind: one for one in kind_use(columns("ggav", times=3))}
    assert (uses["gemm"].tasks, uses["gemm"].work_ps, uses["gemm"].communication) == (2, 18, False)
    assert uses["all_to_all"].communication


def test_the_same_order_is_alike_under_other_names_of_streams() -> None:
    first, second = orders(columns("gavg"), columns("ggaavvg", stream="7"))
    assert (first.streams, first.runs, first.alike, list(first.departures)) == (("main", "7"), (4, 4), 1.0, [])
    assert second.streams == ("comm", "comm")


def test_what_stands_elsewhere_is_named_and_counted() -> None:
    order, _ = orders(columns("gavgavg"), columns("gvgvg"))
    assert order.alike == 2 * 5 / (7 + 5)
    assert list(order.departures) == [Departure(("attention",), (), 2)]
    order, _ = orders(columns("gag"), columns("gvg"))
    assert list(order.departures) == [Departure(("attention",), ("vector",), 1)]


def test_a_stream_without_a_counterpart_is_left_out() -> None:
    one = timeline([task("g", 0, 9)]).columns()
    other = timeline([task("g", 0, 9, stream="7"), task("g", 0, 1, stream="8")]).columns()
    assert [order.streams for order in orders(one, other)] == [("main", "7")]
    assert orders(one, timeline([comm("c", 0, 9)]).columns()) == []


def test_long_streams_are_looked_at_from_their_beginning() -> None:
    order, *_ = orders(columns("gv" * MOST_RUNS), columns("gv" * MOST_RUNS))
    assert (order.runs, order.alike) == ((MOST_RUNS, MOST_RUNS), 1.0)
