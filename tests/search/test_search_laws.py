"""A search finds the same whatever the order, the executor and what was kept; what it drops would not be missed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest

from simulator.search import search as searching
from simulator.search.deployment import Ask, Deployment, Engine, Found
from simulator.search.front import Seen, best, front
from simulator.search.kept import Kept
from simulator.search.roofline import Corner, roofline_of
from simulator.search.search import Executor, Outcome, search
from simulator.search.sheet import Sheet
from simulator.search.space import Axes, Family, Space, axes_of, space_of
from simulator.study.processes import processes, serial

LITTLE: tuple[Ask, Axes] = (
    Ask("llama_3_1_8b", "dgx_h100", 1, 8, 1024, 256, tpot_ms=20),
    {"stack": ("vllm",), "tp": ("1", "2"), "pp": ("1",), "cards": ("1", "2"), "tokens": ("2048", "8192"),
     "precision": ("", "kv=fp8")})  # fmt: skip
WIDE: tuple[Ask, Axes] = (
    Ask("llama_3_1_8b", "dgx_h100", 1, 8, 1024, 256, tpot_ms=20),
    {"mode": ("together",), "cards": ("1", "2", "8"), "pp": ("1", "2"), "tokens": ("8192",),
     "stack": ("vllm", "trtllm"), "precision": ("", "kv=fp8", "all=fp8")})  # fmt: skip
ROOFLINE = cache(roofline_of)
Work = Callable[[Family], list[Sheet]]


class Answer(NamedTuple):
    """What a user sees: front, best families, and how many layouts were refused and why."""

    front: list[Found]
    top: list[Found]
    refused: dict[str, int]


def answer(outcome: Outcome, count: int = 20) -> Answer:
    return Answer(front(outcome.points), best(outcome.points, "tok_s_per_gpu", count), dict(outcome.refused))


def searched(asked: tuple[Ask, Axes], execute: Executor = serial, kept: Kept | None = None,
             order: Callable[[Sequence[Family]], Sequence[Family]] = tuple) -> Outcome:
    ask, changes = asked
    space = space_of(ask, axes_of(ask, changes), changes)
    return search(ask, space._replace(families=tuple(order(space.families))), execute, kept or Kept(None, pytest.fail))


@cache
def as_it_is() -> Answer:
    found = answer(searched(LITTLE))
    assert len(found.front) > 1
    assert len(found.top) > 3
    return found


def lately(seed: int, work: Work, those: Iterable[Family]) -> Iterator[tuple[Family, list[Sheet]]]:
    """Takes three at a time, and gives what is done in an order by chance."""
    draw, taken = random.Random(seed), list[Family]()
    for one in those:
        taken.append(one)
        if len(taken) == 3:
            chosen = taken.pop(draw.randrange(2))
            yield chosen, work(chosen)
    draw.shuffle(taken)
    for one in taken:
        yield one, work(one)


# --- the same ---------------------------------------------------------------------------------------------------------


def test_the_order_of_families_makes_no_difference() -> None:
    assert answer(searched(LITTLE, order=lambda some: some[::-1])) == as_it_is()


def test_the_order_of_results_makes_no_difference() -> None:
    assert answer(searched(LITTLE, partial(lately, 1))) == as_it_is()


def test_two_processes_find_the_same() -> None:
    assert answer(searched(LITTLE, partial(processes, jobs=2))) == as_it_is()


def test_what_was_kept_is_not_simulated_again(tmp_path: Path) -> None:
    """Down to the last bit of each number; from the folder, and from what a search of fewer families has left there."""
    ask, changes = LITTLE
    some = (ask, {**changes, "cards": ("2",)})
    with Kept(tmp_path, pytest.fail) as kept:
        searched(some, kept=kept)
    with Kept(tmp_path, pytest.fail) as kept:
        half = searched(LITTLE, kept=kept)
    with Kept(tmp_path, pytest.fail) as kept:
        again = searched(LITTLE, never, kept)
    assert answer(half) == answer(again) == as_it_is()
    assert 0 < half.kept < again.kept == len(again.sheets)


def never(work: Work, those: Iterable[Family]) -> Iterator[tuple[Family, list[Sheet]]]:
    yield from ((pytest.fail(f"{one} was known"), []) for one in those)


# --- what is dropped --------------------------------------------------------------------------------------------------


def slower(seed: int, ask: Ask, _: Work, those: Iterable[Family]) -> Iterator[tuple[Family, list[Sheet]]]:
    """Steps that take some time longer than their rooflines say, each family another one by chance."""
    for family in those:
        engine = family.engines[0]
        roofline, times = ROOFLINE(ask, engine, "decode"), 1.0 + random.Random(f"{seed} {engine.words}").random()
        chunk_s = times * ask.new_tokens * roofline.token_flops / (roofline.flops_per_s * roofline.ranks)
        decode = tuple((count, times * roofline.step_s(count)) for count in (1, 2, 4, 8, 16, 32, 64, 128, 256)
                       if count <= roofline.most)
        yield family, [Sheet(engine, roofline.cards, 1, 1.0, 10**6, 0.0, decode, (chunk_s, chunk_s))]


def with_times(seed: int, keep: int) -> Outcome:
    """Of a wide space, with families dropped that so many others beat."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(searching, "KEEP", keep)
        monkeypatch.setattr(searching, "roofline_of", ROOFLINE)
        return searched(WIDE, partial(slower, seed, WIDE[0]))


@pytest.mark.parametrize("seed", range(2))
def test_what_is_dropped_is_neither_on_the_front_nor_among_the_best(seed: int) -> None:
    whole = with_times(seed, 10**9)
    for keep in (1, 2, 5):
        less = with_times(seed, keep)
        assert less.dropped > 0
        assert less.dropped + len(less.sheets) == len(whole.sheets)
        assert front(less.points) == front(whole.points)
        for objective in ("tok_s_per_gpu", "tok_s_per_user"):
            assert best(less.points, objective, keep) == best(whole.points, objective, keep)


def test_the_fewer_are_kept_the_more_is_dropped() -> None:
    dropped = [with_times(0, keep).dropped for keep in (1, 2, 5, 10**9)]
    assert dropped == sorted(dropped, reverse=True)
    assert dropped[0] > dropped[-1] == 0


def found(mesh: str, tok_s_per_user: float, tok_s_per_gpu: float) -> Found:
    return Found(Deployment(Engine("vllm", mesh)), 1, 0, 1, 1, 100.0, 1e3 / tok_s_per_user, tok_s_per_gpu,
                 tok_s_per_user, "TPOT")  # fmt: skip


def test_a_family_is_beaten_where_enough_others_are_above_each_of_its_corners() -> None:
    """Several points of one family are one; a point that is as good as a corner is above it."""
    seen = Seen()
    seen.add([found("tp=1", 50.0, 100.0), found("tp=1", 60.0, 90.0), found("tp=2", 40.0, 200.0)])
    low, high, right = Corner(40.0, 90.0), Corner(40.0, 150.0), Corner(55.0, 50.0)
    assert seen.beats([low], 2)
    assert not seen.beats([low], 3)
    assert seen.beats([low, high], 1)
    assert not seen.beats([low, high], 2)
    assert seen.beats([high, right], 1)
    assert not seen.beats([Corner(61.0, 1.0)], 1)
    assert seen.beats([Corner(60.0, 90.0)], 1)


def test_a_space_without_families_is_empty() -> None:
    outcome = search(LITTLE[0], Space((), {"some reason": 3}), serial, Kept(None, pytest.fail))
    assert (outcome.layouts, outcome.points, outcome.reasons) == (3, [], {"mesh": "some reason"})
