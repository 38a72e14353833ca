"""What a schedule is beside its figure: how many micro-batches its order is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from simulator.errors import InputError


class Schedule(NamedTuple):
    """order: puts pieces of a pass's micro-batches on streams. micro_batches: how many where nothing is said;
    any_number: whether others go too."""

    order: Callable[..., None]
    micro_batches: int
    any_number: bool = False


def parts_of(schedules: Mapping[str, Schedule], name: str, micro_batches: int) -> int:
    """How many micro-batches a schedule works on where so many were asked for (0: what it takes by itself); InputError:
    it takes another number."""
    found = schedules[name]
    if micro_batches in (0, found.micro_batches) or found.any_number:
        return micro_batches or found.micro_batches
    others = ", ".join(other for other, one in schedules.items() if one.any_number)
    raise InputError(f"knobs.micro_batches: schedule {name} takes {found.micro_batches}, not {micro_batches}; "
                     f"{others} take any number")
