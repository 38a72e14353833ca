"""Routers: the rules of public ones, and draws that repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.serving.routers import ROUTERS, Engines, cache_aware, kv, length_aware, power_of_two

LOADS = st.lists(st.tuples(*[st.integers(0, 200)] * 5), min_size=1, max_size=9)


def engines(waiting: Seq[int], running: Seq[int] = (), queued: Seq[int] = (), cached: Seq[int] = (),
            free: Seq[int] = (), hits: Seq[int] = (), tokens: int = 160, seed: int = 0) -> Engines:  # fmt: skip
    """A view; what is not given is nothing, and much room."""
    zeros = [0] * len(waiting)
    columns = [np.array(list(one) or zeros) for one in (waiting, running, queued, cached)]
    hits = list(hits) or zeros
    return Engines(*columns, np.array(list(free) or [10**6] * len(waiting)), hits.__getitem__, tokens, 16, seed)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ROUTERS)), LOADS, st.integers(0, 10**6), st.integers(0, 5))
def test_every_router_names_an_engine_and_the_same_one_again(name: str, loads: list[tuple[int, ...]], request: int,
                                                             seed: int) -> None:  # fmt: skip
    view = engines(*map(list, zip(*loads, strict=True)), seed=seed)
    chosen = ROUTERS[name](request, view)
    assert type(chosen) is int
    assert 0 <= chosen < len(loads)
    assert chosen == ROUTERS[name](request, view)


@pytest.mark.parametrize("name", ["random", "power_of_two", "kv", "round_robin"])
def test_equal_engines_get_equal_shares(name: str) -> None:
    count = Counter(ROUTERS[name](request, engines([0] * 7, seed=3)) for request in range(7000))
    assert len(count) == 7
    assert all(abs(one - 1000) < 4 * np.sqrt(1000) for one in count.values())
    other = [ROUTERS[name](request, engines([0] * 7, seed=4)) for request in range(50)]
    assert name == "round_robin" or other != [ROUTERS[name](request, engines([0] * 7, seed=3)) for request in range(50)]


def test_of_two_drawn_the_one_with_fewer_requests() -> None:
    view = engines([0, 3, 9], [5, 0, 0])
    count = Counter(power_of_two(request, view) for request in range(3000))
    assert set(count) == {0, 1}, "the most loaded one loses every pair it is drawn in"
    assert abs(count[1] - 2000) < 4 * np.sqrt(2000 / 3), "the least loaded one is in two of three pairs"


def test_two_choices_spread_better_than_one() -> None:
    most = {}
    for name in ("random", "power_of_two"):
        load = np.zeros(64, np.int64)
        for request in range(6400):
            load[ROUTERS[name](request, engines(load.tolist()))] += 1
        most[name] = int(load.max())
    assert most["power_of_two"] <= 104 < most["random"]


def test_cache_aware_follows_the_prefix_until_loads_differ_too_much() -> None:
    assert cache_aware(0, engines([0, 9, 64], hits=[0, 2, 4])) == 2, "64 is not more than the threshold"
    assert cache_aware(0, engines([0, 9, 65], hits=[0, 2, 4])) == 0, "shortest queue"
    assert cache_aware(0, engines([130, 150, 195], hits=[0, 2, 4])) == 2, "195 is not more than 1.5 times 130"
    assert cache_aware(0, engines([130, 150, 196], hits=[0, 2, 4])) == 0
    assert cache_aware(0, engines([7, 5, 5], hits=[3, 0, 0])) == 1, "48 of 160 tokens are no more than 0.3 of them"
    assert cache_aware(0, engines([7, 5, 5], hits=[3, 4, 4])) == 1, "the first of equals"


def test_kv_weighs_what_is_to_be_computed_against_what_is_held() -> None:
    assert kv(0, engines([0, 0], cached=[0, 100], hits=[0, 7])) == 1, "112 tokens saved, 100 more held"
    assert kv(0, engines([0, 0], cached=[0, 120], hits=[0, 7])) == 0
    assert kv(0, engines([0, 0], cached=[0, 120], hits=[0, 7]), overlap_weight=2.0) == 1
    assert kv(0, engines([0, 0], queued=[100, 0], cached=[0, 150])) == 1, "what waits is prefilled, and then held"


def test_length_aware_looks_for_room_then_for_the_shortest_work() -> None:
    assert length_aware(0, engines([0, 9], queued=[900, 800])) == 1
    assert length_aware(0, engines([0, 0], queued=[900, 800], free=[10, 9])) == 0, "10 blocks of 16 tokens hold 160"
    assert length_aware(0, engines([0, 0], queued=[900, 800], free=[0, 9])) == 1, "none has room"
    assert length_aware(0, engines([0, 0, 0], cached=[50, 40, 40])) == 1
