"""Collectives at run time: members meet by (group, sequence number), then phases of flows run, then members leave.

A member *arrives* when its task is ready and holds its driving engine's cores; the exchange starts when the last one
has arrived, so a late rank makes its peers wait. A member's task ends when the transfers of the last phase that it
waits for have ended. Where ranks are folded by role, leaders meet for all the ranks that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from simulator.collective.lowering import Lowering, busy_of, engine_of, solo_ps_by_rank
from simulator.collective.one_sided import ONE_SIDED, PUT
from simulator.collective.transfer import CapacityKey, Phase, Transfer
from simulator.die.npu import Npu
from simulator.errors import RunError
from simulator.physics.clock import Clock, call_later
from simulator.physics.flows import Capacity, Countdown, Flow, Network
from simulator.program.task import Collective, Task
from simulator.program.world import World
from simulator.replay.mailbox import Mailbox, Mailboxes
from simulator.symmetry.roles import Leading, Roles, leaders_of
from simulator.symmetry.ties import Exchange, as_exchange
from simulator.units import PS_PER_S, format_si, to_ps


class Who(NamedTuple):
    """A group's name and the leaders of those who meet, of whom there may be very many; of a message its two ends."""

    group: str
    leaders: tuple[int, ...]
    message: bool = False

    def __hash__(self) -> int:
        return hash((self.group, self.leaders[0], len(self.leaders)))


AgendaItem = tuple[Who, int, tuple[int, ...], Collective]  # of an agenda: who meets, sequence number, members, what for


@dataclass(slots=True, eq=False)
class Meeting:
    """One exchange: who is expected, who has arrived (with the steps that they bring), what is on the wire."""

    who: Who
    number: int
    collective: Collective
    expected: frozenset[int]
    steps: int
    phases: tuple[Phase, ...]
    solo_ps: dict[int, int]  # rank -> how long it takes without other load; late: rank and step that came last
    timeout_ps: int  # how long one waits for the others
    arrived: dict[int, list[tuple[Npu, int]]] = field(default_factory=dict)
    started_ps: int = -1
    late: tuple[int, int] = (-1, -1)

    @property
    def complete(self) -> bool:
        """Whether all members are there."""
        return len(self.arrived) == len(self.expected) and all(len(x) == self.steps for x in self.arrived.values())

    @property
    def latency_ps(self) -> int:
        """How long nothing is on the wire: the start-up, and the latencies of all steps after it."""
        return sum(to_ps(phase.latency_s) for phase in self.phases)

    def absent(self) -> list[int]:
        """Ranks that have not arrived, or not with both ends of their message."""
        return sorted(rank for rank in self.expected if len(self.arrived.get(rank, ())) < self.steps)


class Meetings:
    """All exchanges of a run. capacities: of all keys. tasks: of each simulated rank."""

    def __init__(self, env: Clock, network: Network, world: World, roles: Roles, lowering: Lowering,
                 capacities: Mapping[CapacityKey, Capacity], rate_of: Callable[[CapacityKey], float],
                 tasks: Callable[[int], list[Task]]) -> None:
        self.env, self.network, self.world, self.roles = env, network, world, roles
        self.lowering, self.capacities, self.rate_of, self.tasks = lowering, capacities, rate_of, tasks
        self._open: dict[tuple[Who, int], Meeting] = {}
        self._phases: dict[tuple[Who, Collective], tuple[tuple[Phase, ...], dict[int, int]]] = {}
        self._agendas: dict[int, list[AgendaItem]] = {}
        self._whos: dict[Who, tuple[Who, frozenset[int]]] = {}  # one object for all who are equal, and who is expected
        self._leading = Leading(world, roles)
        self._flows: dict[int, Flow] = {}  # by identity of the transfer, which is the tag of its flow
        self._known: dict[int, Capacity] = {}  # by identity of a transfer's key
        self.mailboxes = Mailboxes(env, network, capacities, lowering, rate_of, self.given_up)

    def prepare(self, rank: int) -> None:
        """Lower every exchange of a rank's program before the clock runs."""
        for who, _, members, collective in self._agenda(rank):
            if collective.kind not in ONE_SIDED:
                self._phases_of(who, collective, members)

    def arrive(self, npu: Npu, index: int) -> None:
        """A step of `npu` is ready to exchange; the last one to arrive starts it, if it is not one-sided."""
        who, _, members, collective = self._agenda(npu.rank)[npu.steps[index].exchange]
        if collective.kind in ONE_SIDED:
            box = self._mailbox(npu, index)
            if collective.kind == PUT:
                own = partial(self._own, npu.rank, who, collective, members)
                alike = id(members) if self.roles.folding is None else collective
                self.mailboxes.put(box, npu, index, collective, len(members), alike, own)
            else:
                self.mailboxes.collect(box, npu, index, collective)
            return
        meeting = self.of(npu, index)
        meeting.arrived.setdefault(npu.rank, []).append((npu, index))
        if meeting.complete:
            meeting.started_ps, meeting.late = self.env.now_ps, (npu.rank, index)
            self._run(meeting, 0)

    def of(self, npu: Npu, index: int) -> Meeting:
        """The meeting that a step belongs to.

        Raises:
            RunError: the step is another exchange than that of those who are there already; it names both.
        """
        who, number, members, collective = self._agenda(npu.rank)[npu.steps[index].exchange]
        meeting = self._open.get((who, number))
        if meeting is None:
            expected = self._whos[who][1]
            both_ends = collective.kind in ("send", "recv") and len(expected) == 1
            phases, solo_ps = self._phases_of(who, collective, members)
            timeout_ps = engine_of(collective, self.lowering.engines).timeout_ps
            meeting = Meeting(who, number, collective, expected, 2 if both_ends else 1, phases, solo_ps, timeout_ps)
            self._open[who, number] = meeting
        elif meeting.collective.signature() != collective.signature():
            raise RunError(_disagreement(meeting, npu.rank, self.tasks(npu.rank)[index]))
        return meeting

    def absent(self, npu: Npu, index: int) -> list[int] | None:
        """The ranks that a step of `npu` waits for; none if all are there; None if it has not come itself."""
        who, number, _, collective = self._agenda(npu.rank)[npu.steps[index].exchange]
        if collective.kind in ONE_SIDED:
            box = self._mailbox(npu, index)
            return box.absent() if collective.kind == PUT or npu.rank in box.waiting else None
        meeting = self._open.get((who, number))
        here = meeting is not None and (npu, index) in meeting.arrived.get(npu.rank, ())
        return meeting.absent() if meeting is not None and here else None

    def given_up(self, npu: Npu, index: int, timeout_ps: int, late: int) -> RunError:
        """A rank waited for longer than its software lets it. late: the rank that came last."""
        task, since_s, timeout_s = self.tasks(npu.rank)[index], npu.since_ps(index) / PS_PER_S, timeout_ps / PS_PER_S
        assert isinstance(task.work, Collective)
        gives_up = f"rank {npu.rank} gives up on '{task.name}' (#{index}) at {format_si(since_s + timeout_s, 's')}"
        return RunError(f"{gives_up}: it is ready since {format_si(since_s, 's')}, rank {late} comes last, at "
                        f"{format_si(self.env.now_ps / PS_PER_S, 's')}, and "
                        f"'machine.collectives.{task.work.via}.timeout' is {format_si(timeout_s, 's')}")

    def _mailbox(self, npu: Npu, index: int) -> Mailbox:
        """Where a put or collect belongs."""
        who, number, members, _ = self._agenda(npu.rank)[npu.steps[index].exchange]
        known = who if self.roles.folding else (who[0], who[1][0])  # an instance is known by its first rank
        return self.mailboxes.box((known, number), self._whos[who][1], members)

    def _own(self, rank: int, who: Who, collective: Collective, members: tuple[int, ...], side: int) -> Transfer | None:
        """What leaves a rank or arrives at it in a put, folded or not."""
        own = self.mailboxes.own(collective.via, members, rank, side)
        if self.roles.folding is None or own is None:
            return own
        return self.roles.folding.own(as_exchange(who.group, members, rank, collective), rank, own, side)

    def _agenda(self, rank: int) -> list[AgendaItem]:
        """Every exchange of a rank's program, in launch order."""
        if rank not in self._agendas:
            self._agendas[rank] = _agenda_of(self.world, self.roles, rank, self._one_of)
        return self._agendas[rank]

    def _one_of(self, who: Who) -> Who:
        """The object that stands for all who are equal."""
        if who not in self._whos:
            self._whos[who] = who, frozenset(who.leaders)
        return self._whos[who][0]

    def _phases_of(self, who: Who, collective: Collective,
                   members: tuple[int, ...]) -> tuple[tuple[Phase, ...], dict[int, int]]:
        """Phases of an exchange, and how long it takes each simulated rank alone: its own instance, folded or not."""
        what = _what(collective)
        known = self._phases.get((who, what))
        if known is None:
            folding = self.roles.folding
            solo_ps: dict[int, int] = {}
            for instance in [members] if folding is None else self._leading.instances(what, members):
                leading = [rank for rank in instance if self.roles.leader[rank] == rank]
                solo_ps |= self._solo_ps((who.group, instance, what), leading) if leading else {}
            phases = self.lowering.lower(what, members)
            if folding is not None:
                phases = folding.phases((who.group, members, what), phases)
            known = self._phases[who, what] = phases, solo_ps
        return known

    def _solo_ps(self, exchange: Exchange, ranks: list[int]) -> dict[int, int]:
        """How long an exchange takes some of its members without other load."""
        phases, folding = self.lowering.lower(exchange[2], exchange[1]), self.roles.folding
        if folding is not None:
            return solo_ps_by_rank(phases, ranks, partial(folding.busy_ps, exchange))
        transfers = [transfer for phase in phases for transfer in phase.transfers]
        return solo_ps_by_rank(phases, ranks, busy_of(transfers, self.rate_of))

    def _run(self, meeting: Meeting, number: int) -> None:
        """Start a phase: its latency, then its flows."""
        phase, last = meeting.phases[number], number + 1 == len(meeting.phases)
        latency_ps = to_ps(phase.latency_s)
        if not phase.transfers:
            if last:
                call_later(self.env, latency_ps, partial(self._leave_all, meeting, list(meeting.arrived)))
            else:
                call_later(self.env, latency_ps, lambda _: self._run(meeting, number + 1))
            return
        flows = [self._flow(transfer) for transfer in phase.transfers]
        if last:
            self._release_by_rank(meeting, flows, latency_ps)
        else:
            following = Countdown(len(flows), lambda _: self._run(meeting, number + 1))
            for flow in flows:
                flow.countdowns = (following,)
        self.network.start_all(flows, latency_ps)

    def _release_by_rank(self, meeting: Meeting, flows: list[Flow], latency_ps: int) -> None:
        """Let every member leave with the last transfer that it waits for, and those without one after the latency."""
        waits_for: dict[int, list[Flow]] = {rank: [] for rank in meeting.arrived}
        for flow in flows:
            for rank in dict.fromkeys(flow.tag.ranks):
                waits_for[rank].append(flow)
        together: dict[tuple[int, ...], list[int]] = {}  # ranks that wait for the same transfers
        for rank, those in waits_for.items():
            together.setdefault(tuple(map(id, those)), []).append(rank)
        for ranks in together.values():
            those = waits_for[ranks[0]]
            if not those:
                call_later(self.env, latency_ps, partial(self._leave_all, meeting, ranks))
                continue
            countdown = Countdown(len(those), partial(self._release, meeting, ranks))
            for flow in those:
                flow.countdowns = (*flow.countdowns, countdown)

    def _flow(self, transfer: Transfer) -> Flow:
        flow = self._flows.get(id(transfer))
        if flow is None:
            size, known, loads = transfer.size_bytes, self._known, []
            for place, key in enumerate(transfer.keys):
                capacity = known.get(id(key))
                if capacity is None:
                    capacity = known[id(key)] = self.capacities[key]
                loads.append((capacity, transfer.moved_bytes[place] / size))
            flow = self._flows[id(transfer)] = Flow(size, loads, weight=transfer.weight, tag=transfer)
            return flow
        return flow.again()

    def _release(self, meeting: Meeting, ranks: list[int], flow: Flow) -> None:
        """The last transfer that these members waited for has ended: they leave."""
        by = flow.bound_by()
        bound_by = by.name.partition(":")[0] if isinstance(by, Capacity) else "engine"
        if 2 * meeting.latency_ps > self.env.now_ps - meeting.started_ps:
            bound_by = "latency"
        for rank in ranks:
            self._leave(meeting, rank, bound_by)

    def _leave_all(self, meeting: Meeting, ranks: list[int], _: object) -> None:
        for rank in ranks:
            self._leave(meeting, rank, "latency")

    def _leave(self, meeting: Meeting, rank: int, bound_by: str) -> None:
        steps = meeting.arrived.pop(rank)
        if not meeting.arrived:
            del self._open[meeting.who, meeting.number]
        for npu, index in steps:
            solo_ps, since_ps = meeting.solo_ps[npu.rank], npu.since_ps(index)
            if self.env.now_ps - since_ps > meeting.timeout_ps:
                raise self.given_up(npu, index, meeting.timeout_ps, meeting.late[0])
            if since_ps < meeting.started_ps and meeting.late != (npu.rank, index):
                npu.late(npu.rank, index, *meeting.late)
            npu.finish(index, meeting.started_ps, solo_ps, bound_by, npu.tape.steps[index].need, 1)


def _what(collective: Collective) -> Collective:
    """The same for both ends of a message."""
    return collective.as_send() if collective.kind in ("send", "recv") else collective


def _agenda_of(world: World, roles: Roles, rank: int, one_of: Callable[[Who], Who]) -> list[AgendaItem]:
    counts: dict[object, int] = {}
    groups = {name: members for name in world.groups if (members := world.instance(name, rank))}
    whole = {name: one_of(Who(name, leaders_of(roles, members))) for name, members in groups.items()}
    agenda = []
    for _, collective in world.programs[rank].collectives():
        members, who, side = groups[collective.group], whole[collective.group], ""
        if collective.kind in ("send", "recv"):
            peer, side = members[collective.peer], collective.kind
            members = (rank, peer) if side == "send" else (peer, rank)
            who = one_of(Who(collective.group, (roles.leader[members[0]], roles.leader[members[1]]), message=True))
        elif collective.kind in ONE_SIDED:
            side = collective.kind
        counted = (who, side) if side in ("send", "recv") else (collective.group, side)
        number = counts[counted] = counts.get(counted, -1) + 1
        agenda.append((who, number, members, collective))
    return agenda


def _disagreement(meeting: Meeting, rank: int, task: Task) -> str:
    other = next(iter(meeting.arrived))
    return (
        f"ranks {other} and {rank} disagree on exchange {meeting.number} of group '{meeting.who[0]}': "
        f"rank {other} runs {meeting.collective}; rank {rank} runs {task.work} "
        f"(stream '{task.stream}', task '{task.name}', layer {task.layer})"
    )
