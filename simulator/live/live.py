"""Replays a recorded world beside live hosts: GPUs and their proxies meet in flags, hosts meet on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.collective.transfer import CapacityKey
from simulator.die.npu import Npu
from simulator.errors import InputError, RunError
from simulator.fabric.graph import Fabric
from simulator.live.host import Host
from simulator.live.nic import Nic, Pace
from simulator.live.thread import HostProcess, Journal, JournalRow
from simulator.physics.flows import Capacity, Network
from simulator.program.task import Flag, Task
from simulator.replay.replay import Replay
from simulator.spec.nic import NicSpec
from simulator.symmetry.roles import Roles

Proxy = Callable[[Host], HostProcess]
"""A live program: the generator of one rank's proxy thread."""


def stands_for_all(roles: Roles, fabric: Fabric) -> bool:
    """Whether one rank can be simulated with its host for all, whose hosts do the same: they are one class, and what a
    card sends or receives crosses no link between nodes but its own port."""
    ports = all(level.kind == "switch" and level.ports == "die" for level in fabric.spec.fabric)
    return len(roles.leaders) == 1 and ports and fabric.as_described


def cards(network: Network, spec: NicSpec, fabric: Fabric, capacities: Mapping[CapacityKey, Capacity],
          leader: Sequence[int], journal: Journal) -> dict[int, list[Nic]]:
    """The cards of the ranks that are simulated, each with its peers. leader: by rank, who is simulated for it."""
    made: dict[int, list[Nic]] = {}
    for rank in sorted(set(leader)):
        pace = Pace()
        made[rank] = [Nic(network, spec, fabric, capacities, rank, number, journal, pace)
                      for number in range(spec.per_die.count)]
    for nics in made.values():
        for number, nic in enumerate(nics):
            nic.peers = {rank: made[one][number] for rank, one in enumerate(leader)}
    return made


class LiveReplay(Replay):
    """A replay with a host per simulated rank. Call `attach` once, then `run`."""

    hosts: dict[int, Host]

    def attach(self, proxy: Proxy, journal: Journal) -> None:
        """Give every rank a host that runs `proxy`. InputError if the machine has no network cards or proxies."""
        nic, costs = self.machine.nic, self.machine.proxy
        if nic is None or costs is None:
            raise InputError(f"{self.machine.name} has no tables [nic] and [proxy]: nothing can drive its hosts")
        self.journal = journal
        self._flags: set[tuple[int, str]] = set()  # set by hosts, and seen by their GPUs
        self._spinning: dict[tuple[int, str], tuple[Npu, int]] = {}
        nics = cards(self.network, nic, self.fabric, self.capacities, self.meetings.roles.leader, journal)
        self.hosts = {rank: Host(self.env, nics[rank], costs, rank, journal, self._seen, self._requests(rank))
                      for rank in self.npus}
        self.proxies = {rank: self.env.process(proxy(host)) for rank, host in self.hosts.items()}
        self._unfinished += len(self.proxies)
        for process in self.proxies.values():
            process.callbacks.append(lambda _: self.has_ended())
        for npu in self.npus.values():
            npu.meet = self._meet

    def run(self) -> int:
        """Run to the end; the makespan in ps. RunError names flags, counts and transfers that can never come."""
        makespan_ps = super().run()
        if any(process.is_alive for process in self.proxies.values()):
            raise RunError(self._deadlock([]))
        return makespan_ps

    def has_ended(self) -> None:
        """As of any run; but a write that was lost may wait for its card to come back."""
        nics = [nic for host in self.hosts.values() for nic in host.engine.nics]
        if self._unfinished == 1 and any(nic.dead for nic in nics) and any(nic.outstanding for nic in nics):
            self._unfinished = 0
        else:
            super().has_ended()

    @property
    def sent_again_bytes(self) -> int:
        """Of writes that cards had sent before, and lost."""
        return sum(nic.sent_again_bytes for host in self.hosts.values() for nic in host.engine.nics)

    def _requests(self, rank: int) -> list[Any]:
        """What the program of a rank asks its host for, in launch order."""
        flags = (task.work for task in self.tasks(rank) if isinstance(task.work, Flag))
        return [flag.request for flag in flags if flag.request is not None]

    def _meet(self, npu: Npu, index: int) -> None:
        work: Any = self.tasks(npu.rank)[index].work
        if not isinstance(work, Flag):
            self.meetings.arrive(npu, index)
            return
        if work.kind == "set_flag":
            self._finish(npu, index, work, self.env.now)
            self.hosts[npu.rank].from_gpu(work, JournalRow(npu.rank, self._kernel(npu.rank, index)))
            return
        if (npu.rank, work.flag) in self._flags:  # set before anybody waited for it: no cause of what comes now
            self._finish(npu, index, work, self.env.now)
        else:
            self._spinning[npu.rank, work.flag] = npu, index

    def _kernel(self, rank: int, index: int) -> int:
        """The task before this one on its stream: the kernel that sets the flag as the last thing it does."""
        tasks = self.tasks(rank)
        before = (one for one in range(index - 1, -1, -1) if tasks[one].stream == tasks[index].stream)
        return next(before, index)

    def _seen(self, rank: int, flag: str, row: JournalRow) -> None:
        """A GPU can see a flag of its host."""
        self._flags.add((rank, flag))
        waiting = self._spinning.pop((rank, flag), None)
        if waiting is not None:
            npu, index = waiting
            self.journal.follow(JournalRow(rank, index), row)
            self._finish(npu, index, self.tasks(rank)[index].work, self.env.now)

    def _finish(self, npu: Npu, index: int, flag: Any, start_ps: Any) -> None:
        npu.finish(index, start_ps, 0, "proxy.flag_to_gpu", flag.cores, 1)

    # what can never go on -------------------------------------------------------------------------------------------

    def _deadlock(self, stuck: list[Npu]) -> str:
        lost = [write for host in self.hosts.values() for nic in host.engine.nics
                for write in (*nic.given_up, *nic.outstanding)]
        lost += [write for host in self.hosts.values() for write in host.engine.parked]
        lines = ["deadlock: hosts can never go on"]
        dead = [f"rank {host.rank}'s nic {nic.number}" for host in self.hosts.values() for nic in host.engine.nics
                if nic.dead]
        lines += [f"  dead: {', '.join(dead)}"] * bool(dead)
        lines += [f"  never completed: {write}" for write in lost[:4]]
        lines += [f"  ... and {len(lost) - 4} more writes"] * (len(lost) > 4)
        waiting = [line for host in self.hosts.values() for line in self._waits_of(host)]
        lines += waiting[:8] + [f"  ... and {len(waiting) - 8} more"] * (len(waiting) > 8)
        lines += [super()._deadlock(stuck)] if stuck else []
        return "\n".join(lines)

    def _waits_of(self, host: Host) -> list[str]:
        engine = host.engine
        lines = [f"  rank {host.rank} engine: {engine.counts[name]} of {wanted.count} immediates of '{name}'"
                 for name, wanted in engine.expected.items()]
        if self.proxies[host.rank].is_alive:
            lines.insert(0, f"  rank {host.rank} proxy: waits for {host.proxy.waiting_for or 'time'}")
        return lines

    def _waits(self, npu: Npu, task: Task) -> str:
        work: Any = task.work
        if isinstance(work, Flag) and (npu.rank, work.flag) in self._spinning:
            return f"waits for its host to set flag '{work.flag}'"
        return super()._waits(npu, task)
