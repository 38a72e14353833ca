"""Events of a Chrome trace, each one line of JSON, and the file of them that Perfetto opens.

Perfetto rounds start and duration to whole nanoseconds one by one, which makes slices that touch overlap (it dropped
one in ten of them): edges are rounded down to nanoseconds here, and durations taken between rounded edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from json import dumps
from os import PathLike
from typing import NamedTuple

from simulator.observe.files import text_file, whole_file

PS_PER_NS = 1_000
# Process of rank 0; threads count from 1, and Perfetto would show a thread with its process's number as main thread.
FIRST_PID = 1_000


class Sample(NamedTuple):
    """A counter's value from an instant on, such as ("HBM GB/s", 0, 1_000_000, 812.5)."""

    name: str
    rank: int
    time_ps: int
    value: float


def write_events(events: Iterable[str], path: str | PathLike[str], **about: object) -> None:
    """Writes events, each one line of JSON, as a trace (.json or .json.gz); about: what its metadata says.

    Raises OSError where the file cannot be written; half a file is never left behind.
    """
    with whole_file(path) as part, text_file(part, str(path).endswith(".gz")) as file:
        file.write('{"traceEvents":[\n')
        file.writelines(_joined(events))
        file.write('\n],"schemaVersion":1' + "".join(f",{dumps(key)}:{dumps(it)}" for key, it in about.items()) + "}\n")


def sampled(samples: Iterable[Sample]) -> Iterator[str]:
    """Values over time, such as a capacity's rate."""
    for sample in samples:
        name, _, unit = sample.name.rpartition(" ")  # Perfetto joins the two again
        yield (f'{{"ph":"C","name":{dumps(name or unit)},"pid":{FIRST_PID + sample.rank},'
               f'"ts":{us(sample.time_ps // PS_PER_NS)},'
               f'"args":{{{dumps(unit if name else "value")}:{sample.value:.9g}}}}}')


def meta(what: str, rank: int, tid: int, value: str | int) -> str:
    """What a process (of a rank) or a thread of it is called, or its place among others."""
    key = "name" if isinstance(value, str) else "sort_index"
    return f'{{"ph":"M","name":"{what}","pid":{FIRST_PID + rank},"tid":{tid},"args":{{"{key}":{dumps(value)}}}}}'


def us(ns: int) -> str:
    """Nanoseconds as microseconds, exact."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def exact_us(ps: int) -> str:
    """Picoseconds as microseconds, exact."""
    return f"{ps // 10**6}.{ps % 10**6:06d}"


def _joined(lines: Iterable[str]) -> Iterator[str]:
    comma = ""
    for line in lines:
        yield comma + line
        comma = ",\n"
