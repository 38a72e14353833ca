"""Speed of symmetric collectives by roles, whatever the number of ranks; what is prepared before is measured apart."""

from __future__ import annotations

from functools import partial

from simulator.bench.benchmark import Measurement, timed
from simulator.collective.lowering import Lowering
from simulator.fabric.graph import Fabric
from simulator.observe.timeline import Unrecorded
from simulator.program.rank import Rank
from simulator.program.world import record_world
from simulator.replay.replay import Replay, rate_of
from simulator.spec.load import load_machine, override
from simulator.symmetry.roles import find_roles

KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")
EACH = 250


def _program(npu: Rank, each: int) -> None:
    world = npu.group("world")
    for kind in KINDS:
        for _ in range(each):
            getattr(world, kind)(kind, 2**16, "sdma")


def prepared(ranks: int, each: int = EACH) -> Replay:
    """Every kind so many times, on one group of all ranks, ready to run."""
    machine = override(load_machine("atlas_a3"), {"fabric.supernode.size": str(max(48, ranks // 16))})
    fabric = Fabric(machine, ranks)
    lowering = Lowering(fabric, machine.collectives)
    groups = {"world": [tuple(range(ranks))]}
    world = record_world(partial(_program, each=each), ranks, groups, lambda rank: {})
    roles = find_roles(world, lowering, partial(rate_of, machine=machine, fabric=fabric))
    return Replay(world, machine, next(iter(machine.kernels)), fabric, lowering, roles, Unrecorded())


def simulation(ranks: int) -> Measurement:
    """CPU microseconds of a collective once everything is prepared."""
    replay = prepared(ranks)
    cpu_s, _ = timed(replay.run)
    count = EACH * len(KINDS)
    counts = {"tasks": count, "flows": replay.network.stats.started, "solves": replay.network.stats.solves}
    return Measurement(cpu_s / count * 1e6, cpu_s, counts)


def preparation(ranks: int) -> Measurement:
    """CPU microseconds a rank of fabric, routes, groups and roles of one collective of each kind."""
    cpu_s, _ = timed(lambda: prepared(ranks, 1))
    return Measurement(cpu_s / ranks * 1e6, cpu_s, {"ranks": ranks})
