"""The search: families of engines in the order of what they promise, simulated until all are, or need not be; or, of
too many, those that an evolution chooses.

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
from simulator.model.library import load_transformer
from simulator.search.deployment import Ask, Engine, Found
from simulator.search.evolve import PATIENCE, Evolution
from simulator.search.found import of_apart, of_together, options
from simulator.search.front import Seen, front
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
Executor = Callable[[Work, Iterable[Family | None]], Iterable[tuple[Family, list[Sheet]]]]
Tell = Callable[["Outcome"], None]


@dataclass
class Outcome:
    """What is known so far. layouts: of all families; most: of these, how many are looked at; sheets: those that were
    simulated or refused in that; refused: layouts by kind of reason, with one reason each in `reasons`; dropped:
    layouts that their roofline rules out; kept: layouts that an earlier search had simulated; stopped: why there were
    no more generations, where families were chosen."""

    ask: Ask
    layouts: int
    most: int
    sheets: list[Sheet] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    kept: int = 0
    points: list[Found] = field(default_factory=list)
    stopped: str = ""

    @property
    def share(self) -> float:
        """Of the work, what is done."""
        looked = self.feasible + (self.dropped + sum(self.refused.values()) if self.most == self.layouts else 0)
        return min(looked / max(self.most, 1), 1.0)

    @property
    def feasible(self) -> int:
        """Layouts that were simulated and do what is asked of each step."""
        return sum(not one.kind for one in self.sheets)

    def refuse(self, kind: str, reason: str, layouts: int) -> None:
        """Count layouts that cannot be."""
        self.refused[kind] += layouts
        self.reasons.setdefault(kind, reason)


def search(ask: Ask, space: Space | Evolution, execute: Executor, kept: Kept, tell: Tell | None = None) -> Outcome:
    """All families of a space, or those that are chosen. execute: does the work, taking families as late as it can.
    kept: of earlier searches. tell: told after each family."""
    state = _State(ask, space, kept)
    outcome = state.outcome
    for family, found in execute(partial(measured, ask), state.left(space)):
        kept.put(name_of(state.steps, family), {"sheets": json.dumps([as_object(one) for one in found])})
        state.add(family, found)
        if tell is not None:
            tell(outcome)
    state.settle()
    return outcome


def measured(ask: Ask, family: Family) -> list[Sheet]:
    """The work on one family."""
    return sheets(ask, family.engines, family.roles)


class _State:
    """What has been found, and what need not be looked at for it."""

    def __init__(self, ask: Ask, space: Space | Evolution, kept: Kept) -> None:
        self._ask, self._kept, self.steps = ask, kept, steps_of(ask)
        most = space.layouts if isinstance(space, Space) else min(space.trials, space.layouts)
        self.outcome = Outcome(ask, space.layouts, most)
        self._seen, self._beside = Seen(), options(ask, ())
        self._done = set[Family]()

    def left(self, space: Space | Evolution) -> Iterator[Family | None]:
        """Families that have to be simulated; those that are known are added at once. None: others follow from those
        that are not done."""
        return self._all(space) if isinstance(space, Space) else self._generations(space)

    def _all(self, space: Space) -> Iterator[Family]:
        """What promises most first, engines of each size in turn."""
        for reason, count in space.refused.items():
            self.outcome.refuse("mesh", reason, count)
        able = [(family, corners) for family in space.families if (corners := self._corners(family)) is not None]
        for family, corners in _in_turn(able):
            if not self._is_known(family) and not self._is_beaten(family, corners):
                yield family

    def _generations(self, evolution: Evolution) -> Iterator[Family | None]:
        """What is dropped follows from whole generations, as what is chosen does, and comes before what is known."""
        refused, same, before = Counter[str](), 0, list[Found]()
        while len(self.outcome.sheets) < evolution.trials and same < PATIENCE:
            families = evolution.generation(self._is_worth)
            for reason, count in (evolution.refused - refused).items():
                self.outcome.refuse("mesh", reason, count)
            refused = evolution.refused.copy()
            if not families:
                self.outcome.stopped = "no other layouts came up"
                return
            yield from (family for family in families if not self._is_known(family))
            while not self._done.issuperset(families):
                yield None
            self.settle()
            evolution.tell(self._worth(families))
            now = front(self.outcome.points)
            same, before = (same + 1 if now == before else 0), now
        self.outcome.stopped = (f"the front stayed the same for {PATIENCE} generations" if same == PATIENCE else
                                f"{len(self.outcome.sheets)} layouts were looked at")  # fmt: skip

    def _is_worth(self, family: Family) -> bool:
        corners = self._corners(family)
        return corners is not None and not self._is_beaten(family, corners)

    def _is_known(self, family: Family) -> bool:
        """Whether it was simulated before; then it is added."""
        known = self._kept.get(name_of(self.steps, family))
        if known is not None:
            self.outcome.kept += len(family.engines)
            self.add(family, [_sheet(one) for one in json.loads(known["sheets"])])
        return known is not None

    def _is_beaten(self, family: Family, corners: Sequence[Corner]) -> bool:
        """Whether it need not be looked at, which is counted."""
        beaten = "prefill" not in family.roles and self._seen.beats(corners, KEEP)
        self.outcome.dropped += beaten * len(family.engines)
        return beaten

    def _corners(self, family: Family) -> list[Corner] | None:
        """Above all that it can do as an engine that decodes; None of what cannot be, which is counted."""
        engine, layouts = family.engines[0], len(family.engines)
        try:
            roofline = roofline_of(self._ask, engine, phase_of(family.roles))
        except InputError as error:
            self.outcome.refuse("layout", reason_of(error).partition("\n")[0], layouts)
            return None
        if roofline.most < 1:
            self.outcome.refuse("memory", f"{engine.words}: weights leave no room for one request", layouts)
            return None
        corners = roofline.corners(self._ask)
        if not corners and "prefill" not in family.roles:
            self.outcome.refuse("TPOT", f"{engine.words}: by the roofline, even with one request", layouts)
            return None
        return corners

    def add(self, family: Family, found: Sequence[Sheet]) -> None:
        """What was found of a family."""
        self._done.add(family)
        for sheet in found:
            self.outcome.sheets.append(sheet)
            if sheet.kind:
                self.outcome.refuse(sheet.kind, f"{sheet.engine.words}: {sheet.refused}", 1)
        if any(sheet.prefill for sheet in found):
            self._beside = options(self._ask, [*(one.prefilling.sheet for one in self._beside), *found])
        points = [one for sheet in found if not sheet.kind for one in self._points(sheet)]
        self.outcome.points += points
        self._seen.add(points)

    def _points(self, sheet: Sheet) -> list[Found]:
        return [*of_together(self._ask, sheet), *of_apart(self._ask, sheet, self._beside)]

    def settle(self) -> None:
        """All points anew, now that more engines that prefill are known."""
        self.outcome.points = [one for sheet in self.outcome.sheets if not sheet.kind for one in self._points(sheet)]
        self._seen = Seen()
        self._seen.add(self.outcome.points)

    def _worth(self, families: Sequence[Family]) -> list[tuple[float, float]]:
        """The most tokens a second of a GPU, and of a user, among the deployments that each is part of."""
        most: dict[Engine, tuple[float, float]] = {}
        for point in self.outcome.points:
            for engine in filter(None, point.deployment):
                gpu, user = most.get(name := engine._replace(tokens=0), (0.0, 0.0))
                most[name] = max(gpu, point.tok_s_per_gpu), max(user, point.tok_s_per_user)
        return [most.get(family.engines[0]._replace(tokens=0), (0.0, 0.0)) for family in families]


def steps_of(ask: Ask) -> str:
    """What steps are simulated for, of which model, on which machine, by which version of Braid down to its source; as
    JSON."""
    steps = ask._replace(least_gpus=0, most_gpus=0)
    return json.dumps([steps, repr(load_transformer(ask.model)), load_machine(ask.machine).model_dump_json(), source()])


def _in_turn(families: Sequence[tuple[Family, list[Corner]]]) -> list[tuple[Family, list[Corner]]]:
    """By what they promise for a GPU, the best of each number of ranks first, then the second ones."""
    places: Counter[int] = Counter()
    found = []
    for family, corners in sorted(families, key=lambda one: (-_promise(one[1]), one[0].engines[0].words)):
        ranks = family.engines[0].ranks
        found.append((places[ranks], ranks, family, corners))
        places[ranks] += 1
    return [(family, corners) for _, _, family, corners in sorted(found, key=lambda one: one[:2])]


def _promise(corners: Sequence[Corner]) -> float:
    """Tokens a second of a GPU at most."""
    return max((corner.tok_s_per_gpu for corner in corners), default=0.0)


def name_of(steps: str, family: Family) -> str:
    """Of what is kept of a family. steps: what `steps_of` gives."""
    return sha256(f"{steps}{json.dumps(family)}".encode()).hexdigest()[:24]


def as_object(sheet: Sheet) -> dict[str, Any]:
    """For JSON."""
    return sheet._asdict()


def _sheet(one: Mapping[str, Any]) -> Sheet:
    """From JSON."""
    stack, mesh, settings, tokens = one["engine"]
    engine = Engine(stack, mesh, tuple((key, text) for key, text in settings), tokens)
    rows = {name: tuple(tuple(row) for row in one[name]) for name in ("decode", "prefill")}
    return Sheet(**{**one, **rows, "chunk": tuple(one["chunk"]), "engine": engine})
