"""Flags between a GPU and its host: a stream sets one that the host polls, or waits for one that the host sets.

Both are tasks of a recorded program, so that a GPU's stream meets live host threads in the order of its launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.program.rank import Event, Rank


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag, set once. kind: "set_flag" (by the stream, for the host) or "wait_flag" (set by the host).

    cores: what a kernel that spins on the flag holds meanwhile, as ((pool, count), ...). watched: the host learns of it
    through its watcher of unified memory, instead of polling a flag over PCIe.
    """

    kind: str
    flag: str
    cores: tuple[tuple[str, int], ...] = ()
    watched: bool = False

    def __str__(self) -> str:
        held = ", ".join(f"{count} {pool}" for pool, count in self.cores)
        return f"{self.kind} {self.flag}" + (f", holding {held}" if held else "")


def set_flag(npu: Rank, name: str, flag: str, watched: bool = False) -> Event:
    """The host can see `flag` once everything before it in the current stream has ended."""
    return npu.launch(Flag("set_flag", flag, watched=watched), name)


def wait_flag(npu: Rank, name: str, flag: str, cores: tuple[tuple[str, int], ...] = ()) -> Event:
    """What follows in the current stream starts once the host has set `flag`."""
    return npu.launch(Flag("wait_flag", flag, cores), name)
