"""Recorded runs, kept in a folder and read back: the timeline as Parquet, all else of them as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.fabric.level import die
from simulator.observe.arrow import read_parquet
from simulator.observe.recorded import Memory, Peaks, Recorded
from simulator.observe.temporary import settle
from simulator.paths import installed_version
from simulator.replay.replay import rate_of
from simulator.spec.machine import MachineSpec
from simulator.study.expected import as_object, compared, plain
from simulator.study.recorded_file import check_recorded
from simulator.study.simulate import Result

TIMELINE, ABOUT = "timeline.parquet", "result.json"
_HEADER = ("seed", "machine", "model", "cards", "ranks", "classes", "mode")


def recorded_of(result: Result) -> Recorded:
    """A run that was recorded, without what it was simulated on. InputError if it was not recorded."""
    header, scenario, ledger = result.header, result.scenario, result.ledger
    about = {"scenario": scenario.name, "title": scenario.full_title, "version": installed_version(),
             **{key: header[key] for key in _HEADER},
             "leaders": " ".join(map(str, header["leaders"])), "changes": dict(header["changed"]),
             "settings": plain(scenario.settings())}
    items = [(item.category, item.name, item.size_bytes) for item in ledger.items]
    return Recorded(about, result.columns, plain(result.metrics), [as_object(row, "band") for row in compared(result)],
                    plain(result.parameters), Memory(ledger.capacity_bytes, ledger.usable_bytes, items),
                    peaks_of(result.machine, Fabric(result.machine, header["ranks"])))  # fmt: skip


def peaks_of(machine: MachineSpec, fabric: Fabric) -> Peaks:
    """What a die of a machine has at most; of memory what kernels achieve together."""
    chip = machine.chip
    links = {name: float(sum(link.rate_bytes_per_s for link in level.links() if link.source == die(0)))
             for name, level in fabric.by_level.items()}
    return Peaks(rate_of(("hbm", 0), machine, fabric), rate_of(("l2", 0), machine, fabric),
                 {pool: count.count for pool, count in chip.cores.items()}, links,
                 {pool: {dtype: peak.si for dtype, peak in peaks.items()} for pool, peaks in chip.peak.items()})


def about_object(run: Recorded) -> dict[str, Any]:
    """All of a recorded run but its timeline, as JSON has it."""
    about = dict(run.about)
    return {"scenario": about.pop("scenario"), "changes": about.pop("changes"), "seed": about.pop("seed"),
            "metrics": dict(run.metrics), "expected": [*run.expected], "parameters": [*run.parameters],
            "about": about, "memory": plain(asdict(run.memory)), "peaks": plain(asdict(run.peaks))}


def is_folder_of_run(path: Path) -> bool:
    """Whether `run --out` wrote this folder."""
    return (path / TIMELINE).is_file() and (path / ABOUT).is_file()


def read_recorded(folder: Path, tell: Callable[[float], None] = lambda share: None) -> Recorded:
    """The run that `run --out` wrote into a folder; tell: told the share that is read. InputError if it did not, or an
    earlier version of Braid did."""
    settle(folder)
    if not is_folder_of_run(folder):
        missing = TIMELINE if (folder / ABOUT).is_file() else ABOUT
        raise InputError(f"'{folder}' has no {missing}: `braid run SCENARIO --out FOLDER` writes such a folder")
    try:
        said = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        check_recorded(said)
        about = {**said["about"], **{key: said[key] for key in ("scenario", "changes", "seed")}}
        memory = Memory(**{**said["memory"], "items": [tuple(item) for item in said["memory"]["items"]]})
        peaks = Peaks(**said["peaks"])
        found = said["metrics"], said["expected"], said["parameters"]
    except (ValueError, RecursionError) as error:
        raise InputError(f"'{folder / ABOUT}' is not what `braid run --out` of this version writes: {error}; "
                         "run it again") from None
    try:
        return Recorded(about, read_parquet(folder / TIMELINE, tell), *found, memory, peaks)
    except ValueError as error:
        raise InputError(f"{error}; run it again") from None
