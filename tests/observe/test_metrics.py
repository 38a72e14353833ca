"""Numbers of timelines small enough to add up by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.observe.columns import union
from simulator.observe.metrics import measure
from tests.observe.hand import comm, task, timeline

# rank 0: compute 0-10 and 20-40 (alone it takes 15), dispatch 10-30 after waiting 2, combine 40-44
OVERLAP = [
    task("attention", 0, 10, kind="attention", hbm_bytes=30.0, flops=8.0),
    comm("dispatch", 12, 30, ready=10, after=(0,), wire_bytes=6.0),
    task("experts", 20, 40, solo=15, after=(0,), issued=20, ready=20),
    comm("combine", 40, 44, ready=40, after=(1, 2)),
]


def test_hidden_and_exposed_communication_by_name() -> None:
    seen = measure(timeline(OVERLAP).columns())
    assert seen.makespan_ps == 44
    assert seen.compute_ps == 30
    dispatch, combine, both = seen.communication["dispatch"], seen.communication["combine"], seen.all_communication
    assert (dispatch.busy_ps, dispatch.hidden_ps, dispatch.exposed_ps, dispatch.waiting_ps) == (18, 10, 8, 2)
    assert (combine.busy_ps, combine.hidden_ps, combine.exposed_ps, combine.waiting_ps) == (4, 0, 4, 0)
    assert (both.busy_ps, both.hidden_ps, both.exposed_ps, both.waiting_ps) == (22, 10, 12, 2)
    assert seen.kind_ps == {"all_to_all": 22, "gemm": 20, "attention": 10}


def test_waiting_lasts_until_peers_are_there() -> None:
    seen = measure(timeline([task("a", 0, 10), comm("dispatch", 16, 20, ready=4)]).columns())
    assert seen.communication["dispatch"].waiting_ps == 12


def test_the_account_adds_up_to_the_makespan() -> None:
    seen = measure(timeline(OVERLAP).columns())
    assert seen.account_ps == {"compute": 30, "communication exposed": 12, "other work": 0,
                               "waiting for peers or cores": 2, "host": 0, "idle": 0}


def test_stretch_counts_solo_work_done_beside_communication() -> None:
    stretch = measure(timeline(OVERLAP).columns()).stretch
    assert stretch.overall == 30 / 25
    assert stretch.apart == 1.0
    # of the experts' 20, 10 lie beside dispatch and 10 outside; outside they do 10 of their 15, beside the other 5
    assert stretch.beside_communication == 10 / 5


def test_stretch_apart_from_communication_is_told_apart() -> None:
    stretch = measure(timeline([
        task("a", 0, 20, solo=10),
        comm("dispatch", 20, 40),
        task("b", 20, 60, solo=20),
    ]).columns()).stretch
    assert stretch.apart == 2.0
    # outside, b does 20 / 2.0 = 10 of its 20; beside dispatch the other 10 in 20
    assert stretch.beside_communication == 2.0
    assert measure(timeline([task("a", 0, 20, solo=10)]).columns()).stretch.beside_communication is None


def test_a_task_that_nothing_stretches_is_not_faster_beside_communication() -> None:
    """Others are stretched apart from it, by compute of another stream."""
    stretch = measure(timeline([
        task("a", 0, 20, solo=10),
        comm("dispatch", 20, 40),
        task("b", 20, 60),
    ]).columns()).stretch
    assert stretch.apart == 2.0
    assert stretch.beside_communication == 1.0


def test_ranks_are_averaged_by_multiplicity() -> None:
    seen = measure(timeline([task("a", 0, 10), comm("x", 10, 20)], [task("a", 0, 30)], multiplicity=(1, 3)).columns())
    assert seen.ranks == 4
    assert seen.compute_ps == (10 + 3 * 30) / 4
    assert seen.communication["x"].busy_ps == 10 / 4
    assert seen.account_ps["idle"] == 10 / 4
    assert sum(seen.account_ps.values()) == seen.makespan_ps


def test_compute_on_another_rank_hides_nothing() -> None:
    seen = measure(timeline([comm("x", 0, 10)], [task("a", 0, 10)]).columns())
    assert seen.all_communication.hidden_ps == 0


def test_host_bound_time_is_the_hosts_own() -> None:
    late = timeline([task("a", 3, 10, issued=3), task("b", 15, 20, issued=15, after=(0,))]).columns()
    assert measure(late).host_bound_ps == 3 + 5
    assert measure(late).account_ps["host"] == 8
    blocked = timeline([
        task("a", 0, 10),
        comm("counts", 10, 18, after=(0,)),
        task("b", 20, 25, issued=20, after=(0,), host_after=1),
        task("c", 27, 30, issued=27, after=(2,)),
    ]).columns()
    assert measure(blocked).host_bound_ps == (20 - 18) + (27 - 25)
    in_time = timeline([task("a", 0, 10), task("b", 10, 20, issued=9, after=(0,))]).columns()
    assert measure(in_time).host_bound_ps == 0


def test_what_lacks_the_launch_of_a_collective_is_idle_and_not_host_bound() -> None:
    seen = measure(timeline([
        task("counts", 0, 10),
        comm("tokens", 14, 20, issued=14, ready=14, after=(0,), host_after=0),
        task("experts", 20, 30, issued=16, after=(1,)),
    ]).columns())
    assert seen.host_bound_ps == 0
    assert seen.account_ps["idle"] == 14 - 10


def test_prefetch_is_neither_compute_nor_communication() -> None:
    seen = measure(timeline([task("weights", 0, 10, kind="prefetch", stream="aside"), comm("x", 0, 10)]).columns())
    assert seen.compute_ps == 0
    assert seen.all_communication.exposed_ps == 10


def test_no_rows() -> None:
    seen = measure(timeline().columns())
    assert (seen.makespan_ps, seen.ranks, seen.compute_ps) == (0, 0, 0)


SOME = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8)


@given(SOME, SOME)
def test_unions_and_overlaps_agree_with_counting(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 0] + table[:, 1]

    instants = {instant for start, length in first for instant in range(start, start + length)}
    joined = union(*arrays(first))
    assert joined.lengths().sum() == len(instants)
    assert (joined.start[1:] > joined.end[:-1]).all()
    assert joined.covered(*arrays(second)).tolist() == [
        len(instants & set(range(start, start + length))) for start, length in second]
