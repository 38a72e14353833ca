"""Where results are kept that need not be simulated twice, and under which names.

A name belongs to a scenario with its machine and model, and to the version of Braid down to its source: what may have
another result has another name. Nothing is removed; BRAID_CACHE names another folder, or "off".
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from simulator import paths
from simulator.errors import InputError
from simulator.study.scenario import Scenario

FOLDERS = ("scenarios", "topologies", "workloads")


def cache_folder() -> Path | None:
    """BRAID_CACHE, or braid/ in the user's cache folder; None for "off", or where there is no such folder."""
    named = os.environ.get("BRAID_CACHE", "")
    if named:
        return None if named == "off" else Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "braid"
    except RuntimeError:
        return None


def name_of(scenario: Scenario, unnamed: str) -> str:
    """Of what is kept of a scenario; unnamed: how it begins where the scenario has no name."""
    settings = {key: str(value) for key, value in scenario.settings().items()}
    text = json.dumps([scenario.name, settings, scenario.machine_spec().model_dump_json(),
                       repr(scenario.transformer()), repr(scenario.faults), source(), *_own(scenario)])
    return f"{scenario.name.rpartition(':')[2] or unnamed}-{sha256(text.encode()).hexdigest()[:16]}"


def _own(scenario: Scenario) -> Iterator[str]:
    """Of files of the user's own that its program may be in: those beside the file of the scenario or the workload."""
    package = Path(__file__).resolve().parents[1]
    brought = [package, *map(paths.folder, FOLDERS)]
    files: list[str | None] = []
    with suppress(TypeError):  # of what is called like a function, and is none
        files.append(inspect.getsourcefile(getattr(scenario.workload.program, "func", scenario.workload.program)))
    with suppress(InputError):  # of a scenario that no file has, as a step of a service
        files.append(str(paths.find("scenarios", scenario.name.rpartition(":")[0])))
    for folder in sorted({Path(file).resolve().parent for file in files if file}):
        if not any(folder.is_relative_to(one) for one in brought):
            yield from (sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.py")))


@cache
def source() -> str:
    """The name of Braid's own files and of those that it brings, all together: of another version it is another."""
    found = sha256()
    package = Path(__file__).resolve().parents[1]
    files = [*package.rglob("*.py"), *package.rglob("*.c")]
    files += [file for kind in FOLDERS for file in paths.folder(kind).rglob("*") if file.suffix in (".py", ".toml")]
    for file in sorted(files):
        found.update(file.read_bytes())
    return found.hexdigest()
