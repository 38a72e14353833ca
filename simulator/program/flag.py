"""Flags between a GPU and its host: a stream sets one that the host polls, or waits for one that the host sets.

Both are tasks of a recorded program, so that a GPU's stream meets live host threads in the order of its launches.
"""

from __future__ import annotations

from simulator.program.rank import Event, Rank
from simulator.program.task import Flag


def set_flag(npu: Rank, name: str, flag: str, watched: bool = False) -> Event:
    """The host can see `flag` once everything before it in the current stream has ended."""
    return npu.launch(Flag("set_flag", flag, watched=watched), name)


def wait_flag(npu: Rank, name: str, flag: str, cores: tuple[tuple[str, int], ...] = ()) -> Event:
    """What follows in the current stream starts once the host has set `flag`."""
    return npu.launch(Flag("wait_flag", flag, cores), name)
