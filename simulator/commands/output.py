"""What is left when a command has ended: JSON for scripts, warnings, files in a folder.

A folder is refused before the run if it cannot be written, and never left with half a file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import rich_click as click

from simulator.errors import InputError, RunError
from simulator.observe.counters import counters
from simulator.observe.files import whole_file
from simulator.observe.kineto import write_kineto
from simulator.observe.recorded import Recorded
from simulator.observe.shown import USUAL, shown
from simulator.observe.tables import Cell, Titled, console, show
from simulator.observe.temporary import a_folder, held, settle, temporary, together
from simulator.observe.trace import write_trace
from simulator.paths import own_path
from simulator.study.expected import as_object, compared, plain
from simulator.study.recorded import ABOUT, TIMELINE, about_object, recorded_of
from simulator.study.simulate import Result
from simulator.study.struck import Struck

TRACE = "trace.json.gz"  # that every run leaves in its folder
KINETO = "kineto"  # a folder in it, with a file for each rank
ROOM_BYTES = 1 << 20  # without which nothing is begun: the smallest results are 20 KiB, most below 1 MiB
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


def write_result(result: Result, folder: OutputFolder, choice: TraceChoice | None = None,
                 tell: Callable[[float], None] = lambda share: None,
                 beside: Mapping[str, str] = MappingProxyType({})) -> list[str]:  # fmt: skip
    """Writes the timeline, the trace and the JSON of a result; returns a line on each. tell: told the share of the
    timeline that is written; beside: texts of more files, by name. InputError for ranks to show that there are not."""
    run, choice = recorded_of(result), choice or TraceChoice()
    ranks = _shown(run, choice)
    with folder.staged() as staging:
        result.timeline.write_parquet(staging / TIMELINE, run.about, tell)
        write_trace(run.columns, staging / TRACE, [*ranks], result.flights,
                    counters(run.columns, [*ranks], run.peaks, run.memory), choice.window_ps, run.about)
        (staging / ABOUT).write_text(to_json(about_object(run)) + "\n", encoding="utf-8")
        for name, text in beside.items():
            (staging / name).write_text(text, encoding="utf-8")
        if choice.kineto:
            write_kineto(run.columns, staging / KINETO, [*ranks], run.about)
    if not choice.kineto:
        folder.remove(KINETO)
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
        self.path = own_path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"cannot write to '{path}': it is a file, not a folder")
        nearest = self.path if self.path.is_dir() else self.path.parent
        if not nearest.is_dir():
            what = "is a file, not a folder" if nearest.exists() else "does not exist"
            raise InputError(f"cannot write to '{self.path}': '{nearest}' {what}")
        settle(self.path.parent)
        try:  # permission bits alone do not tell
            with temporary(nearest, "probe"):
                free = shutil.disk_usage(nearest).free
        except OSError as error:
            raise InputError(f"cannot write to '{self.path}': {error.strerror or error}") from None
        if free < ROOM_BYTES:
            raise InputError(f"cannot write to '{self.path}': {free // 1024} KiB are free there, results may take "
                             f"{ROOM_BYTES // 1024} KiB or more")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The folder for this process alone; it is made, and goes again if nothing was written. InputError: another
        process has it, or it cannot be written to."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held(self.path))
            except BlockingIOError as error:
                raise InputError(f"another run writes to '{self.path}': {error.strerror}; wait for it, or name another"
                                 " folder") from None
            except OSError as error:
                raise InputError(f"cannot write to '{self.path}': {error.strerror or error}") from None
            yield

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A folder to write files into; they get their final names together at the end, or not at all. RunError where
        the disk has no room for them."""
        is_new = not self.path.exists()
        self.path.mkdir(exist_ok=True)
        try:
            with together(self.path) as staging:
                yield staging
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise RunError(f"cannot write to '{self.path}': {os.strerror(error.errno)}") from error
        finally:
            if is_new and not any(self.path.iterdir()):
                self.path.rmdir()

    def remove(self, name: str) -> None:
        """A folder in it of an earlier run, whole or not at all."""
        if (self.path / name).is_dir():
            with temporary(self.path, "old", a_folder) as old:
                os.replace(self.path / name, old / name)


def results_folder(path: Path | None, force: bool, holds: str = TRACE) -> OutputFolder | None:
    """The folder of --out, this process's alone until the command has ended; InputError too where it holds other things
    than what Braid wrote, without `force`. holds: a file that it has if Braid wrote it."""
    if path is None:
        if force:
            raise InputError("--force is of --out, which is not given")
        return None
    folder = OutputFolder(path)
    command = click.get_current_context()
    assert command is not None
    command.with_resource(folder.held())
    if not force and _has_files(folder.path) and not any(folder.path.glob(holds)):
        raise InputError(f"'{folder.path}' holds files that are not of a run: --out into a new folder, or --force")
    return folder


def _has_files(folder: Path) -> bool:
    """Whether there are any, there or below, but for those whose names begin with a point, as temporary ones do."""
    for _, below, names in os.walk(folder):
        below[:] = [one for one in below if not one.startswith(".")]
        if any(not one.startswith(".") for one in names):
            return True
    return False


def write_text(path: Path, text: str) -> None:
    """Writes one small file whole or not at all, and makes its folder; InputError if it cannot be written, RunError if
    the disk has no room for it."""
    try:
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        kind = RunError if error.errno in NO_ROOM else InputError
        raise kind(f"cannot write '{path}': {error.strerror or error}") from None
