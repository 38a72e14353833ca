"""How late the tasks of a run are against the same run without a fault, by hand-made columns."""

from __future__ import annotations

from simulator import np
from simulator.observe.columns import Columns
from simulator.observe.lateness import Felt, lateness


def columns(*rows: tuple[int, int, str, str, int]) -> Columns:
    """(rank, task, name, stream, end in ps), sorted."""
    rank, task, name, stream, end = zip(*rows, strict=True)
    return {"rank": np.array(rank), "task": np.array(task), "name": np.array(name, object),
            "stream": np.array(stream, object), "end_ps": np.array(end),
            "engine": np.array(["cube"] * len(rows), object)}


BEFORE = columns((0, 0, "gemm", "main", 10), (0, 1, "gather", "main", 100), (0, 2, "norm", "main", 120))


def test_two_ranks_for_whom_one_stood_and_one_of_them_is_late() -> None:
    """The worked example: 30 ps more in the gemm of rank 1, of which the gather waits 30 ps."""
    after = columns((0, 0, "gemm", "main", 10), (0, 1, "gather", "main", 130), (0, 2, "norm", "main", 150),
                    (1, 0, "gemm", "main", 40), (1, 1, "gather", "main", 130), (1, 2, "norm", "main", 150))  # fmt: skip
    found = lateness(BEFORE, after, (0, 0), {1}, 30)
    assert found.felt == Felt(10, 1, "gemm")
    assert found.noticed == Felt(100, 0, "gather")
    assert (found.as_before_ps, found.moved, found.tasks) == (130, 5, 6)


def test_what_is_caught_up_is_as_before_when_it_was_late_last() -> None:
    after = columns((0, 0, "gemm", "main", 50), (0, 1, "gather", "main", 101), (0, 2, "norm", "main", 120))
    found = lateness(BEFORE, after, (0,), {0}, 0)
    assert (found.felt, found.noticed) == (Felt(10, 0, "gemm"), None)
    assert found.as_before_ps == 101


def test_where_nothing_moves_nothing_is_felt() -> None:
    found = lateness(BEFORE, BEFORE, (0,), {0}, 0)
    assert (found.felt, found.noticed, found.as_before_ps, found.moved, found.tasks) == (None, None, 0, 0, 3)
