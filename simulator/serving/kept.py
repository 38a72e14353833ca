"""Steps that were simulated before, in a file of the user's cache folder: the same batch is not simulated twice.

A file belongs to a scenario with its machine and model, and to the version of Braid down to its source: what may have
another result has another name. Nothing is removed; BRAID_CACHE names another folder, or "off".
"""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from time import monotonic

from simulator.observe.files import whole_file
from simulator.study.kept import name_of
from simulator.study.scenario import Scenario

WRITTEN_EVERY_S = 15.0


class Kept:
    """Seconds by what was simulated, of one scenario. folder: None keeps nothing on disk. found: those that were there
    before and were asked for."""

    def __init__(self, scenario: Scenario, folder: Path | None) -> None:
        self._path = folder / f"{name_of(scenario, 'steps')}.json" if folder else None
        self._seconds = _read(self._path) if self._path else {}
        self._before, self._new = frozenset(self._seconds), 0
        self.found: set[str] = set()
        self._written_s = monotonic()

    def get(self, key: str) -> float | None:
        """The seconds of a step, if they are known."""
        if key in self._before:
            self.found.add(key)
        return self._seconds.get(key)

    def put(self, key: str, seconds: float) -> None:
        """Remember the seconds of a step."""
        self._seconds[key] = seconds
        self._new += 1
        if monotonic() - self._written_s > WRITTEN_EVERY_S:  # a run that is killed keeps most of what it had
            self.write()

    def write(self) -> None:
        """Keep what is new beside what is there now, whole or not at all; a folder that cannot be written to keeps
        nothing."""
        self._written_s = monotonic()
        if self._path is None or not self._new:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            known = _read(self._path) | self._seconds
            with whole_file(self._path) as part:
                Path(part).write_text(json.dumps(known, indent=0, sort_keys=True), encoding="utf-8")
        except OSError:
            return
        self._new = 0


def _read(path: Path) -> dict[str, float]:
    """What a file has; nothing of one that is not there or is broken: it is written again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        seconds = {str(key): float(value) for key, value in found.items()}
    except (OSError, ValueError, OverflowError, AttributeError, TypeError, RecursionError):
        return {}
    return seconds if all(0.0 < one < inf for one in seconds.values()) else {}
