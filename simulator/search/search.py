"""The search: families of engines in the order of what they promise, simulated until all are, or need not be.

What is found of a family depends on nothing but the family, so the front is the same whatever the executor, the number
of jobs and the order; a family is dropped where, above and to the right of every corner of its roofline, at least
`KEEP` other families have been found. No such family could be among the first `KEEP`, nor on the front.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

from simulator.errors import InputError, reason_of
from simulator.search.deployment import Ask, Engine, Found
from simulator.search.found import of_apart, of_together, options
from simulator.search.front import Seen
from simulator.search.kept import Kept
from simulator.search.measure import phase_of, sheets
from simulator.search.roofline import Corner, roofline_of
from simulator.search.sheet import Sheet
from simulator.search.space import Family, Space
from simulator.spec.load import load_machine
from simulator.study.kept import source

KEEP = 20
"""Families at least of which none is dropped unseen: as many as are served in the end."""
Work = Callable[[Family], list[Sheet]]
Executor = Callable[[Work, Iterable[Family]], Iterable[tuple[Family, list[Sheet]]]]
Tell = Callable[["Outcome"], None]


@dataclass
class Outcome:
    """What is known so far. layouts: of all families; sheets: those that were simulated or refused in that; refused:
    layouts by kind of reason, with one reason each in `reasons`; dropped: layouts that their roofline rules out; kept:
    layouts that an earlier search had simulated."""

    ask: Ask
    layouts: int
    sheets: list[Sheet] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    kept: int = 0
    points: list[Found] = field(default_factory=list)

    @property
    def feasible(self) -> int:
        """Layouts that were simulated and do what is asked of each step."""
        return sum(not one.kind for one in self.sheets)

    def refuse(self, kind: str, reason: str, layouts: int) -> None:
        """Count layouts that cannot be."""
        self.refused[kind] += layouts
        self.reasons.setdefault(kind, reason)


def search(ask: Ask, space: Space, execute: Executor, kept: Kept, tell: Tell | None = None) -> Outcome:
    """All families of a space. execute: does the work, taking families as late as it can. kept: of earlier searches.
    tell: told after each family."""
    outcome = Outcome(ask, sum(len(one.engines) for one in space.families) + sum(space.refused.values()))
    for reason, count in space.refused.items():
        outcome.refuse("mesh", reason, count)
    state = _State(ask, outcome, kept)
    for family, found in execute(partial(measured, ask), state.left(space.families)):
        kept.put(name_of(ask, family), {"sheets": json.dumps([as_object(one) for one in found])})
        state.add(family, found)
        if tell is not None:
            tell(outcome)
    state.finish()
    return outcome


def measured(ask: Ask, family: Family) -> list[Sheet]:
    """The work on one family."""
    return sheets(ask, family.engines, family.roles)


class _State:
    """What has been found, and what need not be looked at for it."""

    def __init__(self, ask: Ask, outcome: Outcome, kept: Kept) -> None:
        self._ask, self._outcome, self._kept = ask, outcome, kept
        self._seen, self._beside = Seen(), options(ask, ())

    def left(self, families: Sequence[Family]) -> Iterator[Family]:
        """Families that have to be simulated, what promises most first; those that are known, or cannot be, are added
        at once."""
        for family, corners in self._in_order(families):
            known = self._kept.get(name_of(self._ask, family))
            if known is not None:
                self._outcome.kept += len(family.engines)
                self.add(family, [_sheet(one) for one in json.loads(known["sheets"])])
            elif "prefill" not in family.roles and self._seen.beats(corners, KEEP):
                self._outcome.dropped += len(family.engines)
            elif family.roles:
                yield family

    def _in_order(self, families: Sequence[Family]) -> list[tuple[Family, list[Corner]]]:
        found = []
        for family in families:
            try:
                roofline = roofline_of(self._ask, family.engines[0], phase_of(family.roles))
            except InputError as error:
                self._outcome.refuse("layout", reason_of(error).partition("\n")[0], len(family.engines))
                continue
            corners = roofline.corners(self._ask)
            if roofline.most < 1:
                self._outcome.refuse("memory", f"{family.engines[0].words}: weights leave no room", len(family.engines))
            elif not corners and "prefill" not in family.roles:
                self._outcome.refuse("TPOT", f"{family.engines[0].words}: by the roofline, even with one request",
                                     len(family.engines))  # fmt: skip
            else:
                found.append((family, corners))
        return sorted(found, key=lambda one: (-max((corner.tok_s_per_gpu for corner in one[1]), default=0.0),
                                              one[0].engines[0].words))  # fmt: skip

    def add(self, family: Family, found: Sequence[Sheet]) -> None:
        """What was found of a family."""
        for sheet in found:
            self._outcome.sheets.append(sheet)
            if sheet.kind:
                self._outcome.refuse(sheet.kind, f"{sheet.engine.words}: {sheet.refused}", 1)
        if any(sheet.prefill for sheet in found):
            self._beside = options(self._ask, self._outcome.sheets)
        points = [one for sheet in found if not sheet.kind for one in self._points(sheet)]
        self._outcome.points += points
        self._seen.add(points)

    def _points(self, sheet: Sheet) -> list[Found]:
        return [*of_together(self._ask, sheet), *of_apart(self._ask, sheet, self._beside)]

    def finish(self) -> None:
        """All points anew, now that all engines that prefill are known."""
        self._outcome.points = [one for sheet in self._outcome.sheets if not sheet.kind for one in self._points(sheet)]


def name_of(ask: Ask, family: Family) -> str:
    """Of what is kept of a family: what is simulated, and the version of Braid down to its source."""
    machine = load_machine(ask.machine)
    steps = ask._replace(least_gpus=0, most_gpus=0, ttft_ms=0.0)
    text = json.dumps([steps, family, machine.model_dump_json(), source()])
    return sha256(text.encode()).hexdigest()[:24]


def as_object(sheet: Sheet) -> dict[str, Any]:
    """For JSON."""
    return sheet._asdict()


def _sheet(one: Mapping[str, Any]) -> Sheet:
    """From JSON."""
    stack, mesh, settings, tokens = one["engine"]
    engine = Engine(stack, mesh, tuple((key, text) for key, text in settings), tokens)
    rows = {name: tuple(tuple(row) for row in one[name]) for name in ("decode", "prefill")}
    return Sheet(**{**one, **rows, "chunk": tuple(one["chunk"]), "engine": engine})
