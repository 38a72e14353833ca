"""A timeline as Chrome JSON that Perfetto shows whole and PyTorch-profiler tools understand.

One process per rank, one thread per stream. Perfetto drops `X` slices that overlap on a thread, so only what is serial
is written as `X`: work (start..end) and waiting for cores or peers (ready..start). What is in flight beside that is
async (`b`/`e`), rates are counters (`C`), waits across streams are arrows (`s`/`f`). Perfetto rounds start and duration
to whole nanoseconds one by one, which makes slices that touch overlap (it dropped one in ten of them): edges are
therefore rounded down to nanoseconds here, and durations taken between rounded edges.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from json import dumps
from os import PathLike
from pathlib import Path
from typing import IO, NamedTuple

from simulator import np
from simulator.observe.columns import Array, Columns, causes, rank_weights, select, waits
from simulator.units import PS_PER_S

PS_PER_NS = 1_000
# Process of rank 0; threads count from 1, and Perfetto would show a thread with its process's number as main thread.
FIRST_PID = 1_000
COUNTERS = {"HBM GB/s": "hbm_bytes", "wire GB/s": "wire_bytes"}


class Flight(NamedTuple):
    """Something in flight on a rank, from start to end; flights may overlap."""

    name: str
    rank: int
    start_ps: int
    end_ps: int


class Sample(NamedTuple):
    """A counter's value from an instant on, such as ("HBM GB/s", 0, 1_000_000, 812.5)."""

    name: str
    rank: int
    time_ps: int
    value: float


def some_ranks(columns: Columns) -> list[int]:
    """The ranks worth looking at first: one per class of identical ranks (at most 8), else the first and one that it
    hears from, else the first two."""
    ranks, multiplicity, _ = rank_weights(columns)
    heard = columns["cause_rank"][(columns["rank"] == ranks[:1].sum()) & (columns["cause_rank"] > ranks[:1].sum())]
    if len(heard):
        return [int(ranks[0]), int(heard.min())]
    return ranks[:8 if (multiplicity > 1).any() else 2].tolist()


def rates(columns: Columns) -> Iterator[Sample]:
    """Every change of how fast a rank moves bytes in HBM and on the wire, on the ranks that a trace shows.

    Each task is taken to move its bytes evenly between its start and its end, so a counter is a sum of steps.
    """
    for rank in some_ranks(columns):
        mine = select(columns, columns["rank"] == rank)
        for name, column in COUNTERS.items():
            yield from _steps(name, rank, mine, column)


def _steps(name: str, rank: int, columns: Columns, column: str) -> Iterator[Sample]:
    start, end, moved = columns["start_ps"], columns["end_ps"], columns[column]
    busy = (moved > 0) & (end > start)
    rate = moved[busy] / (end[busy] - start[busy]) * (PS_PER_S / 1e9)
    times, place = np.unique(np.concatenate([start[busy], end[busy]]), return_inverse=True)
    change = np.zeros(len(times))
    np.add.at(change, place, np.concatenate([rate, -rate]))
    value = np.cumsum(change)
    value[np.abs(value) < 1e-6 * max(1.0, float(np.max(value, initial=0.0)))] = 0.0  # what rounding leaves of nothing
    for time_ps, level in zip(times.tolist(), value.tolist(), strict=True):
        yield Sample(name, rank, time_ps, round(level, 3))


def write_trace(columns: Columns, path: str | PathLike[str], ranks: Sequence[int] | None = None,
                flights: Iterable[Flight] = (), counters: Iterable[Sample] = ()) -> int:
    """Writes `path` (.json or .json.gz) and returns the number of `X` slices in it.

    `ranks`: whose rows are written; default `some_ranks`. Raises ValueError for a rank that is not in the table,
    OSError where the file cannot be written; half a file is never left behind.
    """
    chosen = some_ranks(columns) if ranks is None else sorted(set(ranks))
    absent = sorted(set(chosen) - set(columns["rank"].tolist()))
    if absent:
        raise ValueError(f"no rows of rank {', '.join(map(str, absent))}; ranks are {_few(columns)}")
    some = select(columns, np.isin(columns["rank"], chosen))
    writer = _Events(some)
    lines = [writer.tracks(), writer.slices(), writer.arrows(), writer.flights(flights, set(chosen)),
             sampled(one for one in counters if one.rank in chosen)]
    write_events(chain.from_iterable(lines), path, run=str(some["run"][0]) if len(some["run"]) else "")
    return writer.written


def write_events(events: Iterable[str], path: str | PathLike[str], **about: object) -> None:
    """Writes events, each one line of JSON, as a trace (.json or .json.gz); about: what its metadata says.

    Raises OSError where the file cannot be written; half a file is never left behind.
    """
    with whole_file(path) as part, _text_file(part, str(path).endswith(".gz")) as file:
        file.write('{"traceEvents":[\n')
        file.writelines(_joined(events))
        file.write('\n],"schemaVersion":1' + "".join(f",{dumps(key)}:{dumps(it)}" for key, it in about.items()) + "}\n")


class _Events:
    """The events of some ranks, each as one line of JSON."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.written = 0
        keys = list(zip(columns["rank"].tolist(), columns["stream"].tolist(), strict=True))
        self.tids: dict[tuple[int, str], int] = {}
        next_tid: dict[int, int] = {}
        for key in keys:
            if key not in self.tids:
                self.tids[key] = next_tid[key[0]] = next_tid.get(key[0], 0) + 1
        self.pid = [FIRST_PID + rank for rank, _ in keys]
        self.tid = [self.tids[key] for key in keys]

    def tracks(self) -> Iterator[str]:
        """Names and order of processes (ranks) and threads (streams)."""
        multiplicity = dict(zip(self.columns["rank"].tolist(), self.columns["multiplicity"].tolist(), strict=True))
        for rank, times in multiplicity.items():
            name = f"rank {rank}" + (f" (stands for {times})" if times > 1 else "")
            yield meta("process_name", rank, 0, name)
            yield meta("process_sort_index", rank, 0, rank)
        for (rank, stream), tid in self.tids.items():
            yield meta("thread_name", rank, tid, f"stream {stream}")
            yield meta("thread_sort_index", rank, tid, tid)

    def slices(self) -> Iterator[str]:
        """One slice per task and one per wait for cores or peers, in the order of each stream."""
        columns = self.columns
        numbers = ("rank", "task", "layer", "micro_batch", "multiplicity")
        texts = ("name", "kind", "engine", "bound_by")
        amounts = ("flops", "hbm_bytes", "wire_bytes")
        lists = {name: columns[name].tolist() for name in (*numbers, *texts, *amounts)}
        quoted = {text: dumps(text) for name in texts for text in set(lists[name])}
        waiting = {name: dumps(f"wait: {name}") for name in set(lists["name"])}
        ready, start = _ns(columns["ready_ps"]), _ns(columns["start_ps"])
        end, solo = _ns(columns["end_ps"]), columns["solo_ps"].tolist()
        for row in range(len(solo)):
            place = f'"ph":"X","pid":{self.pid[row]},"tid":{self.tid[row]}'
            if start[row] > ready[row]:
                self.written += 1
                yield (f'{{{place},"name":{waiting[lists["name"][row]]},"cat":"wait","ts":{us(ready[row])},'
                       f'"dur":{us(start[row] - ready[row])}}}')
            args = "".join(f',"{name}":{lists[name][row]}' for name in numbers if lists[name][row] >= 0)
            args += "".join(f',"{name}":{quoted[lists[name][row]]}' for name in texts[1:])
            args += "".join(f',"{name}":{lists[name][row]:.6g}' for name in amounts if lists[name][row])
            self.written += 1
            yield (f'{{{place},"name":{quoted[lists["name"][row]]},"cat":"kernel","ts":{us(start[row])},'
                   f'"dur":{us(end[row] - start[row])},"args":{{"stream":{self.tid[row]},"correlation":{row + 1},'
                   f'"device":{lists["rank"][row]}{args},"solo_us":{_exact_us(solo[row])}}}}}')

    def arrows(self) -> Iterator[str]:
        """From the end of a task to the start of one on another stream, of any rank, that waited for it.

        An arrow binds to the slice that is open at its time: a task shorter than a nanosecond cannot have one, unless
        it waited (then the arrow ends in the wait). What begins before its cause has ended is met inside the cause.
        """
        columns = self.columns
        ready, start, end = _ns(columns["ready_ps"]), _ns(columns["start_ps"]), _ns(columns["end_ps"])
        number = 0
        pairs = [*zip(*(rows.tolist() for rows in waits(columns)), strict=True),
                 *zip(*(rows.tolist() for rows in causes(columns)), strict=True)]
        for row, awaited in pairs:
            at = start[row] if end[row] > start[row] else start[row] - 1
            left = min(end[awaited] - 1, at)
            same = (self.pid[row], self.tid[row]) == (self.pid[awaited], self.tid[awaited])
            if same or end[row] == ready[row] or end[awaited] == start[awaited] or left < start[awaited]:
                continue
            number += 1
            head = f'"cat":"wait","name":"waits for","id":{number}'
            yield (f'{{"ph":"s",{head},"pid":{self.pid[awaited]},"tid":{self.tid[awaited]},"ts":{us(left)}}}')
            yield f'{{"ph":"f","bp":"e",{head},"pid":{self.pid[row]},"tid":{self.tid[row]},"ts":{us(at)}}}'

    def flights(self, flights: Iterable[Flight], ranks: set[int]) -> Iterator[str]:
        """Overlapping things in flight, as async events with an id each."""
        for number, flight in enumerate(flights):
            if flight.rank not in ranks:
                continue
            head = (f'"cat":"flow","name":{dumps(flight.name)},"id2":{{"local":"flow-{number}"}},'
                    f'"pid":{FIRST_PID + flight.rank}')
            yield f'{{"ph":"b",{head},"ts":{us(flight.start_ps // PS_PER_NS)}}}'
            yield f'{{"ph":"e",{head},"ts":{us(flight.end_ps // PS_PER_NS)}}}'


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


def _ns(times_ps: Array) -> list[int]:
    return (times_ps // PS_PER_NS).tolist()


def us(ns: int) -> str:
    """Nanoseconds as microseconds, exact."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _exact_us(ps: int) -> str:
    return f"{ps // 10**6}.{ps % 10**6:06d}"


def _few(columns: Columns) -> str:
    ranks = rank_weights(columns)[0].tolist()
    return ", ".join(map(str, ranks)) if len(ranks) < 8 else f"{ranks[0]} to {ranks[-1]}"


def _joined(lines: Iterable[str]) -> Iterator[str]:
    comma = ""
    for line in lines:
        yield comma + line
        comma = ",\n"


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[Path]:
    """Gives a temporary name in the folder of `path`, renamed to `path` at the end, removed if the block fails.

    Makes the folder. Raises OSError where that folder cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


@contextmanager
def _text_file(path: Path, packed: bool) -> Iterator[IO[str]]:
    """A file to write text to, gzipped (without a time stamp: the same run gives the same bytes) or plain."""
    with (path.open("wb") as raw,
          gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) if packed else nullcontext(raw) as binary,
          io.TextIOWrapper(binary, encoding="utf-8") as file):
        yield file
