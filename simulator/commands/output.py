"""What is left when a command has ended: JSON for scripts, warnings, files in a folder.

A folder is refused before the run if it cannot be written, and never left with half a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich_click as click

from simulator.errors import InputError
from simulator.observe.counters import counters
from simulator.observe.files import whole_file
from simulator.observe.kineto import write_kineto
from simulator.observe.recorded import Recorded
from simulator.observe.shown import USUAL, shown
from simulator.observe.tables import Cell, Titled, console, show
from simulator.observe.trace import write_trace
from simulator.study.expected import as_object, compared, plain
from simulator.study.recorded import ABOUT, TIMELINE, about_object, recorded_of
from simulator.study.simulate import Result
from simulator.study.struck import Struck

TRACE = "trace.json.gz"  # that every run leaves in its folder
KINETO = "kineto"  # a folder in it, with a file for each rank


def result_object(result: Result) -> dict[str, Any]:
    """What `run --json` prints: what was run, with which changes and seed, and what came out."""
    return {"scenario": result.scenario.name, "changes": dict(result.header["changed"]), "seed": result.header["seed"],
            "metrics": plain(result.metrics), "expected": [as_object(row, "band") for row in compared(result)],
            "parameters": plain(result.parameters) if result.recorded else []}


def kernels_object(result: Result) -> dict[str, Any]:
    """What `run --json --kernels` prints beside: times in us, of every name."""
    from simulator.observe.kernel_times import kernel_times

    return {"kernels": [
        {"name": one.name, "kind": one.kind, "per_rank": one.per_rank, "bound_by": one.bound_by}
        | {f"{what}{end}_us": time / 1e6 for what, spread in (("", one.work), ("waiting_", one.waiting))
           for end, time in zip(("mean", "min", "max"), spread, strict=True)}
        for one in kernel_times(result.columns)]}


def faults_object(struck: Struck) -> dict[str, Any]:
    """What `run --json` prints beside, where faults struck."""
    return {"without_faults": plain(struck.before.metrics),
            "faults": [aftermath.as_object() for aftermath in struck.aftermaths]}


def to_json(value: Any) -> str:
    """JSON as all commands print it."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A table on stdout."""
    show(console(), Titled("", headings, [*rows]))


def warn_unread(scenario: str, keys: Iterable[str]) -> None:
    """Says on stderr which of the settings given change nothing."""
    for key in keys:
        click.echo(f"warning: {key} has no effect on {scenario}: nothing in this run reads it", err=True)


@dataclass(frozen=True)
class TraceChoice:
    """What a trace shows: ranks, as `shown` takes them; window_ps: from when to when (None: all). kineto: whether each
    of them gets a file for PyTorch's tools too."""

    ranks: tuple[str, ...] = USUAL
    window_ps: tuple[int, int] | None = None
    kineto: bool = False


def write_result(result: Result, folder: OutputFolder, choice: TraceChoice | None = None) -> list[str]:
    """Writes the timeline, the trace and the JSON of a result; returns a line on each. InputError for ranks to show
    that there are not."""
    run, choice = recorded_of(result), choice or TraceChoice()
    ranks = _shown(run, choice)
    with folder.staged() as staging:
        result.timeline.write_parquet(staging / TIMELINE, run.about)
        write_trace(run.columns, staging / TRACE, [*ranks], result.flights,
                    counters(run.columns, [*ranks], run.peaks, run.memory), choice.window_ps, run.about)
        (staging / ABOUT).write_text(to_json(about_object(run)) + "\n", encoding="utf-8")
        if choice.kineto:
            write_kineto(run.columns, staging / KINETO, [*ranks], run.about)
    if not choice.kineto and (folder.path / KINETO).is_dir():
        shutil.rmtree(folder.path / KINETO)  # of an earlier run
    who = "; ".join(f"rank {rank}" + (f" ({why})" if why else "") for rank, why in ranks.items())
    written = [f"{folder.path / TIMELINE}", f"{folder.path / TRACE}: {who}", f"{folder.path / ABOUT}"]
    if choice.kineto:
        written.append(f"{folder.path / KINETO}: a file for each of these ranks (HTA_DISABLE_NS_ROUNDING=1 helps)")
    return written


def _shown(run: Recorded, choice: TraceChoice) -> dict[int, str]:
    """The ranks that a trace shows, with why; a rank that another one stands for is shown by that one."""
    try:
        leader = {one: run.leader(int(one)) for one in choice.ranks if one.isdecimal()}
        ranks = shown(run.columns, [str(leader.get(one, one)) for one in choice.ranks])
    except ValueError as error:
        raise InputError(f"--trace-ranks: {error}") from None
    if choice.window_ps and choice.window_ps[0] >= run.critical.makespan_ps:
        raise InputError(f"--trace-window: {run.name} has ended by then, after {run.critical.makespan_ps / 1e9:.4g} ms")
    standing = {rank: ", ".join(one for one, its in leader.items() if its == rank != int(one)) for rank in ranks}
    return {rank: ", ".join(filter(None, (why, standing[rank] and f"for {standing[rank]}")))
            for rank, why in ranks.items()}


class OutputFolder:
    """A folder to write results into. It is made when the first results are there; the folder above must exist."""

    def __init__(self, path: Path) -> None:
        """Raises InputError if `path` cannot become a folder with files in it; leaves nothing behind."""
        self.path = path.expanduser()
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"cannot write to '{path}': it is a file, not a folder")
        nearest = self.path if self.path.is_dir() else self.path.parent
        if not nearest.is_dir():
            what = "is a file, not a folder" if nearest.exists() else "does not exist"
            raise InputError(f"cannot write to '{self.path}': '{nearest}' {what}")
        try:  # permission bits alone do not tell
            os.rmdir(tempfile.mkdtemp(prefix=".braid-", dir=nearest))
        except OSError as error:
            raise InputError(f"cannot write to '{self.path}': {error.strerror or error}") from None

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A folder to write files into; they get their final names together at the end, or not at all."""
        is_new = not self.path.exists()
        self.path.mkdir(exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".braid-", dir=self.path))
        try:
            yield staging
            for one in sorted(staging.iterdir()):
                there = self.path / one.name
                if there.is_dir():  # of an earlier run: a folder is replaced as a whole
                    os.replace(there, staging / f"old-{one.name}")
                os.replace(one, there)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if is_new and not any(self.path.iterdir()):
                self.path.rmdir()


def results_folder(path: Path | None, force: bool, holds: str = TRACE) -> OutputFolder | None:
    """The folder of --out; InputError too where it holds other things than what Braid wrote, without `force`. holds: a
    file that it has if Braid wrote it."""
    if path is None:
        if force:
            raise InputError("--force is of --out, which is not given")
        return None
    folder = OutputFolder(path)
    there = folder.path.is_dir() and any(not one.name.startswith(".") for one in folder.path.iterdir())
    if there and not force and not any(folder.path.glob(holds)):
        raise InputError(f"'{folder.path}' holds files that are not of a run: --out into a new folder, or --force")
    return folder


def write_text(path: Path, text: str) -> None:
    """Writes one small file whole or not at all, and makes its folder; InputError if it cannot be written."""
    try:
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None
