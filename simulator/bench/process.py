"""The process that a benchmark runs in."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path


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
