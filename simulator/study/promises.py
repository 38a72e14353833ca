"""What a run would save if a number of its machine were twice as good: what its critical path promises.

Every task on the path that the number bounds is costed again, alone, on the machine with that number doubled, or halved
where it is a time; its stretch of the path shrinks as it does:

    saved = sum over stretches of length (1 - alone on the better machine / alone)

What bounds the task next is in that: a collective that leaves its engine's rate for the wire's gains no more. Waits and
other stretches stay, so another path may decide sooner than promised.

Worked example: a run of 100 us has 50 us of GEMMs on its path that read their weights in 50 us and compute in 40 us:
memory twice as fast promises 10 us, not 25.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

from simulator.collective.lowering import Lowering, busy_of, solo_ps_by_rank
from simulator.collective.one_sided import (
    ONE_SIDED,
    PUT,
    latency_s,
    mean_latency_s,
    received_s,
    rows_limit_bytes_per_s,
)
from simulator.die.kernels import Work
from simulator.die.timing import KernelTimings
from simulator.fabric.graph import Fabric
from simulator.observe.critical import Segment
from simulator.program.task import Collective, Task
from simulator.program.world import World
from simulator.replay.costs import Costs
from simulator.replay.replay import rate_of
from simulator.replay.tape import launch_s
from simulator.spec.load import override
from simulator.spec.machine import MachineSpec
from simulator.spec.nic import NicSpec
from simulator.spec.typed_toml import quantities
from simulator.units import PS_PER_S, Quantity, dimension_of

_BURDENS = ("standing_queue", "score_bytes", "transfer_bytes", "copy_bytes", "latencies", "step_latencies")
_UNEVEN = 64  # members whose messages differ in size; of more it is taken that the number bounds them to the end


class Alone:
    """How long tasks take alone on a machine, by identity of their works."""

    def __init__(self, machine: MachineSpec, generation: str, world: World) -> None:
        self.machine, self.world, self.fabric = machine, world, Fabric(machine, world.ranks)
        self._costs = Costs(machine, generation)
        self._lowering = Lowering(self.fabric, machine.collectives, eager=world.eager)
        chip = machine.chip
        self._timings = KernelTimings(chip.hbm.peak.si * chip.hbm.efficiency.si, chip.l2.rate.si)
        self._rate_of = partial(rate_of, machine=machine, fabric=self.fabric)
        self._quantities = dict(quantities(machine))
        self.exchange_s, self._tasks = cache(self._exchange_s), cache(lambda rank: world.programs[rank].tasks)

    def seconds(self, segment: Segment) -> float | None:
        """Of the task of a stretch; None if it is neither a kernel nor an exchange that can be told alone. Where a
        network card writes, which is no task: of a byte."""
        tasks, rank, nic = self._tasks(segment.rank), segment.rank, self.machine.nic
        if segment.what == "host":
            program, host = self.world.programs[rank], self.machine.host
            calls = getattr(tasks[segment.task].work, "calls", 1) if segment.task < len(tasks) else 1
            return host.launch_graph.si if program.captured else launch_s(program, self.machine, calls)
        if segment.task >= len(tasks):
            return self._own_s(segment.bound_by, nic) if nic else None
        task = tasks[segment.task]
        if isinstance(task.work, Work):
            return self._kernel_s(task, rank)
        if not isinstance(task.work, Collective):
            return None
        own = self.world.programs[rank].partitions.get(task.partition, {})
        return self.exchange_s(task.work, self.world.instance(task.work.group, rank), rank, tuple(own.items()))

    def _own_s(self, bound_by: str, nic: NicSpec) -> float | None:
        """What a thread or card takes that says itself by which number it is bound; for a byte of a write at the
        narrowest of card, bus and link."""
        if bound_by == "nic.goodput":
            link = self.machine.fabric[-1].link_rate.si / nic.per_die.count
            return 1.0 / min(nic.goodput.si, nic.pcie.si, link)
        if bound_by == "nic.standing_queue":
            return nic.standing_queue.si / nic.goodput.si
        known = self._quantities.get(bound_by)
        if known is None or not known.si:
            return None
        return known.si if dimension_of(known.unit) == "s" else 1.0 / known.si

    def _kernel_s(self, task: Task, rank: int) -> float:
        """On the cores that its stream is confined to."""
        assert isinstance(task.work, Work)
        cost = self._costs.of(task.work)
        own = self.world.programs[rank].partitions.get(task.partition, {})
        cores = {pool: own.get(pool, count.count) for pool, count in self.machine.chip.cores.items()}
        units = min([cores[pool] // per_unit for pool, per_unit in cost.need], default=cost.want)
        return self._timings[cost, max(min(units, cost.want), 1), 0.0].solo_ps / PS_PER_S

    def _exchange_s(self, work: Collective, members: tuple[int, ...], rank: int,
                    own: tuple[tuple[str, int], ...]) -> float | None:
        """One-sided ones: what this rank does for itself, on the cores that its stream is confined to."""
        if work.kind in ONE_SIDED:
            return self._one_sided_s(work, members, rank, dict(own))
        if work.sizes and len(members) > _UNEVEN:
            return None
        phases = self._lowering.lower(work, members)
        transfers = [transfer for phase in phases for transfer in phase.transfers]
        return solo_ps_by_rank(phases, (rank,), busy_of(transfers, self._rate_of))[rank] / PS_PER_S

    def _one_sided_s(self, work: Collective, members: tuple[int, ...], rank: int, own: dict[str, int]) -> float:
        engine = self._lowering.engine(work, (rank,))
        cores = max(sum(min(count.count, own.get(pool, count.count)) for pool, count in engine.cores.items()), 1)
        if work.kind != PUT:
            return latency_s(self.fabric, members) + received_s(engine, work, cores)
        rate = min(engine.rate_bytes_per_s("all_to_all", work.sent_bytes / max(len(members) - 1, 1)),
                   rows_limit_bytes_per_s(engine, work, cores, mean_latency_s(self.fabric, members)))  # fmt: skip
        return engine.startup_s(len(members)) + work.sent_bytes / rate


def twice_as_good(name: str, quantity: Quantity) -> float:
    """The value of a number twice as good, in its unit: half a time or burden, twice a rate, no more than all of what
    it is a share of, and whole steps."""
    what = name.rpartition(".")[2]
    if what == "step_latencies":
        return float(-(-quantity.value // 2))
    if dimension_of(quantity.unit) == "s" or what in _BURDENS:
        return quantity.value / 2
    return min(quantity.value * 2, 1.0) if quantity.unit == "1" and quantity.value <= 1 else quantity.value * 2


def better(machine: MachineSpec, name: str) -> MachineSpec:
    """With one number twice as good."""
    quantity = dict(quantities(machine))[name]
    both = (name, name.replace("startup_eager", "startup"))  # the one that eager launches have
    return override(machine, dict.fromkeys(both, f"{twice_as_good(name, quantity)!r} {quantity.unit}"
                                           .removesuffix(" 1")))  # fmt: skip


def saved_ps(alone: Alone, generation: str, name: str, segments: Iterable[Segment]) -> float:
    """Of the stretches of a path that a number bounds, if it were twice as good."""
    twice = Alone(better(alone.machine, name), generation, alone.world)
    saved = 0.0
    for segment in segments:
        before, after = alone.seconds(segment), twice.seconds(segment)
        share = 0.5 if not before or after is None else max(1.0 - after / before, 0.0)
        saved += (segment.to_ps - segment.from_ps) * share
    return saved
