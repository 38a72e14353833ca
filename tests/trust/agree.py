"""Do the simulator and the plain second implementation agree, on random programs on random machines?

    python -m tests.trust.agree --programs 1000 --seed 0       writes results/trust/agreement.md

Every program is run with ranks folded by role, with all ranks, and by the reference; the issue, readiness, start and
end of every task are compared in picoseconds, and the length of the run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from simulator.collective.lowering import Lowering
from simulator.errors import InputError, RunError
from simulator.observe.files import whole_file
from simulator.physics.ranked import library
from simulator.replay.faults import schedules_of
from simulator.replay.replay import Replay, rate_of
from simulator.replay.tape import Compiler
from simulator.symmetry.roles import find_roles, unfolded
from tests.trust.progress import Progress
from tests.trust.random_runs import RandomRun, random_run
from tests.trust.reference import StuckError, Times, reference

RESULT = Path(__file__).resolve().parents[2] / "results" / "trust" / "agreement.md"
_HEAD = """# A second implementation of the run

`tests/trust/reference.py` runs recorded programs a second time, plainly: rank by rank, message by message, every rate
by progressive filling to fifty digits. Random programs on random machines are run by it, and by the simulator with
ranks folded by role and with all ranks (those that draw their launches and kernels are never folded). Faults strike
half of them: links slow, cut and flapping, clocks, memories, hosts, lost ranks, whole nodes. Made by
`python -m tests.trust.agree`.
"""
REFUSED = {"pass through other dies": "one-sided through other dies", "narrower": "one-sided across a narrow level",
           "cores": "too few cores for a task"}  # fmt: skip
"""What is said in a refusal, and what it is counted as."""
STUCK = -1
"""The length of a run that never ends."""


class _Rows:
    """Notes the times of every task."""

    def __init__(self) -> None:
        self.times: Times = {}

    def record(self, rank: int, task: int, *times_ps: int) -> None:
        """Issued, ready, started, ended, and what is not compared."""
        self.times[rank, task] = times_ps[:4]

    def found(self, *_: object) -> None:
        """L2 is compared by what it saves."""

    late = found


def simulated(run: RandomRun, fold: bool) -> tuple[int, Times]:
    """Length, and the times of every task of every rank, by the simulator; RunError that is no deadlock."""
    world, machine, fabric = run.world, run.machine, run.fabric()
    lowering = Lowering(fabric, machine.collectives, run.exchange, world.groups, world.eager)
    changing, roles, rows = schedules_of(run.faults, fabric), unfolded(world), _Rows()
    if fold and not run.jitter.any:
        roles = find_roles(world, lowering, partial(rate_of, machine=machine, fabric=fabric), changing)
    sizes = {name: len(instances[0]) for name, instances in world.groups.items()}
    compiler = Compiler(machine, next(iter(machine.kernels)), sizes)
    try:
        makespan_ps = Replay(world, compiler, fabric, lowering, roles, rows, changing, run.jitter).run()
    except RunError as error:
        if not str(error).startswith("deadlock"):
            raise
        makespan_ps = STUCK
    return makespan_ps, {(rank, task): times for rank in range(world.ranks)
                         for (leader, task), times in rows.times.items() if leader == roles.leader[rank]}


def referred(run: RandomRun) -> tuple[int, Times]:
    """The same by the reference."""
    try:
        times = reference(run.world, run.machine, run.fabric(), run.exchange, run.faults, run.jitter)
    except StuckError as stuck:
        return STUCK, stuck.times
    return max((end_ps for *_, end_ps in times.values()), default=0), times


@dataclass
class Agreement:
    """Of one program. off_ps: the largest difference between any two times; differing: how many tasks differ.

    refused: why it cannot be run, or none. worst: the first task that differs, in words.
    """

    tasks: int = 0
    ranks: int = 0
    refused: str = ""
    stuck: bool = False
    off_ps: int = 0
    differing: int = 0
    worst: str = ""


def agreement(run: RandomRun) -> Agreement:
    """Of all three runs of a program."""
    try:
        runs = {"roles": simulated(run, fold=True), "all ranks": simulated(run, fold=False)}
    except InputError as error:
        return Agreement(refused=str(error))
    length_ps, times = referred(run)
    found = Agreement(len(times), run.world.ranks, stuck=length_ps == STUCK)
    for name, (its_ps, its) in runs.items():
        if its_ps != length_ps:
            found.off_ps = max(found.off_ps, abs(its_ps - length_ps))
            found.worst = found.worst or f"{name}: {its_ps} ps, the reference {length_ps} ps"
        differing = [task for task in sorted(its.keys() | times.keys()) if its.get(task) != times.get(task)]
        found.differing += len(differing)
        for task in differing:
            both = its.get(task, (0, 0, 0, 0)), times.get(task, (0, 0, 0, 0))
            found.off_ps = max([found.off_ps, *(abs(one - other) for one, other in zip(*both, strict=True))])
        if differing:
            first = min(differing, key=lambda one: min(max(its.get(one, (0,))), max(times.get(one, (0,)))))
            found.worst = f"{name}: rank {first[0]} task {first[1]} {its.get(first)}, the reference {times.get(first)}"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where they disagree."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.agree", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000, help="how many programs (1000), without those refused")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; each has the next one (0)")
    parser.add_argument("--time", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--output", type=Path, default=RESULT, help="the table to write")
    asked = parser.parse_args(arguments)
    progress = Progress(asked.programs, "programs")
    found: dict[int, Agreement] = {}
    for seed in count(asked.seed):
        if progress.done == asked.programs or progress.spent_s > asked.time:
            break
        found[seed] = agreement(random_run(seed))
        if found[seed].differing or found[seed].off_ps:
            print(f"seed {seed}: off by {found[seed].off_ps:,} ps: {found[seed].worst}")
        if not found[seed].refused:
            progress.step()
    progress.end()
    text = _table(found, asked.seed)
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(asked.output) as part:
        part.write_text(text, encoding="utf-8")
    print(text)
    return int(any(one.off_ps or one.differing for one in found.values()))


def _table(found: dict[int, Agreement], seed: int) -> str:
    """What was found, as a page."""
    ran = [one for one in found.values() if not one.refused]
    off = {seed: one for seed, one in found.items() if one.off_ps or one.differing}
    reasons = Counter(next(reason for said, reason in REFUSED.items() if said in one.refused)
                      for one in found.values() if one.refused)  # fmt: skip
    rows = [
        ("programs drawn", f"{len(found):,}, seeds {seed:,} to {seed + len(found) - 1:,}"),
        ("refused by the simulator", f"{sum(reasons.values()):,}" + "".join(f"; {reason}: {count}" for reason, count
                                                                           in sorted(reasons.items()))),
        ("run three times and compared", f"{len(ran):,}"),
        ("of these, ended in a deadlock in all three", f"{sum(one.stuck for one in ran):,}"),
        ("tasks compared (issued, ready, start, end)", f"{sum(one.tasks for one in ran):,}"),
        ("ranks", f"1 to {max((one.ranks for one in ran), default=0)}"),
        ("solver of coupled flows", "compiled" if library() else "plain Python"),
        ("programs that agree to the picosecond", f"{len(ran) - len(off):,} of {len(ran):,}"),
        ("largest difference", f"{max((one.off_ps for one in ran), default=0):,} ps"),
    ]
    lines = [_HEAD, "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += [f"- seed {seed}: {one.differing} tasks differ, by {one.off_ps:,} ps at most: {one.worst}"
              for seed, one in off.items()]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
