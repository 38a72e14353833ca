"""A benchmark, what measuring it gives, and the row that is printed."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Benchmark:
    """One thing to measure. measure: imports what it needs only when it is called.

    limit: what keeps it from its target, where that is missed. variables: set in the environment of its process.
    """

    name: str
    what: str
    measure: Callable[[], Measurement]
    unit: str
    target: float
    more_is_better: bool = False
    limit: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def met(self, value: float) -> bool:
        """Whether a value reaches the target."""
        return value >= self.target if self.more_is_better else value <= self.target


@dataclass(frozen=True)
class Measurement:
    """A value in its unit, the CPU seconds of the measured part alone, and counts (tasks, flows, solves)."""

    value: float
    cpu_s: float
    counts: dict[str, int] = field(default_factory=dict)


def best_of(measure: Callable[[], Measurement], rounds: int = 3) -> Measurement:
    """The round with the least CPU time: whatever else the computer does only ever adds to it."""
    return min((measure() for _ in range(rounds)), key=lambda round_: round_.cpu_s)


@dataclass(frozen=True)
class BenchmarkRow:
    """A benchmark with its measurement, or with the reason why there is none."""

    benchmark: Benchmark
    measurement: Measurement | None = None
    peak_mib: float | None = None
    reason: str | None = None

    @property
    def failed(self) -> bool:
        """No measurement was taken."""
        return self.measurement is None

    def as_object(self) -> dict[str, Any]:
        """name, value, unit, target, met, cpu_s, peak_mib, the counts, and `reason` if it failed."""
        done = self.measurement
        row: dict[str, Any] = {
            "name": self.benchmark.name, "value": done.value if done else None, "unit": self.benchmark.unit,
            "target": self.benchmark.target, "met": done is not None and self.benchmark.met(done.value),
            "cpu_s": done.cpu_s if done else None, "peak_mib": self.peak_mib, **(done.counts if done else {}),
        }
        return row if self.reason is None else row | {"reason": self.reason}


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this process while it does the work, and what the work returns."""
    before_s = time.process_time()
    returned = work()
    return time.process_time() - before_s, returned


def looked_at(result: Any) -> Any:
    """A run with its metrics, which are made when they are first asked for."""
    _ = result.metrics
    return result


def environment() -> dict[str, str]:
    """This process's own, with this very Braid on the path also where it is a checkout that is not installed."""
    root = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def peak_mib() -> float:
    """Peak resident memory of this process, or of the largest one that it started."""
    children_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would include the process that started this one
        own = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return max(children_mib, int(own.split()[1]) / 1024)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
