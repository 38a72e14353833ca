"""Speed of replays: streams of 144 ranks and 61 layers, alone or with contention; collectives by roles, of any size.

Of collectives, what is prepared before is measured apart.
"""

from __future__ import annotations

from functools import partial

from simulator.bench.benchmark import Measurement, best_of, looked_at, timed
from simulator.collective.lowering import Lowering
from simulator.die.tape import TaskObserver
from simulator.fabric.graph import Fabric
from simulator.model import ops
from simulator.observe.timeline import Unrecorded
from simulator.program.rank import Rank
from simulator.program.world import record_world
from simulator.replay.replay import Replay, rate_of
from simulator.replay.tape import Compiler
from simulator.spec.load import load_machine, override
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Scenario, Workload
from simulator.study.simulate import prepare, simulate
from simulator.symmetry.roles import find_roles, unfolded

CARDS, LAYERS, MICRO_BATCHES, TASKS = 72, 61, 2, 25
KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")
EACH = 250


def _alone(npu: Rank, case: Case) -> None:
    """One stream of small kernels of different sizes; ranks share nothing."""
    for number in range(LAYERS * MICRO_BATCHES * TASKS):
        npu.launch(ops.rms_norm(64 + number % 7, case.shapes.hidden), "kernel")


def _contended(npu: Rank, case: Case) -> None:
    """Two streams that contend for memory, with a collective of all ranks in every half layer of each."""
    world = npu.group("world")
    streams = [f"micro_batch_{number}" for number in range(MICRO_BATCHES)]
    for _ in range(LAYERS):
        for number, stream in enumerate(streams):
            with npu.stream(stream):
                for task in range(TASKS - 2):
                    npu.launch(ops.rms_norm(64 + (task + number) % 7, case.shapes.hidden), "kernel")
                    if task in (TASKS // 2, TASKS - 3):
                        world.all_gather("gather", 2**16, "sdma")


def _scenario(contended: bool) -> Scenario:
    """The program on a machine of the library; nothing of the model but its hidden size is used."""
    workload = Workload(
        program=_contended if contended else _alone, groups=lambda case: {"world": [tuple(range(case.ranks))]}
    )
    return load_scenario("a3_prefill:dp").variant(cards=CARDS, workload=workload, expected=())


def tasks_per_s(contended: bool, record: bool = True) -> Measurement:
    """Tasks a second of CPU time, recording of programs and replay included; record: a timeline and its metrics too."""
    scenario = _scenario(contended)

    def once() -> Measurement:
        cpu_s, result = timed(lambda: looked_at(simulate(scenario, ranks="all", record=record)))
        tasks = result.header["ranks"] * LAYERS * MICRO_BATCHES * TASKS
        return Measurement(tasks / cpu_s, cpu_s, {"tasks": tasks})

    return best_of(once)


def replay_alone(watch: TaskObserver) -> Replay:
    """The first of the two, ready to run and watched by this."""
    ready = prepare(_scenario(contended=False))
    lowering = Lowering(ready.fabric, ready.machine.collectives)
    compiler = Compiler(ready.machine, ready.scenario.kernels)
    return Replay(ready.world, compiler, ready.fabric, lowering, unfolded(ready.world), watch)


def _collectives(npu: Rank, each: int) -> None:
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
    world = record_world(partial(_collectives, each=each), ranks, groups, lambda rank: {})
    roles = find_roles(world, lowering, partial(rate_of, machine=machine, fabric=fabric))
    return Replay(world, Compiler(machine, next(iter(machine.kernels))), fabric, lowering, roles, Unrecorded())


def collective(ranks: int) -> Measurement:
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
