"""Engines that are lost: when that is noticed, where their requests go, when they are back.

An engine is lost with all keys and values on it. A process that dies closes its connections: the router knows at once,
and sends what was there elsewhere. A host that is silent is found by health checks, which come every interval: the
first that begins when it is silent, and those after it to the threshold, each fail after the timeout (RouterArgs of
SGLang's router, sgl-model-gateway: 60 s, 5 s, 3 checks). Until then requests are sent there, and wait. An engine that
is back is known at once, as where workers register themselves.

What a user has got stays: a request is computed again elsewhere, prompt and what it has said together, and goes on from
there, as NVIDIA Dynamo migrates requests. Keys and values that an engine which decodes was to get, and that are whole
where the prompt was computed, are fetched from there by another one. A request waits before it goes elsewhere
(`front.retry_...`; jitter is not drawn), and is lost when its engine is once more than it may be tried again. Where no
engine is left, requests wait for one that comes back.

Worked example. A check every 60 s, which fails after 5 s, 3 of them: an engine that is silent from 70 s on fails those
of 120, 180 and 240 s, and is known to be lost at 245 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil

from simulator.physics.clock import Clock, call_later
from simulator.serving.engine import Engine
from simulator.serving.moves import Moves
from simulator.serving.record import Struck
from simulator.serving.routing import Routing
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Front, Role
from simulator.units import to_ps


@dataclass(frozen=True)
class Users:
    """What the loop does with requests. anew: what one is that is prefilled again and has so many tokens already (None:
    no engine has room); interrupted: its engine is gone; send: to an engine; lost: it ends without all its tokens;
    place: the engine where it was to decode."""

    anew: Callable[[int, int], Sequence | None]
    interrupted: Callable[[int], None]
    send: Callable[[Sequence, Role], None]
    lost: Callable[[int, int], None]
    place: Callable[[int], Engine]


class Failures:
    """front: how they are noticed, and tried again. prompts: the role of engines that compute prompts."""

    def __init__(self, front: Front, clock: Clock, routing: Routing, moves: Moves, prompts: Role,
                 users: Users) -> None:  # fmt: skip
        self._front, self._clock, self._routing, self._moves = front, clock, routing, moves
        self._prompts, self._users = prompts, users
        self._gone: dict[Engine, Struck] = {}
        self._known: set[Engine] = set()
        self._groups: set[tuple[str, int]] = set()
        self._tried = Counter[int]()
        self._waiting: dict[Role, list[Sequence]] = {"together": [], "prefill": [], "decode": []}
        self._between: dict[int, int] = {}  # requests at no engine, and what they have said

    def lose(self, engine: Engine, struck: Struck, *, silent: bool, away_ps: int | None, load_ps: int | None) -> None:
        """An engine is lost; away_ps: for so long (None: it is started again when that is noticed, which takes load_ps;
        None: never)."""
        now_ps = self._clock.now_ps
        self._gone[engine] = struck
        engine.lose()
        engine.strand(self._moves.source_lost(engine))
        for one in engine.outside():
            if engine.role == "decode" and one.request in self._moves:
                self._moves.target_lost(one.request)
            else:
                self._users.interrupted(one.request)
        noticed_ps = self.noticed_ps(now_ps) if silent else now_ps
        back_ps = noticed_ps + load_ps if away_ps is None and load_ps is not None else None
        if away_ps is not None:
            back_ps = now_ps + away_ps
            noticed_ps = min(noticed_ps, back_ps)
        if noticed_ps > now_ps:
            call_later(self._clock, noticed_ps - now_ps, lambda _: self._notice(engine))
        else:
            self._notice(engine)
        if back_ps is not None:
            call_later(self._clock, back_ps - now_ps, lambda _: self._back(engine))

    def lose_group(self, engine: Engine, group: int, struck: Struck) -> None:
        """A data-parallel group is lost, and the others of its engine go on; its ranks are known to be gone at once."""
        self._groups.add((engine.name, group))
        for one in engine.lose_group(group):
            if one.request in self._moves and engine.role == "decode":
                self._moves.target_lost(one.request)
            else:
                self._users.interrupted(one.request)
        self._reroute(engine, struck)

    def group_back(self, engine: Engine, group: int, struck: Struck) -> None:
        """It serves again."""
        struck.over_ps = self._clock.now_ps
        self._groups.discard((engine.name, group))
        self._route()
        self._send_waiting(engine.role)

    def noticed_ps(self, at_ps: int) -> int:
        """When health checks have found what is silent from a time on."""
        every_ps = to_ps(self._front.health_check_interval_s)
        first_ps = ceil(at_ps / every_ps) * every_ps
        more_ps = (self._front.health_failure_threshold - 1) * every_ps
        return first_ps + more_ps + to_ps(self._front.health_check_timeout_s)

    def _notice(self, engine: Engine) -> None:
        """What was there goes elsewhere."""
        self._known.add(engine)
        self._reroute(engine, self._gone[engine])

    def _reroute(self, engine: Engine, struck: Struck) -> None:
        """What is stranded there goes elsewhere."""
        struck.noticed_ps = self._clock.now_ps
        self._route()
        for one, tokens in engine.stranded():
            if engine.role == "decode" and one.request in self._moves:
                self._try_again(one, struck, 0, self._moves.again(one.request))
                continue
            if one.request in self._moves:
                self._withdraw(one.request)
            self._try_again(one, struck, tokens, partial(self._anew, one, struck))

    def _withdraw(self, request: int) -> None:
        """It has no place where it decodes any more."""
        other = self._moves.drop(request)
        if other in self._waiting["decode"]:
            self._waiting["decode"].remove(other)
        else:
            self._users.place(request).withdraw(other)

    def _try_again(self, one: Sequence, struck: Struck, tokens: int, begin: Callable[[], None]) -> None:
        tried = self._tried[one.request]
        self._tried[one.request] += 1
        if tried >= self._front.retry_max_retries:
            if one.request in self._moves:
                self._abandon(one.request)
            self._lose_request(one, struck)
            return
        struck.rerouted += 1
        struck.recomputed_tokens += tokens
        self._between[one.request] = one.emitted
        wait_ms = min(self._front.retry_initial_backoff_ms * self._front.retry_backoff_multiplier**tried,
                      self._front.retry_max_backoff_ms)  # fmt: skip
        call_later(self._clock, to_ps(wait_ms / 1e3), lambda _: begin())

    def _abandon(self, request: int) -> None:
        """What was computed for it is of no use."""
        source, one = self._moves.given_up(request)
        if source.down:
            source.withdraw(one)
        else:
            source.abandon(one)

    def _lose_request(self, one: Sequence, struck: Struck) -> None:
        struck.lost += 1
        self._users.lost(one.request, one.emitted)

    def _anew(self, one: Sequence, struck: Struck) -> None:
        """Computed again, as if what it has said were a part of its prompt."""
        again = self._users.anew(one.request, one.emitted)
        if again is None:
            del self._between[one.request]
            self._lose_request(one, struck)
        else:
            self._users.send(again, self._prompts)

    def wait(self, one: Sequence, role: Role) -> None:
        """No engine is left for it: it waits for one that comes back."""
        self._waiting[role].append(one)

    def sent(self, request: int) -> None:
        """It is at an engine, or waits for one."""
        self._between.pop(request, None)

    def _back(self, engine: Engine) -> None:
        """It serves again."""
        if engine not in self._known:
            self._notice(engine)
        self._known.discard(engine)
        struck = self._gone.pop(engine)
        struck.over_ps = self._clock.now_ps
        engine.restart()
        self._route()
        self._send_waiting(engine.role)

    def _send_waiting(self, role: Role) -> None:
        waiting, self._waiting[role] = self._waiting[role], []
        for one in waiting:
            self._users.send(one, role)

    def _route(self) -> None:
        gone = {(engine.name, group) for engine in self._known for group in range(len(engine.groups))}
        self._routing.without(gone | self._groups)

    def outside(self) -> Iterator[tuple[int, int]]:
        """Requests that are at no engine, and what each has said."""
        yield from self._between.items()
        yield from ((one.request, one.emitted) for some in self._waiting.values() for one in some)

    def never(self, count: int) -> None:
        """So many requests wait for ever, for the engine that was lost last and does not come back."""
        if self._gone:
            list(self._gone.values())[-1].lost += count

    def waiting(self) -> list[str]:
        """Who waits for whom."""
        return [f"{len(some):,} request{'s' * (len(some) != 1)} wait{'s' * (len(some) == 1)} for an engine that "
                f"{'prefills and decodes' if role == 'together' else role + 's'}: "
                + ", ".join(f"{engine.name} is lost ({struck.fault})" for engine, struck in self._gone.items()
                            if engine.role == role)
                for role, some in self._waiting.items() if some]  # fmt: skip
