"""Two timelines task by task: what is the same moves nothing, and what differs adds up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.observe import align as aligning
from simulator.observe.align import Alignment, waterfall
from simulator.observe.columns import Columns
from simulator.observe.critical import critical_path
from tests.observe.hand import comm, task, timeline


def layers(*lengths: int, dispatch: int = 5, ready: int = 0, **given: Any) -> list[dict[str, Any]]:
    """A layer for each length: attention that long, then a dispatch; ready: how long before it starts that is."""
    rows: list[dict[str, Any]] = []
    now = 0
    for layer, length in enumerate(lengths):
        number = len(rows)
        before = (number - 1,) if number else ()
        rows.append(task("attention", now, now + length, kind="attention", layer=layer, after=before, **given))
        now += length
        until = now + ready + dispatch
        rows.append(comm("dispatch", now + ready, until, ready=now, layer=layer, after=(number,), **given))
        now = until
    return rows


def columns(*ranks: list[dict[str, Any]], multiplicity: tuple[int, ...] = ()) -> Columns:
    return timeline(*ranks, multiplicity=multiplicity).columns()


def align(a: Columns, b: Columns, leaders: tuple[list[int], list[int]] | None = None) -> Alignment:
    """Every rank stands for itself where nothing else is said."""
    own = sorted(set(a["rank"].tolist())), sorted(set(b["rank"].tolist()))
    return aligning.align(a, b, leaders or own)


def test_twice_the_same_moves_nothing() -> None:
    one = columns(layers(10, 20), layers(11, 20))
    found = align(one, columns(layers(10, 20), layers(11, 20)))
    assert not found.moved
    assert (found.aligned, found.same, found.changed, found.shifted) == (8, 8, 0, 0)
    assert not found.changes
    assert not found.unpaired
    assert all(one.difference_ps == 0 for one in waterfall(critical_path(one), critical_path(one)))


def test_what_is_longer_is_told_from_what_is_later() -> None:
    found = align(columns(layers(10, 20)), columns(layers(14, 20)))
    assert (found.aligned, found.same, found.changed, found.shifted) == (4, 0, 1, 3)
    (only,) = found.changes
    assert (only.name, only.tasks, only.work_ps, only.waiting_ps) == ("attention", (2, 2), (30, 34), (0, 0))
    assert only.difference_ps == 4


def test_waiting_longer_is_a_change() -> None:
    (only,) = align(columns(layers(10)), columns(layers(10, ready=3))).changes
    assert (only.name, only.work_ps, only.waiting_ps, only.difference_ps) == ("dispatch", (5, 5), (0, 3), 3)


def test_micro_batches_and_layers_that_one_side_has_alone_have_no_counterpart() -> None:
    halves = [task("attention", begin, begin + 6, kind="attention", layer=0, micro_batch=half)
              for half, begin in enumerate((0, 6))]
    found = align(columns(layers(10)), columns(halves))
    assert found.aligned == 0
    assert {one.name: (one.tasks, one.work_ps) for one in found.unpaired} == {
        "attention": ((1, 2), (10, 12)), "dispatch": ((1, 0), (5, 0))}


def test_half_a_batch_is_no_counterpart_of_a_whole_one() -> None:
    def norms(*batches: int) -> list[dict[str, Any]]:
        return [task("norm", 9 * one, 9 * one + 9 // len(batches), layer=0, micro_batch=one) for one in batches]

    (only,) = align(columns(norms(0, 1)), columns(norms(0))).unpaired
    assert (only.tasks, only.work_ps) == ((2, 1), (8, 9))
    assert align(columns(norms(0, 1)), columns(norms(0, 1))).same == 2


def test_the_second_of_a_name_is_beside_the_second() -> None:
    rows = [task("norm", 0, 3), task("norm", 3, 10)]
    found = align(columns(rows), columns([task("norm", 0, 3), task("norm", 3, 12)]))
    assert (found.same, found.changed) == (1, 1)


def test_a_rank_stands_for_those_that_it_was_recorded_for() -> None:
    roles = columns(layers(10), layers(10, 20), multiplicity=(2, 2))
    every = columns(layers(10), layers(10, 20), layers(10), layers(10, 20))
    folded, own = [0, 1, 0, 1], [0, 1, 2, 3]
    for a, b, leaders in ((roles, every, (folded, own)), (every, roles, (own, folded))):
        found = align(a, b, leaders)
        assert not found.moved
        assert found.aligned == 12
    later = columns(layers(10), layers(10, 20), layers(16), layers(10, 20))
    (only,) = align(roles, later, (folded, own)).changes
    assert (only.tasks, only.work_ps) == ((1.5, 1.5), ((10 + 30 + 10 + 30) / 4, (10 + 30 + 16 + 30) / 4))


def test_the_last_rank_stands_for_those_that_a_smaller_run_lacks() -> None:
    found = align(columns(layers(10)), columns(layers(10), layers(12)))
    assert (found.aligned, found.same, found.changed) == (4, 2, 1)


def test_an_empty_timeline_has_no_tasks_in_common() -> None:
    found = align(columns(), columns(layers(10)))
    assert (found.aligned, len(found.unpaired)) == (0, 2)
    assert not align(columns(), columns()).moved


LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, LENGTHS, st.integers(0, 9))
def test_the_waterfall_adds_up_to_the_difference(a: list[int], b: list[int], ready: int) -> None:
    paths = [critical_path(columns(rows, rows)) for rows in (layers(*a), layers(*b, ready=ready, dispatch=7))]
    steps = waterfall(*paths)
    assert sum(one.difference_ps for one in steps) == paths[1].makespan_ps - paths[0].makespan_ps
    assert [sum(one.a_ps for one in steps), sum(one.b_ps for one in steps)] == [one.makespan_ps for one in paths]
    gaps = [abs(one.difference_ps) for one in steps]
    assert gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize(("kind", "bound", "times"), [
    ("attention", "compute", (30, 34)), ("all_to_all", "link", (10, 10))])
def test_the_waterfall_names_what_bounds(kind: str, bound: str, times: tuple[int, int]) -> None:
    paths = [critical_path(columns(layers(*lengths))) for lengths in ((10, 20), (14, 20))]
    (step,) = (one for one in waterfall(*paths) if (one.kind, one.bound_by) == (kind, bound))
    assert (step.a_ps, step.b_ps) == times
