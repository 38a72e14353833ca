"""Faults of a service: whom each strikes, and when; drawn ones anew for every strike.

Engines are written as "decode.0", "prefill.1", "engine.0" or, where they prefill and decode together, "0"; "*" stands
for all, or, where strikes are drawn, for any of them. Ranks are counted in their engine ("rank 3 of decode.0"). A link
joins two engines ("decode.0 - prefill.1": all links on the ways between their ranks) or two vertices of the fabric as a
trace has them ("die 3 - node 0"; "to": one direction). Engines stand on the fabric in the order prefill, decode.

A rank is lost with its engine; but where experts have replicas on other ranks (`placing.without_ranks`) these take
over, as of engines with elastic expert parallelism: the rank's data-parallel group takes no requests, its requests go
elsewhere, and steps are those that a simulation gives without its place of experts, until the rank is loaded again.
That it is known at once, and costs the step that runs alone, is assumed. Engines that prefill apart go as a whole.

An engine with a slow clock or memory takes the steps that a simulation gives whose ranks are slow, from its next step
on. Of faults that hold the same back at once the one that leaves less counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from math import inf

from simulator.errors import InputError
from simulator.physics.clock import Clock, call_later
from simulator.serving.build import Kind, Pace
from simulator.serving.draws import stream_of
from simulator.serving.engine import Engine
from simulator.serving.failures import Failures
from simulator.serving.links import Links
from simulator.serving.placing import without_ranks
from simulator.serving.record import NEVER, Struck
from simulator.serving.restart import restart_s
from simulator.spec.faults import Fault
from simulator.spec.levels import cut_links
from simulator.units import PS_PER_S, to_ps

Edge = tuple[str, str]
LOSSES = ("lost", "silent")
UNMOVED = 100  # strikes of a drawn fault, between which no step ends: then it is drawn no more


class Strikes:
    """faults: of the service. kinds: of each engine. ended: whether all requests have. last_ps: when the last comes of
    its own.

    struck: what they did. InputError where a fault names nothing that there is."""

    def __init__(self, faults: Sequence[Fault], engines: Sequence[Engine], kinds: Sequence[Kind], links: Links,
                 failures: Failures, clock: Clock, seed: int, ended: Callable[[], bool],
                 last_ps: int) -> None:  # fmt: skip
        self._faults, self._engines, self._kinds = faults, engines, kinds
        self._links, self._failures, self._clock, self._ended = links, failures, clock, ended
        self._last_ps = last_ps
        self._draws = [stream_of(seed, "faults", number) for number in range(len(faults))]
        self._targets = [self._targets_of(fault) for fault in faults]
        loads = {id(kind): to_ps(restart_s(kind.settings)) if kind.settings.restart.enabled else None for kind in kinds
                 if any(fault.effect in LOSSES for fault in faults)}  # fmt: skip
        self._loads_ps = [loads.get(id(kind)) for kind in kinds]
        self._paces: defaultdict[int, list[Pace]] = defaultdict(list)
        self._away: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
        self._shares: defaultdict[Edge, dict[Struck, float]] = defaultdict(dict)
        self._unmoved = [(-1, 0)] * len(faults)
        self.struck: list[Struck] = []
        self._by_fault: list[list[Struck]] = [[] for _ in faults]

    def begin(self) -> None:
        """Those at the start strike before all that happens there."""
        for number, fault in enumerate(self._faults):
            at_ps = self._drawn_ps(number) if fault.mean_s else to_ps(fault.at_s)
            call_later(self._clock, at_ps, partial(self._at, number))

    def _at(self, number: int, _: object) -> None:
        self._strike(number)

    def _drawn_ps(self, number: int) -> int:
        return max(to_ps(float(self._draws[number].exponential(self._faults[number].mean_s))), 1)

    # --- whom --------------------------------------------------------------------------------------------------------

    def _targets_of(self, fault: Fault) -> list[int | tuple[Edge, ...]]:
        """Numbers of engines, or edges of the fabric that are one link."""
        if fault.mean_s and fault.for_s == inf and fault.effect not in LOSSES:
            raise InputError(f"fault '{fault}': what strikes again and again must end; write \"... for 1 s\"")
        if fault.what == "link":
            return [self._edges_of(fault)]
        if fault.what not in ("engine", "rank"):
            raise InputError(f"fault '{fault}': a service has engines, ranks of them, and links; write one of these")
        found: list[int | tuple[Edge, ...]] = []
        found += [number for number, engine in enumerate(self._engines) if _means(_engine_of(fault), engine.name)]
        if not found:
            raise InputError(f"fault '{fault}': no engine is called '{_engine_of(fault)}'; there are "
                             f"{', '.join(engine.name.replace(' ', '.') for engine in self._engines)}")
        if fault.what == "rank":
            rank = fault.name.partition(" of ")[0]
            most = min(self._kinds[number].ranks for number in found if isinstance(number, int))
            if rank != "*" and not (rank.isdecimal() and int(rank) < most):
                raise InputError(f"fault '{fault}': '{rank}' is no rank of it; it is 0 to {most - 1}")
        return found

    def _edges_of(self, fault: Fault) -> tuple[Edge, ...]:
        both, _, other = fault.name.partition(" - ")
        one, _, to = fault.name.partition(" to ")
        ends = (both, other) if other else (one, to)
        pair = [[number for number, engine in enumerate(self._engines) if _means(end, engine.name)] for end in ends]
        try:
            if len(pair[0]) == len(pair[1]) == 1:
                there = self._between(pair[0][0], pair[1][0])
                return (*there, *(self._between(pair[1][0], pair[0][0]) if other else ()))
            edges = cut_links(fault.name)[0].edges
            if missing := [edge for edge in edges if edge not in self._links.fabric.graph.edges]:
                raise InputError(f"there is no link {' to '.join(missing[0])}")
        except (InputError, ValueError) as error:
            engines = ", ".join(engine.name.replace(" ", ".") for engine in self._engines)
            raise InputError(f"fault '{fault}': {error}; write two of the engines ({engines}), as in \"A - B\", or a "
                             'link of the fabric, as in "die 3 - node 0"') from None
        return edges

    def _between(self, source: int, target: int) -> tuple[Edge, ...]:
        """Edges on the ways from the ranks of an engine to those of another."""
        if source == target:
            raise InputError("an engine is not joined to itself")
        ranks = [[rank for group in range(len(self._engines[number].groups))
                  for rank in self._links.ranks_of(number, group)] for number in (source, target)]
        here, there = ranks
        pairs = {(one, there[place % len(there)]) for place, one in enumerate(here)}
        pairs |= {(here[place % len(here)], other) for place, other in enumerate(there)}
        fabric = self._links.fabric
        return tuple(dict.fromkeys(edge for pair in sorted(pairs) for edge in fabric.route(*pair).edges))

    # --- when --------------------------------------------------------------------------------------------------------

    def _strike(self, number: int) -> None:
        if self._ended():
            return
        fault, targets = self._faults[number], list(self._targets[number])
        if fault.mean_s:
            if fault.effect in LOSSES:
                targets = [one for one in targets if not (isinstance(one, int) and self._engines[one].down)]
            if targets:
                targets = [targets[int(self._draws[number].integers(len(targets)))]]
            if self._goes_on(number):
                call_later(self._clock, self._drawn_ps(number), partial(self._at, number))
        for target in targets:
            if isinstance(target, int):
                self._strike_engine(number, target)
            else:
                self._strike_link(number, target)

    def _goes_on(self, number: int) -> bool:
        """Whether more is drawn: not where it would hold back for ever what moves no more."""
        done = sum(len(engine.stretches) for engine in self._engines)
        before, times = self._unmoved[number]
        self._unmoved[number] = (done, times + 1 if done == before else 0)
        moves = self._clock.now_ps < self._last_ps or any(engine.busy for engine in self._engines)
        return moves or self._unmoved[number][1] < UNMOVED

    def _note(self, number: int, what: str) -> Struck:
        struck = Struck(str(self._faults[number]), what, self._clock.now_ps)
        self.struck.append(struck)
        self._by_fault[number].append(struck)
        return struck

    def _strike_engine(self, number: int, target: int) -> None:
        fault, engine = self._faults[number], self._engines[target]
        lost = fault.effect in LOSSES
        if lost and fault.what == "rank" and not engine.down and self._goes_on_without(number, target):
            return
        again = lost and engine.down
        struck = self._note(number, f"{engine.name}{', lost already' * again}")
        if again or not fault.for_s:
            struck.over_ps = struck.struck_ps
        elif lost:
            self._failures.lose(engine, struck, silent=fault.effect == "silent", load_ps=self._loads_ps[target],
                                away_ps=None if fault.for_s == inf else to_ps(fault.for_s))  # fmt: skip
        else:
            self._slow(number, target, struck)

    def _goes_on_without(self, number: int, target: int) -> bool:
        """Whether an engine goes on without a rank and all others of its data-parallel group: then it does."""
        fault, engine, kind = self._faults[number], self._engines[target], self._kinds[target]
        written = fault.name.partition(" of ")[0]
        if written == "*" and not fault.mean_s:
            return False
        rank = int(self._draws[number].integers(kind.ranks)) if written == "*" else int(written)
        each = kind.ranks // kind.groups
        group, gone = rank // each, self._away[target]
        ranks = tuple(range(rank // each * each, (rank // each + 1) * each))
        if not set(gone).isdisjoint(ranks):
            self._note(number, f"rank {rank} of {engine.name}, lost already").over_ps = self._clock.now_ps
            return True
        left = without_ranks(kind.settings, (*gone, *ranks), kind.seed)
        if left is None or engine.role == "prefill" or not fault.for_s:
            return False
        struck = self._note(number, f"rank {rank} of {engine.name}")
        self._away[target] = tuple(sorted((*gone, *ranks)))
        self._set_pace(target)
        self._failures.lose_group(engine, group, struck)

        def back(_: object) -> None:
            if struck.over_ps == NEVER:
                self._away[target] = tuple(one for one in self._away[target] if one not in ranks)
                self._set_pace(target)
                self._failures.group_back(engine, group, struck)

        away_ps = self._loads_ps[target] if fault.for_s == inf else to_ps(fault.for_s)
        if away_ps is not None:
            call_later(self._clock, away_ps, back)
        return True

    def _slow(self, number: int, target: int, struck: Struck) -> None:
        fault, kind = self._faults[number], self._kinds[target]
        rank = fault.name.partition(" of ")[0] if fault.what == "rank" else "*"
        if rank == "*" and fault.what == "rank" and fault.mean_s:
            rank = str(int(self._draws[number].integers(kind.ranks)))
        ranks = range(kind.ranks) if rank == "*" else [int(rank)]
        slow = tuple(Fault("rank", str(one), fault.effect, value=fault.value) for one in ranks)
        self._paces[target].append(slow)
        self._set_pace(target)

        def over(_: object) -> None:
            struck.over_ps = self._clock.now_ps
            self._paces[target].remove(slow)
            self._set_pace(target)

        self._later(fault, over)

    def _set_pace(self, target: int) -> None:
        least: dict[tuple[str, str], Fault] = {}
        for one in sorted((one for slow in self._paces[target] for one in slow), key=lambda one: -one.value):
            least[one.effect, one.name] = one
        slow = tuple(least[key] for key in sorted(least))
        self._engines[target].paced(self._kinds[target].paced(slow, self._away[target]))

    def _later(self, fault: Fault, over: Callable[[object], None]) -> None:
        if fault.for_s < inf:
            call_later(self._clock, to_ps(fault.for_s), over)

    def _strike_link(self, number: int, edges: tuple[Edge, ...]) -> None:
        fault = self._faults[number]
        struck = self._note(number, fault.name)
        if not fault.for_s:
            struck.over_ps = struck.struck_ps
            return
        share = fault.value if fault.effect == "rate" else 0.0
        self._hold(edges, struck, share)
        if fault.effect == "flaps":
            self._flap(edges, struck, to_ps(fault.value), up=True)

        def over(_: object) -> None:
            struck.over_ps = self._clock.now_ps
            self._hold(edges, struck, 1.0)

        self._later(fault, over)

    def _flap(self, edges: tuple[Edge, ...], struck: Struck, every_ps: int, *, up: bool) -> None:
        """Down for so long, then up for so long, until it is over."""
        def turn(_: object) -> None:
            if struck.over_ps == NEVER and not self._ended():
                self._hold(edges, struck, float(up))
                self._flap(edges, struck, every_ps, up=not up)

        call_later(self._clock, every_ps, turn)

    def _hold(self, edges: tuple[Edge, ...], struck: Struck, share: float) -> None:
        """A strike leaves links this share from now on."""
        for edge in edges:
            self._shares[edge][struck] = share
            self._links.change(edge, min(self._shares[edge].values()))

    # --- what came of it --------------------------------------------------------------------------------------------

    def refuse_unstruck(self, end_ps: int) -> None:
        """InputError where a fault that was not drawn struck nothing in a run that ended then."""
        for fault, targets, struck in zip(self._faults, self._targets, self._by_fault, strict=True):
            if not fault.mean_s and not any(one.struck_ps <= end_ps for one in struck):
                raise InputError(f"fault '{fault}' strikes nobody: the run ends at {end_ps / PS_PER_S:.6g} s; strike "
                                 "before that, or send more requests")
            if fault.what == "link" and not any(self._links.link(edge) in self._links.used
                                                for edges in targets if isinstance(edges, tuple) for edge in edges):
                raise InputError(f"fault '{fault}' strikes nobody: nothing crosses this link in the run; keys and "
                                 "values go from engines that prefill to those that decode, over the fabric where "
                                 "transfer.rate_gb_s is 0")


def _engine_of(fault: Fault) -> str:
    return fault.name.rpartition(" of ")[2] if fault.what == "rank" else fault.name


def _means(written: str, name: str) -> bool:
    """Whether an engine is meant: "decode.0", "decode 0", "decode.*", or "0" of "engine 0"."""
    pattern = re.sub(r"[. ]", " ", written.strip())
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"engine {pattern}")
