"""Runs a scenario: the one place where machine, model, programs and observers meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from simulator.collective.lowering import Lowering
from simulator.die.memory import Ledger
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.live.faults import strike
from simulator.live.live import LiveReplay, stands_for_all
from simulator.live.thread import Journal
from simulator.observe.critical import CriticalPath, critical_path
from simulator.observe.metrics import Metrics, busy_by_block, measure
from simulator.observe.timeline import StaticTasks, Timeline, Unrecorded
from simulator.observe.trace import Flight
from simulator.paths import located
from simulator.physics.clock import seldom_collected
from simulator.program.free import without_cost
from simulator.program.task import ProgramError
from simulator.program.world import World, record_shared, record_world, sizes_of
from simulator.replay.faults import schedules_of
from simulator.replay.jitter import Jitter
from simulator.replay.replay import Replay, rate_of
from simulator.replay.tape import Compiler
from simulator.spec.machine import MachineSpec
from simulator.study.computer import check_fits
from simulator.study.provenance import parameters_of
from simulator.study.reads import Reads
from simulator.study.refusals import naming_settings, numbers_of
from simulator.study.scenario import Case, Scenario
from simulator.study.traffic import Traffic
from simulator.symmetry.roles import Roles, find_roles, unfolded
from simulator.units import PS_PER_S

Progress = Callable[[float], None]
ROW_BYTES = 350
"""That a row of a timeline takes at most, until it is written with its trace (results/trust/load.md)."""
RANK_MODES = ("roles", "all")
EXCHANGE_MODES = ("auto", "classes", "pairwise")


@dataclass(frozen=True)
class Prepared:
    """A scenario ready to run: its machine, recorded programs, fabric and memory, and who reads its settings."""

    scenario: Scenario
    machine: MachineSpec
    case: Case
    world: World
    fabric: Fabric
    ledger: Ledger
    reads: Reads


@dataclass
class Result:
    """What a run gave. header: how it was run. own: the metrics of its workload, by name, in the unit that ends the
    name. recorded: whether its tasks were; if not, there are only makespan and metrics that follow from it or the
    programs. sent_again_bytes: by network cards of live hosts, of what was lost.
    """

    scenario: Scenario
    machine: MachineSpec
    header: dict[str, Any]
    own: Mapping[str, float]
    timeline: Timeline
    ledger: Ledger
    makespan_ps: int
    world: World
    traffic: Traffic
    flights: Sequence[Flight] = ()
    recorded: bool = True
    sent_again_bytes: int = 0

    @cached_property
    @seldom_collected()
    def metrics(self) -> dict[str, float]:
        """Those of its workload and of every run, by name, in the unit that ends the name."""
        of_timeline = _of_timeline(self) if self.recorded else {}
        sent = {f"sent_{level}_mb": size / 1e6 for level, size in self.traffic.per_rank().items()}
        sent |= {"sent_again_mb": self.sent_again_bytes / 1e6} if self.sent_again_bytes else {}
        return {**self.own, **of_timeline, **sent}

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The timeline as columns; InputError if nothing was recorded."""
        if not self.recorded:
            raise InputError(f"{self.scenario.name} was run without recording: there is no timeline")
        return self.timeline.columns()

    @cached_property
    def measured(self) -> Metrics:
        """Where the time went."""
        return measure(self.columns)

    @cached_property
    def critical(self) -> CriticalPath:
        """The chain of tasks and waits that made the run as long as it is."""
        return critical_path(self.columns)

    @cached_property
    def parameters(self) -> list[dict[str, Any]]:
        """Machine parameters that bounded more than 1% of the critical path: name, value, unit, kind, source, share;
        saves: what of the run's length twice as good a number would save."""
        return parameters_of(self.critical, self.machine, self.scenario.kernels, self.world)

    def without_timeline(self) -> Result:
        """The same with the metrics of its workload alone, as if nothing had been recorded."""
        return replace(self, timeline=Timeline(self.scenario.name), flights=(), recorded=False)


@naming_settings
@seldom_collected()
def prepare(scenario: Scenario, seed: int = 0, record: Callable[..., World] = record_world) -> Prepared:
    """Record the programs of a scenario and check that it fits; record: `record_shared` does where none is to run.

    InputError: a name, number or layout that cannot be. DoesNotFit: more memory than there is, with the ledger.
    """
    reads = Reads(scenario.changes)
    machine = scenario.machine_spec(reads)
    case = scenario.case(machine, seed, reads)
    fabric = Fabric(machine, case.ranks)
    workload = scenario.workload
    try:
        groups = workload.groups(case)
        sizes_of(groups, case.ranks)  # ranks that do not divide are the mistake, whatever they would keep in memory
        ledger = ledger_of(scenario, case, machine)
        ledger.check()
        world = record(lambda npu: workload.program(npu, case), case.ranks, groups, partial(workload.coordinates, case))
        world = without_cost(world, scenario.free)
    except (ProgramError, ValueError) as error:
        raise InputError(f"{scenario.name}: {located(error)}") from error
    return Prepared(scenario, machine, case, world, fabric, ledger, reads)


def ledger_of(scenario: Scenario, case: Case, machine: MachineSpec) -> Ledger:
    """What the fullest rank keeps in memory; ValueError where the workload gives something else than items."""
    ledger = Ledger.of(f"{scenario.name}: the fullest rank", machine.chip.hbm)
    for item in scenario.workload.memory(case):
        if not isinstance(item, tuple | list) or len(item) != 3:
            raise ValueError(f"memory: {item!r} is not (name, category, bytes)")
        ledger.add(*item)  # type: ignore[arg-type]
    return ledger


@naming_settings
@seldom_collected()
def simulate(scenario: Scenario, *, ranks: str = "roles", seed: int = 0, exchange: str = "auto",
             progress: Progress | None = None, record: bool = True) -> Result:
    """Run a scenario once.

    ranks: "roles" simulates ranks that do the same thing once, "all" every rank. seed: of all draws. exchange: how
    collectives are lowered ("auto", "classes" or "pairwise"). progress: told the share done, now and then, and 0 once
    programs are recorded. record: whether to keep a timeline; without one there are only the makespan and what follows
    from it.
    """
    if ranks not in RANK_MODES or exchange not in EXCHANGE_MODES:
        raise InputError(f"ranks is one of {', '.join(RANK_MODES)}; exchange is one of {', '.join(EXCHANGE_MODES)}")
    ready = prepare(scenario, seed)
    if progress is not None:
        progress(0.0)
    lowering = Lowering(ready.fabric, ready.machine.collectives, exchange, ready.world.groups, ready.world.eager)
    roles = unfolded(ready.world)
    live = scenario.workload.live if scenario.workload.has_hosts(ready.case) else None
    changing = schedules_of(scenario.faults, ready.fabric, live is not None)
    jitter = Jitter(scenario.launch_jitter, seed, scenario.kernel_jitter)
    alike = not jitter.any and (live is None or scenario.workload.alike(ready.case))
    if ranks == "roles" and alike:
        roles = find_roles(ready.world, lowering, lambda key: rate_of(key, ready.machine, ready.fabric), changing)
    if live is not None and (changing or scenario.faults or not stands_for_all(roles, ready.fabric)):
        roles = unfolded(ready.world)
    timeline = Timeline(scenario.name)
    kept: Timeline | Unrecorded = timeline if record else Unrecorded()
    sizes = {name: len(instances[0]) for name, instances in ready.world.groups.items()}
    compiler = Compiler(ready.machine, scenario.kernels, sizes)
    total = sum(ready.world.programs[rank].launches for rank in roles.leaders)
    if record:
        check_fits(total, "rows of a timeline", ROW_BYTES, "without one (--no-record) they take none; fewer ranks are "
                   "simulated by roles, fewer tasks with fewer layers or steps")  # fmt: skip
        _add_ranks(timeline, ready, roles, compiler, shared=live is None)
    watch = kept if progress is None else _Reporting(kept, total, progress)
    replay = (LiveReplay if live else Replay)(ready.world, compiler, ready.fabric, lowering, roles, watch, changing,
                                              jitter)
    journal = Journal(kept)
    if live is not None and isinstance(replay, LiveReplay):
        replay.attach(lambda host: live(host, ready.case), journal)
        strike(replay.hosts, scenario.faults, ready.fabric, replay.change_at)
    makespan_ps = replay.run()
    if progress is not None:
        progress(1.0)
    traffic = Traffic(ready.world, roles, lowering, ready.fabric)
    timeline.sent_by = traffic.of_rank
    header = {"machine": ready.machine.title, "model": scenario.transformer().name, "cards": scenario.cards,
              "ranks": ready.case.ranks, "mode": ranks, "classes": len(roles.leaders), "leaders": roles.leader,
              "seed": seed, "changed": dict(scenario.changes)}
    result = Result(scenario, ready.machine, header, {}, timeline, ready.ledger, makespan_ps, ready.world, traffic,
                    [Flight(*one) for one in journal.flights], record)
    result.sent_again_bytes = replay.sent_again_bytes if isinstance(replay, LiveReplay) else 0
    result.own = _own_metrics(result, ready.case)
    drawn = "launch_jitter" not in scenario.changes or not scenario.launch_jitter or replay.launches_take_time
    header["unread"] = [*ready.reads.unread(), *([] if drawn else ["launch_jitter"])]
    return result


def _add_ranks(timeline: Timeline, ready: Prepared, roles: Roles, compiler: Compiler, shared: bool) -> None:
    known: dict[int, StaticTasks] = {}
    for rank, count in sorted(roles.multiplicity.items()):
        program = ready.world.programs[rank]
        if id(program) not in known or not shared:  # live processes add rows of their own
            known[id(program)] = StaticTasks.made_by(partial(compiler.column, program))
        timeline.add_rank(rank, known[id(program)], count)


def _own_metrics(result: Result, case: Case) -> Mapping[str, float]:
    """The workload's: what follows from the makespan, and what it reads from the timeline."""
    workload = result.scenario.workload
    measures = numbers_of(result.scenario, workload.measures(case, result.makespan_ps / PS_PER_S))
    if not result.recorded or workload.readings is None:
        return measures
    return {**measures, **numbers_of(result.scenario, workload.readings(case, result.columns))}


def _of_timeline(result: Result) -> dict[str, float]:
    """The metrics that every recorded run has, whatever its workload."""
    measured, times = result.measured, result.measured.all_communication
    metrics = {
        "communication_ms": times.busy_ps / 1e9, "hidden_comm_ms": times.hidden_ps / 1e9,
        "exposed_comm_ms": times.exposed_ps / 1e9, "waiting_comm_ms": times.waiting_ps / 1e9,
        "communication_share": times.busy_ps / max(result.makespan_ps, 1), "compute_ms": measured.compute_ps / 1e9,
        "compute_stretch": measured.stretch.overall, "host_bound_ms": measured.host_bound_ps / 1e9,
        **{f"{kind}_ms": busy_ps / 1e9 for kind, busy_ps in measured.kind_ps.items()},
        **{f"block_{block}_ms": busy_ps / 1e9 for block, busy_ps in busy_by_block(result.columns).items()},
    }  # fmt: skip
    if measured.stretch.beside_communication is not None:
        metrics["compute_stretch_beside_communication"] = measured.stretch.beside_communication
    return metrics


class _Reporting:
    """Passes finished tasks on, and says now and then how many there were."""

    EVERY = 4096

    def __init__(self, timeline: Timeline | Unrecorded, total: int, progress: Progress) -> None:
        self._record, self._total, self._progress = timeline.record, max(total, 1), progress
        self.found, self.late = timeline.found, timeline.late
        self._count = 0

    def record(self, *row: Any) -> None:
        """One finished task."""
        self._record(*row)
        self._count += 1
        if not self._count % self.EVERY:
            self._progress(self._count / self._total)


def program_text(scenario: Scenario) -> str:
    """What rank 0 does, in launch order."""
    return str(prepare(scenario, record=record_shared).world.programs[0])
