"""Laws of cores: exclusive, in order of priority and arrival, never starved, never lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.cores import Cores

MIXED = (("cube", 1), ("vector", 2))


class Log:
    """Records what was granted, by name."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int]] = []

    def __call__(self, name: str):  # type: ignore[no-untyped-def]
        return lambda units: self.got.append((name, units))


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_request_that_fits_is_granted_before_acquire_returns(log: Log) -> None:
    cores = Cores({"cube": 24, "vector": 48})
    cores.acquire(MIXED, 1, 100, 0, log("a"))
    assert log.got == [("a", 24)]
    assert cores.free == {"cube": 0, "vector": 0}


def test_it_takes_what_is_free_between_at_least_and_want(log: Log) -> None:
    cores = Cores({"cube": 24, "vector": 48})
    cores.acquire((("vector", 1),), 40, 40, 0, log("vector"))
    cores.acquire(MIXED, 2, 24, 0, log("mixed"))
    assert log.got == [("vector", 40), ("mixed", 4)]
    assert cores.free == {"cube": 20, "vector": 0}


def test_the_worked_example_of_the_module(log: Log) -> None:
    cores, cube = Cores({"cube": 4}), (("cube", 1),)
    cores.acquire(cube, 3, 3, 0, log("a"))
    cores.acquire(cube, 2, 3, 0, log("b"))
    cores.acquire(cube, 1, 4, 0, log("c"))
    assert log.got == [("a", 3)]
    assert len(cores.queue) == 2
    cores.release(cube, 3)
    assert log.got == [("a", 3), ("b", 3), ("c", 1)]


def test_priority_comes_before_arrival(log: Log) -> None:
    cores, sdma = Cores({"sdma": 1}), (("sdma", 1),)
    for name, priority in [("first", 5), ("low", 5), ("high", 1), ("high too", 1)]:
        cores.acquire(sdma, 1, 1, priority, log(name))
    for _ in range(4):
        cores.release(sdma, 1)
    assert [name for name, _ in log.got] == ["first", "high", "high too", "low"]


def test_a_higher_priority_passes_a_blocked_one_at_once(log: Log) -> None:
    cores, cube = Cores({"cube": 4}), (("cube", 1),)
    cores.acquire(cube, 2, 2, 0, log("runs"))
    cores.acquire(cube, 4, 4, 5, log("big"))
    cores.acquire(cube, 2, 2, 1, log("urgent"))
    assert log.got == [("runs", 2), ("urgent", 2)]


def test_passing_a_blocked_one_only_without_a_pool_in_common(log: Log) -> None:
    cores = Cores({"cube": 2, "vector": 2, "sdma": 1})
    cores.acquire((("cube", 1),), 2, 2, 0, log("cube"))
    cores.acquire((("cube", 1), ("vector", 1)), 1, 1, 0, log("mixed"))
    cores.acquire((("vector", 1),), 1, 1, 0, log("vector"))
    cores.acquire((("sdma", 1),), 1, 1, 0, log("sdma"))
    assert log.got == [("cube", 2), ("sdma", 1)]
    cores.release((("cube", 1),), 2)
    assert log.got[2:] == [("mixed", 1), ("vector", 1)]


def test_a_request_for_nothing_waits_for_nobody(log: Log) -> None:
    cores = Cores({"cube": 1})
    cores.acquire((("cube", 1),), 1, 1, 0, log("a"))
    cores.acquire((("cube", 1),), 1, 1, 0, log("b"))
    cores.acquire((), 1, 7, 0, log("none"))
    assert log.got == [("a", 1), ("none", 7)]


def test_callbacks_may_acquire_and_release(log: Log) -> None:
    cores, cube = Cores({"cube": 1}), (("cube", 1),)

    def again(units: int) -> None:
        log.got.append(("again", units))
        cores.release(cube, units)

    cores.acquire(cube, 1, 1, 0, log("a"))
    for _ in range(3):
        cores.acquire(cube, 1, 1, 0, again)
    cores.release(cube, 1)
    assert log.got == [("a", 1)] + [("again", 1)] * 3
    assert cores.free == {"cube": 1}


def test_a_pool_of_which_none_is_wanted_may_be_empty(log: Log) -> None:
    cores = Cores({"cube": 2, "vector": 1})
    cores.acquire((("cube", 1), ("vector", 1)), 1, 1, 0, log("all vector cores"))
    assert cores.take((("vector", 0), ("cube", 1)), 1, 5) == 1


@pytest.mark.parametrize(("need", "at_least", "want", "text"), [
    ((("cube", 1),), 25, 30, "'cube'.* 25 .*24"),
    ((("cube", 1), ("vector", 2)), 24, 24, "'vector'.* 48 .*40"),
    ((("tensor", 1),), 1, 1, "'tensor'.*cube, vector"),
    ((("cube", -1),), 1, 1, "negative"),
    ((("cube", 1), ("cube", 1)), 1, 1, "twice"),
    ((("cube", 1),), 0, 1, "at_least 0"),
    ((("cube", 1),), 3, 2, "want 2"),
])  # fmt: skip
def test_requests_that_could_never_start(need, at_least: int, want: int, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=text):
        Cores({"cube": 24, "vector": 40}).acquire(need, at_least, want, 0, lambda _: None)


def test_more_cannot_come_back_than_was_taken() -> None:
    cores = Cores({"cube": 4})
    with pytest.raises(ValueError, match="cube"):
        cores.release((("cube", 1),), 1)
    assert cores.free == {"cube": 4}


def test_no_negative_pool() -> None:
    with pytest.raises(ValueError, match="cube"):
        Cores({"cube": -1})


pools = st.sampled_from(["cube", "vector", "sdma"])
asks = st.tuples(
    st.dictionaries(pools, st.integers(1, 2), min_size=1), st.integers(1, 2), st.integers(0, 4), st.integers(0, 2)
)


@settings(deadline=None)
@given(st.lists(asks | st.none(), max_size=40))
def test_nothing_is_lost_and_the_head_of_the_queue_is_never_passed(steps: list) -> None:  # type: ignore[type-arg]
    """Random requests and releases (None): slots add up, and whoever waits first for a pool is served first."""
    cores = Cores({"cube": 4, "vector": 4, "sdma": 4})
    held: list[tuple[tuple[tuple[str, int], ...], int]] = []
    waiting: dict[tuple[int, int], tuple[tuple[str, int], ...]] = {}
    for number, step in enumerate([*steps, *[None] * len(steps)]):
        if step is None:
            if held:
                cores.release(*held.pop(0))
        else:
            need, key = tuple(step[0].items()), (step[3], number)

            def granted(units: int, need=need, key=key) -> None:  # type: ignore[no-untyped-def]
                del waiting[key]
                ahead = [waiting[other] for other in waiting if other < key]
                assert not any({p for p, _ in need} & {p for p, _ in other} for other in ahead)
                held.append((need, units))

            waiting[key] = need
            cores.acquire(need, step[1], step[1] + step[2], step[3], granted)
        for pool, count in cores.slots.items():
            assert cores.free[pool] + sum(u * dict(n).get(pool, 0) for n, u in held) == count
        assert len(cores.queue) == len(waiting)
    assert not waiting, "everybody is served in the end"
