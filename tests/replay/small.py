"""Runs small programs on the machine of tests/data/tiny.toml and checks every law on the way.

    def program(npu: Rank) -> None:
        npu.launch(passes_mb(1), "a")

    run(program).us("a") == (0.0, 11.0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.collective.lowering import Lowering
from simulator.collective.transfer import CapacityKey
from simulator.die.kernels import Work
from simulator.fabric.graph import Fabric
from simulator.model import ops
from simulator.observe.timeline import StaticTasks, Timeline
from simulator.physics.flows import Network
from simulator.program.rank import Rank
from simulator.program.world import Groups, World, record_world
from simulator.replay.faults import schedules_of
from simulator.replay.jitter import Jitter
from simulator.replay.replay import Replay, rate_of
from simulator.replay.tape import Compiler
from simulator.spec.faults import Fault, fault_of
from simulator.spec.load import load_machine, override
from simulator.spec.machine import MachineSpec
from simulator.symmetry.roles import Roles, find_roles, unfolded
from simulator.units import PS_PER_S
from tests.law.timeline_laws import check_timeline

if TYPE_CHECKING:
    from simulator.observe.columns import Columns

TINY = load_machine(Path(__file__).parents[1] / "data" / "tiny.toml")
US = 10**6
NO_PLACE: Mapping[str, object] = {}


def tiny(changes: Mapping[str, str]) -> MachineSpec:
    """The tiny machine with some numbers replaced."""
    return override(TINY, changes)


def passes_mb(megabytes: float) -> Work:
    """A vector kernel that moves this much through HBM: 1 us, and 10 us for each MB."""
    return ops.passes(megabytes * 1e6, 0.0)


class Watched:
    """Checks at every change of rates that nothing is overdrawn, and adds up what moved on every capacity."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.moved: dict[CapacityKey, float] = {}
        self.most: dict[CapacityKey, float] = {}
        self._used: dict[CapacityKey, float] = {}
        self._since_ps = 0
        replay.network.watchers.append(self)

    def __call__(self, now_ps: int, _: Network) -> None:
        for key, used in self._used.items():
            self.moved[key] = self.moved.get(key, 0.0) + used * (now_ps - self._since_ps) / PS_PER_S
        self._since_ps = now_ps
        self._used = {key: capacity.used_bytes_per_s() for key, capacity in self.replay.capacities.items()}
        for key, used in self._used.items():
            self.most[key] = max(self.most.get(key, 0.0), used)
            most = self.replay.capacities[key].rate_bytes_per_s
            assert used <= most * (1 + 1e-9), f"{key} moves {used} B/s of {most} B/s at {now_ps} ps"
        for npu in self.replay.npus.values():
            for cores in npu.cores.values():
                assert all(0 <= cores.free[pool] <= count for pool, count in cores.slots.items()), cores.free


@dataclass
class Run:
    """What a small run gave. moved, most: bytes, and most bytes/s at a time, by key of a capacity."""

    columns: Columns
    makespan_ps: int
    replay: Replay
    world: World
    roles: Roles
    moved: dict[CapacityKey, float]
    most: dict[CapacityKey, float]

    def row(self, name: str, rank: int = 0) -> dict[str, Any]:
        """One task's row."""
        found = (self.columns["name"] == name) & (self.columns["rank"] == rank)
        (index,) = found.nonzero()[0]
        return {column: values[index] for column, values in self.columns.items()}

    def us(self, name: str, rank: int = 0) -> tuple[float, float]:
        """Start and end of a task in us."""
        row = self.row(name, rank)
        return row["start_ps"] / US, row["end_ps"] / US

    def lasts_us(self, name: str, rank: int = 0) -> float:
        """From start to end of a task in us."""
        start, end = self.us(name, rank)
        return round(end - start, 6)

    def times(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """(rank, task) -> issued, ready, start, end and solo time in ps."""
        names = ("issued_ps", "ready_ps", "start_ps", "end_ps", "solo_ps")
        rows = zip(*(self.columns[name].tolist() for name in ("rank", "task", *names)), strict=True)
        return {(rank, task): tuple(times) for rank, task, *times in rows}

    def hbm_asked(self, rank: int = 0) -> float:
        """Bytes through HBM that the table says a rank asked for."""
        return float(self.columns["hbm_bytes"][self.columns["rank"] == rank].sum())


def everybody(ranks: int) -> Groups:
    """One group of all."""
    return {"world": [tuple(range(ranks))]}


def run(
    program: Callable[[Rank], None],
    ranks: int = 1,
    *,
    machine: MachineSpec = TINY,
    groups: Groups | None = None,
    place: Callable[[int], Mapping[str, object]] = lambda _: NO_PLACE,
    **how: Any,
) -> Run:
    """Record a program for every rank and replay it; `how`: as for `replay`."""
    return replay(record_world(program, ranks, groups or everybody(ranks), place), machine, **how)


def replay(
    world: World,
    machine: MachineSpec = TINY,
    *,
    fold: bool = False,
    exchange: str = "auto",
    fabric: Fabric | None = None,
    faults: Sequence[str | Fault] = (),
    jitter: tuple[float, ...] = (),
) -> Run:
    """Replay a world with every law checked. fold: by roles. exchange: how collectives are lowered. jitter: of launches
    (sigma, seed), and of kernels (sigma)."""
    generation = next(iter(machine.kernels))
    fabric = fabric or Fabric(machine, world.ranks)
    lowering = Lowering(fabric, machine.collectives, exchange, world.groups)
    those = [fault_of(one) if isinstance(one, str) else one for one in faults]
    changing, roles = schedules_of(those, fabric), unfolded(world)
    if fold:
        roles = find_roles(world, lowering, lambda key: rate_of(key, machine, fabric), changing)
    timeline = Timeline("small")
    sizes = {name: len(instances[0]) for name, instances in world.groups.items()}
    compiler = Compiler(machine, generation, sizes)
    for rank, count in sorted(roles.multiplicity.items()):
        timeline.add_rank(rank, StaticTasks.made_by(partial(compiler.column, world.programs[rank])), count)
    ready = Replay(world, compiler, fabric, lowering, roles, timeline, changing, Jitter(*jitter))
    watched = Watched(ready)
    makespan_ps = ready.run()
    for npu in ready.npus.values():
        assert all(cores.free == cores.slots for cores in npu.cores.values()), "cores that nobody gave back"
    assert not ready.network.active
    columns = timeline.columns()
    check_timeline(columns)
    return Run(columns, makespan_ps, ready, world, roles, watched.moved, watched.most)
