"""Families that are chosen: a front near that of all of them, the same whatever the order, whoever is killed."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.search import evolve
from simulator.search import search as searching
from simulator.search.deployment import Ask, Deployment, Engine, Found
from simulator.search.evolve import EXHAUSTIVE, GENERATION, Effort, Evolution, chosen
from simulator.search.front import front
from simulator.search.kept import Kept
from simulator.search.roofline import Corner
from simulator.search.search import Executor, Outcome, search
from simulator.search.sheet import Sheet
from simulator.search.space import NOT_OFFERED, Family, Grid, Space, axes_of, space_of
from simulator.study.processes import serial

pytest.importorskip("optuna")

ASK = Ask("llama_3_1_70b", "dgx_h100", 8, 8, 4096, 1024)
CHOICES = {"knobs.a": tuple("abcde"), "knobs.b": tuple("abcdef"), "knobs.c": tuple("abcdef"), "mode": ("together",),
           "pp": ("1",), "tokens": ("2048", "8192")}  # fmt: skip
LAYOUTS = 12 * 5 * 6 * 6 * 2  # of twelve meshes
WORTH = {"a": 1.0, "b": 0.9, "c": 0.8, "d": 0.7, "e": 0.6, "f": 0.5}
BATCHES = (1, 64)
FEW = 60  # layouts: of two generations
Work = Callable[[Family], list[Sheet]]


class Simulated:
    """Instead of a simulation: each setting has its worth, ranks of tensor parallelism make users fast and GPUs slow.
    families: those that were asked for, in their order; fails: at which it is killed."""

    def __init__(self) -> None:
        self.families: list[str] = []
        self.fails = -1

    def sheets(self, ask: Ask, engines: tuple[Engine, ...], roles: tuple[str, ...]) -> list[Sheet]:
        assert ask.model == ASK.model
        assert roles
        self.families.append(engines[0].words)
        if len(self.families) == self.fails:
            raise KeyboardInterrupt
        return [Sheet(one, cards=1) for one in engines]

    @staticmethod
    def points(_: Ask, sheet: Sheet) -> list[Found]:
        engine = sheet.engine
        good = {"vllm": 1.0, "sglang": 0.95}.get(engine.stack, 0.9) * (0.9 + engine.tokens / 2e5)
        for key, value in engine.settings:
            good *= 1.0 if (key, engine.stack) == ("knobs.a", "sglang") else WORTH[value]
        tp = int(dict(axis.split("=") for axis in engine.mesh.split(","))["tp"])
        return [Found(Deployment(engine), 1, 0, 8, count, 1.0, 1.0, good * (count / 64) ** 0.5 * 3000.0 / tp**0.6,
                      good * (64 / count) ** 0.3 * 20.0 * tp**0.7, "TPOT") for count in BATCHES]  # fmt: skip


class Roof:
    """A roofline that keeps nothing from being simulated."""

    most = 2.0

    def corners(self, _: Ask) -> list[Corner]:
        return [Corner(1e9, 1e9)]


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    found = Simulated()
    monkeypatch.setattr(searching, "roofline_of", lambda *_: Roof())
    monkeypatch.setattr(searching, "sheets", found.sheets)
    monkeypatch.setattr(searching, "of_together", found.points)
    monkeypatch.setattr(searching, "of_apart", lambda *_: [])
    return found


def shuffled(seed: int, most: int) -> Executor:
    """Takes as many as it can, and is done in another order."""
    order = random.Random(seed)

    def execute(work: Work, those: Iterable[Family | None]) -> Iterator[tuple[Family, list[Sheet]]]:
        taken, running = iter(those), list[Family]()
        while True:
            while len(running) < most and (one := next(taken, None)) is not None:
                running.append(one)
            if not running:
                return
            one = running.pop(order.randrange(len(running)))
            yield one, work(one)

    return execute


def evolution(effort: Effort, changes: dict[str, tuple[str, ...]] = CHOICES) -> Evolution:
    found = chosen(ASK, {**axes_of(ASK, {}), **changes}, changes, effort)
    assert isinstance(found, Evolution)
    return found


def searched(effort: Effort, execute: Executor = serial, kept: Kept | None = None) -> Outcome:
    return search(ASK, evolution(effort), execute, kept or Kept(None, pytest.fail))


def told(outcome: Outcome) -> Any:
    """All of an outcome, whatever the order of what was done."""
    return (sorted(one.engine.words for one in outcome.sheets), sorted(one.words for one in outcome.points),
            dict(outcome.refused), outcome.reasons, outcome.dropped, outcome.stopped)  # fmt: skip


def area(points: Iterable[Found]) -> float:
    """Below a front."""
    found = sorted(front(points), key=lambda one: one.tok_s_per_user)
    users = [0.0, *(one.tok_s_per_user for one in found)]
    return sum((one.tok_s_per_user - before) * one.tok_s_per_gpu for before, one in zip(users, found, strict=False))


def test_a_tenth_of_the_layouts_comes_near_the_front_of_all() -> None:
    space = space_of(ASK, {**axes_of(ASK, {}), **CHOICES}, CHOICES)
    engines = [engine for family in space.families for engine in family.engines]
    assert len(engines) == LAYOUTS > EXHAUSTIVE
    whole = area(point for engine in engines for point in Simulated.points(ASK, Sheet(engine)))
    shares = []
    for seed in range(2):
        some = searched(Effort(LAYOUTS // 10, seed))
        assert len(some.sheets) < LAYOUTS // 10 + GENERATION * 2
        shares.append(area(some.points) / whole)
    assert sum(shares) / 2 >= 0.95


def test_the_order_in_which_layouts_are_done_changes_nothing() -> None:
    effort = Effort(FEW, seed=7)
    expected = told(searched(effort))
    assert told(searched(effort, shuffled(1, 3))) == expected
    assert told(searched(effort, shuffled(2, 100))) == expected
    assert told(searched(Effort(FEW, seed=8))) != expected


def test_a_search_that_was_killed_goes_on(tmp_path: Path, simulated: Simulated) -> None:
    expected, once = told(searched(Effort(FEW))), sorted(simulated.families)
    simulated.families, simulated.fails = [], GENERATION + 9
    effort = Effort(FEW, folder=tmp_path, warn=pytest.fail)
    with pytest.raises(KeyboardInterrupt), Kept(tmp_path, pytest.fail) as kept:
        searched(effort, kept=kept)
    killed = simulated.families.pop()
    simulated.fails = -1
    with Kept(tmp_path, pytest.fail) as kept:
        assert told(searched(effort, kept=kept)) == expected
        assert killed in simulated.families
        assert sorted(simulated.families) == once, "something was simulated twice"
        assert len(searched(Effort(FEW + 20, folder=tmp_path), kept=kept).sheets) >= FEW + 20
    assert len(set(simulated.families)) == len(simulated.families)


def test_whole_generations_are_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from optuna.study import Study

    effort = Effort(FEW, folder=tmp_path, warn=pytest.fail)
    expected = told(searched(effort))
    monkeypatch.setattr(Study, "ask", lambda *_: pytest.fail("it is in the journal"))
    assert told(searched(effort)) == expected


@pytest.mark.parametrize(("left", "why"), [(-1, "last line is not whole"), (-5, "last generation is not whole")])
def test_a_broken_journal_begins_anew_in_one_line(tmp_path: Path, simulated: Simulated, left: int, why: str) -> None:
    said: list[str] = []
    effort = Effort(FEW, folder=tmp_path, warn=said.append)
    with Kept(tmp_path, pytest.fail) as kept:
        expected = told(searched(effort, kept=kept))
        (journal,) = tmp_path.glob("evolution-*.journal")
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:left]) + (b'{"op' if left == -1 else b""))
        simulated.families = []
        assert told(searched(effort, kept=kept)) == expected
        assert simulated.families == []
        (line,) = said
        assert f"'{journal}' begins anew" in line
        assert why in line
        assert told(searched(effort, kept=kept)) == expected
    assert said == [line]


def test_a_journal_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    found = searched(Effort(FEW, folder=tmp_path / "none", warn=said.append))
    assert told(found) == told(searched(Effort(FEW)))
    (line,) = said
    assert "No such file" in line


def test_what_cannot_be_is_counted_once_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked for: at the end of a narrow space, nearly all that cannot be has been."""
    monkeypatch.setattr(evolve, "ASKED", 300)
    narrow = {"stack": ("vllm",), "tokens": ("2048",)}
    grid = Grid(ASK, {**axes_of(ASK, {}), **narrow}, narrow)
    known, found = set[Family](), Evolution(ASK, grid, Effort())
    while some := found.generation(lambda family: True):
        assert not known & set(some), "a family came twice"
        known |= set(some)
        found.tell([(1.0, 1.0)] * len(some))
    space = space_of(ASK, grid.axes, grid.given)
    assert known == set(space.families)
    assert found.refused == space.refused


def test_a_choice_is_a_family_of_the_space_or_has_a_reason() -> None:
    ask = Ask("qwen3_235b", "dgx_h200", 8, 8, 4096, 1024)
    grid = Grid(ask, axes_of(ask, {}), {})
    choices, families, reasons = grid.choices(), set[Family](), set[str]()
    assert set(choices["exchange"]) >= {"", "all_gather", "deepep_ll"}
    for values in product(*choices.values()):
        one = grid.family(dict(zip(choices, values, strict=True)))
        (reasons if isinstance(one, str) else families).add(one)  # type: ignore[attr-defined]
    space = space_of(ask, grid.axes, {})
    assert families == set(space.families)
    assert reasons == {*space.refused, NOT_OFFERED}


def test_it_ends_where_the_front_stays_the_same(monkeypatch: pytest.MonkeyPatch, simulated: Simulated) -> None:
    monkeypatch.setattr(searching, "PATIENCE", 3)
    monkeypatch.setattr(searching, "of_together", lambda *_: [])
    found = searched(Effort(10**6))
    assert found.stopped == "the front stayed the same for 3 generations"
    assert len(simulated.families) == 3 * GENERATION


def test_few_layouts_are_all_looked_at() -> None:
    assert isinstance(chosen(ASK, axes_of(ASK, {}), {}, Effort()), Space)


def test_what_is_dropped_is_neither_simulated_nor_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roof, "corners", lambda *_: [Corner(1.0, 1.0)])
    monkeypatch.setattr(evolve, "ASKED", 300)
    found = searched(Effort(10**6))
    assert len(found.sheets) == 2 * GENERATION * 2, "KEEP families are found in two generations"
    assert found.dropped > 0
    assert found.stopped == "no other layouts came up"


def test_without_optuna_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(evolve, "find_spec", lambda name: None if name == "optuna" else find(name))
    with pytest.raises(InputError, match=r"pip install 'braid\[search\]', or narrow the space with --fix"):
        chosen(ASK, {**axes_of(ASK, {}), **CHOICES}, CHOICES, Effort())


def test_optuna_says_nothing(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    searched(Effort(1))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
