"""What fits into the memory of this computer, told before the work and not by the system in the midst of it."""

from __future__ import annotations

import os

from simulator.errors import InputError


def memory_bytes() -> float:
    """All that this computer has; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def check_fits(count: int, what: str, each_bytes: int, instead: str) -> None:
    """InputError where so many things of so many bytes are more than all memory; instead: what would be right."""
    need, have = count * each_bytes, memory_bytes()
    if need > have:
        raise InputError(f"{count:,} {what} take about {need / 2**30:,.0f} GiB of memory, and this computer has"
                         f" {have / 2**30:,.0f} GiB: {instead}")  # fmt: skip
