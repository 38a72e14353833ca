"""Replays a recorded world on a machine: programs become tapes, collectives meet, the clock runs.

Collectives meet by (group, sequence number): a member *arrives* when its task is ready and holds its driving engine's
cores; the exchange starts when the last one has arrived, and each member's task ends when the transfers that it waits
for have ended. Members that disagree on what they exchange, and streams that can never go on, are errors by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from simulator.errors import RunError
from simulator.machine.cache import Cache
from simulator.machine.graph import Fabric
from simulator.machine.npu import Npu, Tape, Watch
from simulator.machine.spec import MachineSpec
from simulator.physics.clock import call_later
from simulator.physics.cores import Cores
from simulator.physics.flows import LIMIT, Capacity, Flow, Network
from simulator.program.collectives import Key, Lowering, Phase, Transfer
from simulator.program.roles import Roles, fold
from simulator.program.tape import tape_of
from simulator.program.task import Collective, Program, Task
from simulator.program.world import World
from simulator.units import to_ps


@dataclass(slots=True, eq=False)
class Meeting:
    """One collective of one group: who is expected, who has arrived, what is on the wire."""

    key: tuple
    expected: frozenset[int]
    phases: tuple[Phase, ...]
    collective: Collective
    arrived: dict[int, list[tuple[Npu, int]]] = field(default_factory=dict)
    started_ps: int = -1
    solo_ps: int = 0
    waiting: dict[int, int] = field(default_factory=dict)  # rank -> transfers of the last phase that it waits for


class Replay:
    """A world on a machine, ready to run once.

    generation: the software generation of the kernels. roles: which ranks are simulated for which.
    """

    def __init__(
        self,
        world: World,
        machine: MachineSpec,
        generation: str,
        fabric: Fabric,
        lowering: Lowering,
        roles: Roles,
        watch: Watch,
    ) -> None:
        self.world, self.machine, self.lowering, self.roles = world, machine, lowering, roles
        self.fabric, self.watch = fabric, watch
        self.env = simpy.Environment()
        self.network = Network(self.env)
        self.capacities: dict[Key, Capacity] = {}
        self.tapes: dict[int, Tape] = {}
        self.meetings: dict[tuple, Meeting] = {}
        self._phases: dict[tuple, tuple[Phase, ...]] = {}
        self._plans: dict[int, list[tuple]] = {}
        self._generation = generation
        self._tasks: dict[int, list[Task]] = {}
        self.npus = {rank: self._npu(rank) for rank in roles.leaders}

    def run(self) -> int:
        """Run to the end; the makespan in ps.

        Raises:
            RunError: something can never go on (a deadlock, a collective on which ranks disagree); it names who.
        """
        for npu in self.npus.values():
            npu.begin()
        self.env.run()
        stuck = [npu for npu in self.npus.values() if npu.left]
        if stuck:
            raise RunError(self._deadlock(stuck))
        return int(self.env.now)

    # building -------------------------------------------------------------------------------------------------------

    def _npu(self, rank: int) -> Npu:
        program = self.world.programs[rank]
        chip = self.machine.chip
        if id(program) not in self.tapes:
            self.tapes[id(program)] = tape_of(program, self.machine, self._generation)
            self._tasks[id(program)] = program.tasks
        return Npu(
            self.env,
            self.network,
            rank,
            self.tapes[id(program)],
            hbm=self.capacity(("hbm", rank)),
            l2=self.capacity(("l2", rank)),
            cache=Cache(chip.l2.capacity.si),
            cores=_pools(program, {pool: int(count.si) for pool, count in chip.cores.items()}),
            meet=self._arrive,
            watch=self.watch,
        )

    def capacity(self, key: Key) -> Capacity:
        """The capacity of this key, made when it is first asked for."""
        if key not in self.capacities:
            self.capacities[key] = Capacity(_name(key), rate_of(key, self.machine, self.fabric))
        return self.capacities[key]

    # collectives ----------------------------------------------------------------------------------------------------

    def _arrive(self, npu: Npu, index: int) -> None:
        meeting = self._meeting(npu, index)
        members = meeting.arrived.setdefault(npu.rank, [])
        members.append((npu, index))
        if len(meeting.arrived) == len(meeting.expected) and all(
            len(found) == self._tasks_of(meeting) for found in meeting.arrived.values()
        ):
            self._start(meeting)

    def _tasks_of(self, meeting: Meeting) -> int:
        """Tasks that one simulated rank brings: two if it stands for both ends of a message."""
        return 2 if meeting.collective.kind in ("send", "recv") and len(meeting.expected) == 1 else 1

    def _meeting(self, npu: Npu, index: int) -> Meeting:
        key, members = self._plan(npu.rank)[npu.tape.steps[index].exchange]
        task = self._tasks[id(self.world.programs[npu.rank])][index]
        collective = task.work
        assert isinstance(collective, Collective)
        meeting = self.meetings.get(key)
        if meeting is None:
            leader = self.roles.leader
            expected = frozenset(leader[rank] for rank in members)
            meeting = Meeting(key, expected, self._phases_of(key, collective, members), collective)
            self.meetings[key] = meeting
        elif meeting.collective.signature() != collective.signature():
            other = next(iter(meeting.arrived))
            raise RunError(
                f"ranks {other} and {npu.rank} disagree on exchange {key[-1]} of group '{key[0]}': "
                f"rank {other} runs {meeting.collective}; rank {npu.rank} runs {collective} "
                f"(stream '{task.stream}', task '{task.name}', layer {task.layer})"
            )
        return meeting

    def _plan(self, rank: int) -> list[tuple]:
        """(meeting key, members) of every exchange of this rank's program, in launch order."""
        if rank not in self._plans:
            self._plans[rank] = _plan_of(self.world, self.roles, rank)
        return self._plans[rank]

    def _phases_of(self, key: tuple, collective: Collective, members: tuple[int, ...]) -> tuple[Phase, ...]:
        what = collective
        if collective.kind == "recv":
            what = Collective("send", collective.group, collective.via, collective.bytes_per_pair)
        elif collective.kind == "send":
            what = Collective("send", collective.group, collective.via, collective.bytes_per_pair)
        known = (key[:-1], what)
        if known not in self._phases:
            if self.roles.colours is None:
                self._phases[known] = self.lowering.lower(what, members)
            else:
                instances = _alike(self.world, self.roles, collective, members)
                self._phases[known] = fold((self.lowering.lower(what, alike) for alike in instances), self.roles)
        return self._phases[known]

    def _start(self, meeting: Meeting) -> None:
        meeting.started_ps = int(self.env.now)
        self._phase(meeting, 0)

    def _phase(self, meeting: Meeting, number: int) -> None:
        phase = meeting.phases[number]
        last = number + 1 == len(meeting.phases)
        latency_ps = to_ps(phase.latency_s)
        meeting.solo_ps += latency_ps
        if not phase.transfers:
            following = (lambda: self._end_all(meeting)) if last else (lambda: self._phase(meeting, number + 1))
            call_later(self.env, latency_ps, lambda _: following())
            return
        flows = [(transfer, self._flow(transfer)) for transfer in phase.transfers]
        meeting.solo_ps += max(to_ps(flow.solo_s()) for _, flow in flows)
        if last:
            for transfer, _ in flows:
                for rank in transfer.ranks:
                    meeting.waiting[rank] = meeting.waiting.get(rank, 0) + 1
            self._leave_idle(meeting)
        left = [len(flows)]

        def done(flow: Flow, transfer: Transfer) -> None:
            left[0] -= 1
            if last:
                self._leave(meeting, transfer, flow)
            elif not left[0]:
                self._phase(meeting, number + 1)

        for transfer, flow in flows:
            self.network.start(flow, lambda flow, transfer=transfer: done(flow, transfer), latency_ps)  # type: ignore[misc]

    def _flow(self, transfer: Transfer) -> Flow:
        size = transfer.size_bytes
        loads = [(self.capacity(key), load / size) for key, load in transfer.loads]
        return Flow(size, loads, weight=transfer.weight)

    def _leave(self, meeting: Meeting, transfer: Transfer, flow: Flow) -> None:
        by = _bound(flow)
        for rank in transfer.ranks:
            meeting.waiting[rank] -= 1
            if not meeting.waiting[rank]:
                self._end(meeting, rank, by)

    def _leave_idle(self, meeting: Meeting) -> None:
        """Members that neither send nor receive anything in an uneven exchange end after its latency."""
        idle = [rank for rank in meeting.arrived if rank not in meeting.waiting]
        if idle:
            latency_ps = to_ps(meeting.phases[-1].latency_s)
            call_later(self.env, latency_ps, lambda _: [self._end(meeting, rank, "latency") for rank in idle])

    def _end_all(self, meeting: Meeting) -> None:
        for rank in list(meeting.arrived):
            self._end(meeting, rank, "latency")

    def _end(self, meeting: Meeting, rank: int, bound_by: str) -> None:
        members = meeting.arrived.pop(rank)
        if not meeting.arrived:
            del self.meetings[meeting.key]
        for npu, index in members:
            npu.finish(index, meeting.started_ps, meeting.solo_ps, bound_by, npu.tape.steps[index].need, 1)

    # errors ---------------------------------------------------------------------------------------------------------

    def _deadlock(self, stuck: list[Npu]) -> str:
        lines = [f"deadlock: {len(stuck)} of {len(self.npus)} simulated ranks can never go on"]
        for npu in stuck[:4]:
            lines += self._stuck_lines(npu)
        if len(stuck) > 4:
            lines.append(f"  ... and {len(stuck) - 4} more ranks")
        return "\n".join(lines)

    def _stuck_lines(self, npu: Npu) -> list[str]:
        tasks = self._tasks[id(self.world.programs[npu.rank])]
        lines = []
        host = npu.host_waits_for()
        if host >= 0:
            lines.append(f"  rank {npu.rank} host: blocked until {_label(tasks[host])} has ended")
        for stream, order in enumerate(npu.tape.streams):
            if npu.position[stream] == len(order):
                continue
            task = tasks[order[npu.position[stream]]]
            lines.append(f"  rank {npu.rank} stream '{task.stream}': {_label(task)} {self._waits(npu, task, tasks)}")
        return lines

    def _waits(self, npu: Npu, task: Task, tasks: list[Task]) -> str:
        missing = [tasks[index] for index in task.after if npu.ended_ps[index] < 0]
        if missing:
            return "waits for " + ", ".join(f"{_label(other)} of stream '{other.stream}'" for other in missing)
        if npu.issued_ps(task.index) < 0:
            return "was never launched by the host"
        if isinstance(task.work, Collective) and npu.ready_ps[task.index] >= 0:
            meeting = self._meeting(npu, task.index)
            absent = sorted(meeting.expected - set(meeting.arrived))
            return f"waits for ranks {absent} of group '{task.work.group}'"
        return "waits for cores"


def rate_of(key: Key, machine: MachineSpec, fabric: Fabric) -> float:
    """The rate of a capacity in bytes/s."""
    if key[0] == "hbm":
        return machine.chip.hbm.peak.si * machine.chip.hbm.efficiency.si
    if key[0] == "l2":
        return machine.chip.l2.rate.si
    if key[0] == "link":
        return float(fabric.graph.edges[key[1], key[2]]["rate_bytes_per_s"])
    return float(key[2])  # "out", "in": the rate that the driving engine achieves


def _name(key: Key) -> str:
    words = {"hbm": "HBM", "l2": "L2", "link": "link", "out": "wire", "in": "wire"}
    return f"{words[key[0]]} {' '.join(str(part) for part in key[1:])}"


def _pools(program: Program, slots: dict[str, int]) -> dict[str, Cores]:
    """The chip's cores by partition; what no partition holds stays with the streams that have none."""
    if not program.partitions:
        return {"": Cores(slots)}
    rest = dict(slots)
    for shares in program.partitions.values():
        for pool, count in shares.items():
            rest[pool] -= count
    return Cores(slots).partition(
        {"": rest, **{name: {**rest, **shares} for name, shares in program.partitions.items()}}
    )


def _plan_of(world: World, roles: Roles, rank: int) -> list[tuple]:
    """(key, members) of each exchange of a rank. Key: group, who meets (leaders), sequence number."""
    counts: dict[tuple, int] = {}
    mine: dict[str, tuple[int, ...]] = {}
    plan = []
    for _, collective in world.programs[rank].collectives():
        name = collective.group
        members = mine.get(name) or mine.setdefault(name, world.instance(name, rank))
        side = ""
        if collective.kind in ("send", "recv"):
            peer = members[collective.peer]
            members = (rank, peer) if collective.kind == "send" else (peer, rank)
            side = collective.kind
        who = (name, tuple(roles.leader[member] for member in members) if side else _bag_of(roles, members))
        number = counts[who, side] = counts.get((who, side), -1) + 1
        plan.append(((*who, number), members))
    return plan


def _bag_of(roles: Roles, members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(roles.leader[member] for member in members))


def _alike(world: World, roles: Roles, collective: Collective, members: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every instance of the group whose members have the same leaders: they meet at the same time."""
    if collective.kind in ("send", "recv"):
        ends = tuple(roles.leader[member] for member in members)
        return [pair for pair in _messages(world, collective) if tuple(roles.leader[end] for end in pair) == ends]
    bag = _bag_of(roles, members)
    return [alike for alike in world.groups[collective.group] if _bag_of(roles, alike) == bag]


def _messages(world: World, collective: Collective) -> list[tuple[int, int]]:
    """(sender, receiver) of every message of the world with this size and engine."""
    pairs: dict[tuple[int, int], None] = {}
    for rank, program in enumerate(world.programs):
        for _, other in program.collectives():
            if other.kind == "send" and other.signature() == collective.signature():
                pairs[rank, world.instance(other.group, rank)[other.peer]] = None
    return list(pairs)


def _bound(flow: Flow) -> str:
    by = flow.bound_by()
    return "engine" if by is LIMIT or by == LIMIT else by.name  # type: ignore[union-attr]


def _label(task: Task) -> str:
    place = f" of layer {task.layer}" if task.layer >= 0 else ""
    return f"task '{task.name}' (#{task.index}{place})"
