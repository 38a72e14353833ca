"""Requests through a service: arrivals, API servers, a router, engines, transfers of keys and values, and the answer.

Everything happens on one clock of whole picoseconds; what happens in one instant happens in the order in which it was
set, and an engine decides after all of it. Nothing is drawn here but by the routers that say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import Any

from simulator import np
from simulator.np import Array
from simulator.physics.clock import SOLVE, Clock, call_later
from simulator.serving.audit import Mode
from simulator.serving.board import Board
from simulator.serving.build import Kind, kind_of
from simulator.serving.engine import Engine, Told
from simulator.serving.failures import Failures, Users
from simulator.serving.front import Admission, ApiServers, ServerTime
from simulator.serving.links import Links
from simulator.serving.moves import Moves
from simulator.serving.record import DONE, LOST, NEVER, REFUSED, STEPS, TIMES, UNFINISHED, Served
from simulator.serving.requests import Requests, check_times
from simulator.serving.routing import Routing
from simulator.serving.saturation import LOOKED_AT_S, Saturation
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Instances, Role, Service
from simulator.serving.stretches import Steps
from simulator.serving.strikes import Strikes
from simulator.serving.tiers import Tiers
from simulator.serving.transfers import Transfers
from simulator.serving.until import Until, sent_of
from simulator.serving.weights import Weights
from simulator.spec.faults import Fault
from simulator.study.refusals import time_counted
from simulator.units import PS_PER_S, to_ps

Tell = Callable[[float], None]
ROLES: tuple[Role, ...] = ("prefill", "together", "decode")


class _EnoughError(Exception):
    """The run is long enough."""


class Loop:
    """One run of a service. concurrency: requests come at their times while fewer are in flight, else one for each that
    ends; 0: they come at their times. folder: where steps are kept (None: nowhere). tell: told the share done; warn:
    what a user should know while it runs. until: says when that is enough. faults: strike it. InputError where a
    request arrives after requests.LATEST_S, where a fault strikes nothing, and as of `kind_of` and `Transfers`."""

    def __init__(self, service: Service, requests: Requests, *, concurrency: int = 0, steps: Mode = "audit",
                 seed: int = 0, folder: Path | None = None, tell: Tell | None = None,
                 warn: Callable[[str], None] | None = None, until: Until | None = None,
                 faults: Seq[Fault] = ()) -> None:  # fmt: skip
        check_times(requests)
        self._warn, self._saturation, self._until = warn, Saturation(), until
        self._service, self._requests, self._seed, self._tell = service, requests, seed, tell
        self._clock = Clock()
        count = len(requests)
        self._times = {name: np.full(count, NEVER, np.int64) for name in TIMES}
        self._numbers = {name: np.full(count, start, np.int64) for name, start in
                         (("prefill_engine", -1), ("decode_engine", -1), ("cached_tokens", 0), ("preemptions", 0),
                          ("preempted_ps", 0), ("emitted", 0), ("status", UNFINISHED))}  # fmt: skip
        role = "together" if service.prefill is None else "decode"
        self._prompts: Role = "together" if service.prefill is None else "prefill"
        self._kinds: dict[str, Kind] = {role: kind_of(service.engines, steps, seed, folder)}
        if service.prefill is not None:
            self._kinds["prefill"] = kind_of(service.prefill, steps, seed, folder)
        self._boards = {role: Board(kind.groups * kind.settings.count, kind.settings.cache.block_size)
                        for role, kind in self._kinds.items()}  # fmt: skip
        placed = [(kind, kind.settings.count) for role in ROLES if (kind := self._kinds.get(role))]
        links = Links(placed, self._clock, service.pool.hosts if service.pool.size_gib else 0)
        self._transfers, self._weights = Transfers(service.transfer, links, len(placed) > 1), Weights(links)
        self._engines: list[Engine] = []
        for one in ROLES:
            for number in range(self._kinds[one].settings.count if one in self._kinds else 0):
                self._engines.append(self._engine(one, number))
        self._routing = Routing(service.front.router, seed, self._engines, self._boards)
        self._number = {engine.name: number for number, engine in enumerate(self._engines)}
        self._moves = Moves(self._transfers, self._number, len(service.engines.step.transformer().layers),
                            self._kinds[role].moved_beside, lambda other: self._send(other, "decode"), self._joined)
        self._followers: dict[int, list[int]] = {}
        for request, before in enumerate(requests.after.tolist()):
            if before >= 0:
                self._followers.setdefault(before, []).append(request)
        front = service.front
        self._api = ApiServers(front.api_servers, ServerTime(to_ps(front.request_ms / 1e3),
                                                             to_ps(front.input_token_us / 1e6), 0))  # fmt: skip
        self._stranded: set[int] = set()  # requests whose engine was lost
        self._waiting_for: tuple[str, ...] = ()
        self._users, self._gate = Admission(concurrency or count), Admission(front.admitted or count)
        self._closed, self._ended = bool(concurrency), 0
        prompts = self._kinds.get("prefill") or self._kinds[role]
        self._tiers = Tiers(service, prompts, links, self._times["admitted"], requests.hash_tokens)
        for number, engine in enumerate(self._engines):
            if engine.role != "decode":
                self._tiers.attach(number, engine)
        self._since_ps: dict[int, int] = {}  # of requests that were preempted, until they decode again
        self._again: list[tuple[int, int, int]] = []
        users = Users(self._anew, self._interrupted, self._send, self._lost,
                      lambda request: self._engines[self._numbers["decode_engine"][request]])
        self._failures = Failures(front, self._clock, self._routing, self._moves, self._prompts, users)
        self._strikes = Strikes(faults, self._engines, [self._kinds[engine.role] for engine in self._engines], links,
                                self._failures, self._clock, seed, lambda: self._ended == count,
                                to_ps(float(requests.arrival_s[requests.after < 0].max())))  # fmt: skip

    def run(self) -> Served:
        """To the end of all requests, to when it is enough, or to Ctrl-C: then what there is so far. RunError: it lasts
        longer than a clock can count."""
        interrupted = False
        self._strikes.begin()
        for request in np.flatnonzero(self._requests.after < 0).tolist():
            at_ps = to_ps(float(self._requests.arrival_s[request]))
            call_later(self._clock, at_ps, partial(self._at, self._arrive, request))
        if not self._closed:
            for at_s in (LOOKED_AT_S / 2, LOOKED_AT_S):
                call_later(self._clock, to_ps(at_s), lambda _: self._look())
        try:
            with time_counted(self._service.name or self._service.title):
                self._clock.run()
            if self._strikes.struck:
                self._wait_for_ever()
        except _EnoughError:
            self._stop()
            self._requests = sent_of(self._requests, self._times, self._numbers)
        except KeyboardInterrupt:
            interrupted = True
            self._stop()
        finally:
            for kind in self._kinds.values():
                for one in (kind, *kind.slow.values()):
                    one.kept.write()
        return self._served(interrupted)

    def _look_if_enough(self) -> None:
        """In the run so far, without its steps."""
        assert self._until is not None
        if self._until.reached(self._record({name: np.zeros(0, np.int64) for name in STEPS}, {}, False)):
            raise _EnoughError

    def _look(self) -> None:
        """Whether more come than are served, half a minute and a minute after the first."""
        arrived, admitted = ((self._times[name] >= 0).sum() for name in ("arrival", "admitted"))
        self._saturation.look(self._clock.now_ps / PS_PER_S, int(arrived), int(arrived - admitted))
        if self._saturation.found and self._warn is not None:
            self._warn(self._saturation.text)

    # --- what happens to a request --------------------------------------------------------------------------------

    def _at(self, happens: Callable[[int], None], request: int, _: object) -> None:
        happens(request)

    def _arrive(self, request: int) -> None:
        """A user sends it; in a closed loop when one has no other request in flight."""
        if self._users.enter(request):
            self._sent(request)

    def _sent(self, request: int) -> None:
        self._times["arrival"][request] = self._clock.now_ps
        if self._gate.enter(request):
            self._enter(request)

    def _enter(self, request: int) -> None:
        """It is admitted to the API servers."""
        sent_ps = self._api.sent_at(self._clock.now_ps, int(self._requests.input_tokens[request]))
        call_later(self._clock, sent_ps - self._clock.now_ps, partial(self._at, self._route, request))

    def _route(self, request: int) -> None:
        """To a group of an engine; refused where its cache could never hold it."""
        self._times["routed"][request] = self._clock.now_ps
        role = self._prompts
        prompt, output = int(self._requests.input_tokens[request]), int(self._requests.output_tokens[request])
        if any(prompt + (1 if name == "prefill" else output) > kind.most_tokens for name, kind in self._kinds.items()):
            self._numbers["status"][request] = REFUSED
            self._leave(request)
            return
        hashes = self._requests.hashes_of(request).tolist()
        output, priority = output if role == "together" else 1, int(self._requests.priority[request])
        self._send(Sequence(request, prompt, output, hashes, priority=priority), role)

    def _send(self, one: Sequence, role: Role) -> None:
        self._failures.sent(one.request)
        if not self._routing.is_there(role):
            self._failures.wait(one, role)
            return
        engine, one.group = self._routing.chosen(one, role)
        for name in {"together": ("prefill_engine", "decode_engine")}.get(role, (f"{role}_engine",)):
            self._numbers[name][one.request] = self._number[engine.name]
        engine.receive(one)

    def _scheduled(self, engine: Engine, one: Sequence) -> None:
        """It is worked on for the first time at this engine."""
        if engine.role == "decode" and not one.preempted:
            self._moves.fetch(engine, one)
        if self._times["admitted"][one.request] != NEVER:
            return
        self._times["admitted"][one.request] = self._clock.now_ps
        self._numbers["cached_tokens"][one.request] = one.computed
        if engine.role == "prefill" and self._service.transfer.layer_by_layer:
            self._hand_over(engine, one)

    def _preempted(self, engine: Engine, one: Sequence) -> None:
        """It gave back its blocks, when it decoded or when it was prefilled."""
        self._numbers["preemptions"][one.request] += 1
        if one.preempted:
            self._since_ps.setdefault(one.request, self._clock.now_ps)

    def _prefilled(self, engine: Engine, one: Sequence) -> None:
        """Its prompt is computed, and a token with it."""
        request = one.request
        if one.preempted:
            self._decodes_again(request)
            one.preempted = False
            return
        self._first("prefilled", request)
        self._first("first_token", request)
        if engine.role != "prefill":
            self._first("joined", request)
        elif one.emitted >= self._requests.output_tokens[request]:
            self._joined(request)
            engine.groups[one.group].finish(one)
            self._end(one)
        else:
            if request not in self._moves:
                self._hand_over(engine, one)
            self._moves.computed(request)

    def _hand_over(self, engine: Engine, one: Sequence) -> None:
        """A place is looked for where it decodes, if it has more to say than its prefill does."""
        output = int(self._requests.output_tokens[one.request])
        if output > one.prompt - one.input + 1:
            self._moves.begin(engine, one, output)

    def _joined(self, request: int) -> None:
        """Its keys and values are where it decodes."""
        self._first("joined", request)
        if request in self._since_ps:
            self._decodes_again(request)

    def _first(self, name: str, request: int) -> None:
        """A time that counts is the first one."""
        if self._times[name][request] == NEVER:
            self._times[name][request] = self._clock.now_ps

    def _decodes_again(self, request: int) -> None:
        since_ps, now_ps = self._since_ps.pop(request), self._clock.now_ps
        self._numbers["preempted_ps"][request] += now_ps - since_ps
        self._again += [(request, since_ps, now_ps)] * (request in self._stranded)

    # --- where an engine is lost ------------------------------------------------------------------------------------

    def _interrupted(self, request: int) -> None:
        """Its engine is lost, where it decoded: the user waits for more."""
        self._stranded.add(request)
        if self._times["joined"][request] != NEVER:
            self._numbers["preemptions"][request] += request not in self._since_ps
            self._since_ps.setdefault(request, self._clock.now_ps)

    def _anew(self, request: int, emitted: int) -> Sequence | None:
        """Its prompt, and what it has said, as a prompt; None where that is longer than memory."""
        prompt, output = int(self._requests.input_tokens[request]), int(self._requests.output_tokens[request])
        if prompt + emitted + 1 > self._kinds[self._prompts].most_tokens:
            return None
        if self._prompts == "prefill":
            output = emitted + 1
        return Sequence(request, prompt, output, self._requests.hashes_of(request).tolist(), prompt=prompt + emitted,
                        emitted=emitted, priority=int(self._requests.priority[request]),
                        preempted=self._prompts == "together" and request in self._since_ps)  # fmt: skip

    def _lost(self, request: int, emitted: int) -> None:
        """It is not tried again."""
        self._numbers["status"][request], self._numbers["emitted"][request] = LOST, emitted
        self._not_again(request)
        self._leave(request)

    def _not_again(self, request: int) -> None:
        if (since_ps := self._since_ps.pop(request, None)) is not None:
            self._again.append((request, since_ps, NEVER))

    def _wait_for_ever(self) -> None:
        """Nothing moves any more: who was sent, and has not ended, never will."""
        left = np.flatnonzero((self._numbers["status"] == UNFINISHED) & (self._times["arrival"] != NEVER)).tolist()
        if left:
            self._waiting_for = tuple(self._failures.waiting())
            self._failures.never(len(left))
            self._stop()
            for request in left:
                self._numbers["status"][request] = LOST
                self._not_again(request)

    def _finished(self, engine: Engine, one: Sequence) -> None:
        self._end(one)

    def _end(self, one: Sequence) -> None:
        self._times["last_token"][one.request] = self._clock.now_ps
        self._numbers["status"][one.request], self._numbers["emitted"][one.request] = DONE, one.emitted
        self._leave(one.request)

    def _leave(self, request: int) -> None:
        """It is out of the service: another one may come in, and a later turn is thought about."""
        self._ended += 1
        if self._tell is not None:
            self._tell(self._ended / len(self._requests))
        if self._until is not None and self._until.due(self._ended):
            call_later(self._clock, 0, lambda _: self._look_if_enough(), SOLVE)
        if (admitted := self._gate.leave()) is not None:
            self._enter(admitted)
        turns = self._followers.pop(request, ())
        stays = self._closed and bool(turns)  # who has more to say keeps the place
        if not stays and (following := self._users.leave()) is not None:
            self._sent(following)
        for later in turns:
            wait_ps = to_ps(float(self._requests.think_s[later]))
            due_ps = 0 if self._closed else to_ps(float(self._requests.arrival_s[later]))
            at_ps = max(self._clock.now_ps + wait_ps, due_ps)
            begin = self._sent if stays else self._arrive
            call_later(self._clock, at_ps - self._clock.now_ps, partial(self._at, begin, later))

    def _stop(self) -> None:
        """What there is when the run is stopped; who is at no engine any more has ended in this instant."""
        self._tell = None
        ended = (self._times["first_token"] != NEVER) & (self._numbers["status"] == UNFINISHED)
        self._numbers["emitted"][ended] = self._requests.output_tokens[ended]
        for engine in self._engines:
            steps = engine.stopped()
            for one in engine.outside():
                self._numbers["emitted"][one.request] = one.emitted
            for group in engine.groups:
                held = (*group.loading.values(), *group.coming.values(), *group.arrived)
                for one in (*group.waiting, *group.prefilling, *held):
                    self._numbers["emitted"][one.request] = one.emitted
                for one in group.decoding.values():
                    self._numbers["emitted"][one.request] = one.emitted + group.length(one, steps) - one.prompt
        for request, said in self._failures.outside():
            self._numbers["emitted"][request] = said
        for request, since_ps in self._since_ps.items():
            self._numbers["preempted_ps"][request] += self._clock.now_ps - since_ps

    # --- engines and results --------------------------------------------------------------------------------------

    def _engine(self, role: Any, number: int) -> Engine:
        kind: Kind = self._kinds[role]
        settings: Instances = kind.settings
        name = f"{'engine' if role == 'together' else role} {number}"
        groups = [kind.group(self._requests.hash_tokens) for _ in range(kind.groups)]
        experts = kind.experts(partial(self._weights.send, len(self._engines)), self._clock)
        return Engine(name, role, settings, groups, kind.audit, self._clock,
                      Told(self._scheduled, self._preempted, self._prefilled, self._finished),
                      self._boards[role].part(number * kind.groups, (number + 1) * kind.groups), experts)  # fmt: skip

    def _served(self, interrupted: bool) -> Served:
        kinds = [one for kind in self._kinds.values() for one in (kind, *kind.slow.values())]
        errors = [exact / said - 1.0 for kind in kinds for exact, said in kind.audit.found]
        about = {
            "simulated": sum(kind.times.simulated for kind in kinds),
            "known": sum(len(kind.kept.found) for kind in kinds),
            "interpolated": sum(kind.audit.interpolated for kind in kinds),
            "exact": sum(kind.audit.exact for kind in kinds),
            "audited": len(errors),
            "audit_error_mean": float(np.mean(errors)) if errors else 0.0,
            "audit_error_worst": max(errors, key=abs, default=0.0),
            "correction": 1.0 + (float(np.mean(errors)) if errors else 0.0),
        }
        steps = Steps([engine.stretches for engine in self._engines],
                      [engine.experts.balancedness if engine.experts else None for engine in self._engines])
        served = self._record(steps, about, interrupted)
        if not interrupted and self._until is None:
            self._strikes.refuse_unstruck(served.end_ps)
        return served

    def _record(self, steps: Mapping[str, Array], about: dict[str, Any], interrupted: bool) -> Served:
        return Served(requests=self._requests, times=self._times, steps=steps, about_steps=about,
                      engines=[engine.name for engine in self._engines], gpus=self._service.gpus,
                      groups=[len(engine.groups) for engine in self._engines], interrupted=interrupted,
                      until="steady" if self._until is not None else "", saturated=self._saturation.found,
                      moved=tuple(one for engine in self._engines if engine.experts for one in engine.experts.moved),
                      lower=self._tiers.record(), struck=tuple(self._strikes.struck),
                      stranded=np.array(sorted(self._stranded), np.int64),
                      again_ps=np.array(self._again, np.int64).reshape(-1, 3), waiting_for=self._waiting_for,
                      **self._numbers)  # fmt: skip
