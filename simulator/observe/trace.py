"""A timeline as Chrome JSON that Perfetto shows whole and PyTorch-profiler tools understand.

One process per rank; in it a thread for the iteration, for the layers of each micro-batch, for the launches of the host
and for each stream. Perfetto drops `X` slices that overlap on a thread, so only what is serial is written as `X`: work
(start..end), and what a stream waited for before it (`waiting`), whose names say why, so that each reason has a colour.
What is in flight beside that is async (`b`/`e`), rates are counters (`C`); arrows (`s`/`f`) lead from what ended a wait
to what had waited, and from a launch to what it launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from json import dumps
from os import PathLike
from typing import Any, NamedTuple

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, causes, rank_weights, select
from simulator.observe.events import FIRST_PID, PS_PER_NS, Sample, exact_us, meta, sampled, us, write_events
from simulator.observe.lanes import HOST_LANE, Stretch, host_lane, layer_lanes, letter
from simulator.observe.waiting import LIVE_ENGINES, WHY, Waiting, waiting

REASONS = {"event": "a task of another stream", "host": "its launch", "peers": "the last of its peers",
           "flag": "a flag or a write", "cores": "cores that another task holds"}  # fmt: skip
NUMBERS = ("rank", "task", "layer", "micro_batch", "multiplicity")
TEXTS = ("name", "kind", "engine", "bound_by")
AMOUNTS = ("flops", "l2_bytes", "hbm_bytes", "wire_bytes")


class Flight(NamedTuple):
    """Something in flight on a rank, from start to end; flights may overlap."""

    name: str
    rank: int
    start_ps: int
    end_ps: int


def write_trace(columns: Columns, path: str | PathLike[str], ranks: Sequence[int], flights: Iterable[Flight] = (),
                counters: Iterable[Sample] = (), window_ps: tuple[int, int] | None = None,
                about: Mapping[str, Any] | None = None) -> int:
    """Writes `path` (.json or .json.gz) and returns the number of tasks in it.

    ranks: whose rows are written. window_ps: tasks that are at work or wait within it, from the one time to the other;
    None: all. about: how the run was made, as the file's metadata says it. Raises OSError where the file cannot be
    written; half a file is never left behind.
    """
    low, high = window_ps or (0, int(columns["end_ps"].max(initial=0)) + 1)
    rows = np.isin(columns["rank"], ranks) & (columns["end_ps"] >= low) & (columns["start_ps"] < high)
    writer = _Events(columns, np.flatnonzero(rows), waiting(columns))
    within = cut(sorted((one for one in counters if one.rank in writer.ranks), key=lambda one: one.time_ps), low, high)
    shown = (one for one in flights if one.rank in writer.ranks and one.end_ps >= low and one.start_ps < high)
    lines = [writer.tracks(), writer.slices(), writer.waits(), writer.lanes(low, high), writer.arrows(),
             in_flight(shown), sampled(within)]
    window_s = [each / 1e12 for each in (low, high)] if window_ps else None
    write_events(chain.from_iterable(lines), path,
                 otherData={**(about or {}), "shown_ranks": sorted(writer.ranks), "window_s": window_s})
    return int(rows.sum())


def cut(samples: Iterable[Sample], low_ps: int, high_ps: int) -> Iterator[Sample]:
    """Samples within a window, in order of time, and before them what each counter is when it begins."""
    before: dict[tuple[str, int], Sample] = {}
    for one in samples:
        if low_ps <= one.time_ps < high_ps:
            yield from before.values()
            before.clear()
            yield one
        elif one.time_ps < low_ps:
            before[one.name, one.rank] = one._replace(time_ps=low_ps)
    yield from before.values()


def named(name: str, micro_batch: int, several: bool) -> str:
    """What a slice is called: two micro-batches have a letter each, and so a colour each."""
    return f"{name} ({letter(micro_batch)})" if several and micro_batch >= 0 else name


def thread_name(stream: str, engines: Sequence[str]) -> str:
    """A stream with what executes it, or a thread of a host, or a network card."""
    if set(engines) <= {"nic"}:
        return f"NIC {stream.removeprefix('nic ')}"
    if set(engines) <= {"host thread"}:
        return f"host thread {stream}"
    pools = ", ".join(dict.fromkeys(filter(None, "+".join(engines).split("+"))))
    return f"stream {stream} ({pools})" if pools else f"stream {stream}"


class _Events:
    """The events of some rows, each as one line of JSON. waits: of the whole table."""

    def __init__(self, columns: Columns, rows: Array, waits: Waiting) -> None:
        self.columns, self.rows = columns, rows
        self.shown_waits = waits.some(np.isin(waits.row, rows))
        self.ranks: list[int] = np.unique(columns["rank"][rows]).tolist()
        self.several = int(columns["micro_batch"].max(initial=-1)) > 0
        self.stretches: dict[int, list[Stretch]] = {}
        self.tids: dict[tuple[int, str], int] = {}
        self.engines: dict[tuple[int, str], dict[str, None]] = {}
        for rank in self.ranks:
            self._see(rank)
        keys = list(zip(columns["rank"][rows].tolist(), columns["stream"][rows].tolist(), strict=True))
        places = [(FIRST_PID + rank, self.tids[rank, f"stream {stream}"]) for rank, stream in keys]
        self.place = dict(zip(rows.tolist(), places, strict=True))
        self.launch: dict[int, int] = {}  # number of the launch of each row
        self.arrow_numbers = count(1)

    def _see(self, rank: int) -> None:
        """Learns the lanes of a rank, rows numbered as in the whole table, and its streams, all of them."""
        first, last = (int(np.searchsorted(self.columns["rank"], rank, side=side)) for side in ("left", "right"))
        mine = select(self.columns, np.arange(first, last))
        launches = (one._replace(tasks=tuple(first + row for row in one.tasks),
                                 on=first + one.on if one.on >= 0 else -1) for one in host_lane(mine))
        self.stretches[rank] = [*layer_lanes(mine), *launches]
        for stream, engine in zip(mine["stream"].tolist(), mine["engine"].tolist(), strict=True):
            self.engines.setdefault((rank, f"stream {stream}"), {})[engine] = None
        streams = [lane for its_rank, lane in self.engines if its_rank == rank]
        lanes = dict.fromkeys((*(one.lane for one in self.stretches[rank]), *streams))
        self.tids |= {(rank, lane): number for number, lane in enumerate(lanes, 1)}

    def tracks(self) -> Iterator[str]:
        """Names and order of processes (ranks) and threads (lanes and streams)."""
        ranks, multiplicity, _ = rank_weights(self.columns)
        times = dict(zip(ranks.tolist(), multiplicity.tolist(), strict=True))
        for rank in self.ranks:
            name = f"rank {rank}" + (f" (stands for {times[rank]})" if times[rank] > 1 else "")
            yield meta("process_name", rank, 0, name)
            yield meta("process_sort_index", rank, 0, rank)
        for (rank, lane), tid in self.tids.items():
            known = self.engines.get((rank, lane))
            said = thread_name(lane.removeprefix("stream "), [*known]) if known else lane
            yield meta("thread_name", rank, tid, said)
            yield meta("thread_sort_index", rank, tid, tid)

    def slices(self) -> Iterator[str]:
        """One slice per task, in the order of each stream."""
        some = select(self.columns, self.rows)
        lists = {name: some[name].tolist() for name in (*NUMBERS, *TEXTS, *AMOUNTS, "cores")}
        quoted = {text: dumps(text) for name in TEXTS for text in set(lists[name])}
        start, end, solo = _ns(some["start_ps"]), _ns(some["end_ps"]), some["solo_ps"].tolist()
        self._number_launches()
        for at, row in enumerate(self.rows.tolist()):
            pid, tid = self.place[row]
            args = "".join(f',"{name}":{lists[name][at]}' for name in NUMBERS if lists[name][at] >= 0)
            args += "".join(f',"{name}":{quoted[lists[name][at]]}' for name in TEXTS)
            args += "".join(f',"{name}":{lists[name][at]:.6g}' for name in AMOUNTS if lists[name][at])
            if lists["cores"][at]:
                args += f',"cores":"{" + ".join(map(str, lists["cores"][at]))}"'
            name = dumps(named(lists["name"][at], lists["micro_batch"][at], self.several))
            yield (f'{{"ph":"X","pid":{pid},"tid":{tid},"name":{name},"cat":"kernel","ts":{us(start[at])},'
                   f'"dur":{us(end[at] - start[at])},"args":{{"stream":{tid},"correlation":{self.launch.get(row, 0)},'
                   f'"device":{lists["rank"][at]}{args},"solo_us":{exact_us(solo[at])}}}}}')

    def _number_launches(self) -> None:
        launches = (one for rank in self.ranks for one in self.stretches[rank] if one.tasks)
        for number, one in enumerate(launches, 1):
            self.launch |= dict.fromkeys(one.tasks, number)

    def waits(self) -> Iterator[str]:
        """One slice per stretch of waiting, on the stream that waited."""
        found = self.shown_waits
        start, end = _ns(found.from_ps), _ns(found.to_ps)
        for at, (row, why, by) in enumerate(zip(found.row.tolist(), found.why.tolist(), found.ended_by.tolist(),
                                                strict=True)):
            if end[at] > start[at]:
                pid, tid = self.place[row]
                yield (f'{{"ph":"X","pid":{pid},"tid":{tid},"name":"wait: {WHY[why]}","cat":"wait",'
                       f'"ts":{us(start[at])},"dur":{us(end[at] - start[at])},"args":{{"for":"{REASONS[WHY[why]]}",'
                       f'"who":{dumps(str(self.columns["name"][row]))},"who_task":{self.columns["task"][row]},'
                       f'"layer":{self.columns["layer"][row]},"micro_batch":{self.columns["micro_batch"][row]},'
                       f'"multiplicity":{self.columns["multiplicity"][row]},'
                       f'"since_us":{us(start[at])}{self._ended_by(by)}}}}}')

    def _ended_by(self, row: int) -> str:
        """What ended a wait, as arguments."""
        if row < 0:
            return ""
        columns = self.columns
        return (f',"ended_by":{dumps(str(columns["name"][row]))},"ended_by_task":{columns["task"][row]},'
                f'"ended_by_rank":{columns["rank"][row]},"ended_by_stream":{dumps(str(columns["stream"][row]))}')

    def lanes(self, low_ps: int, high_ps: int) -> Iterator[str]:
        """Iteration, layers, launches and what the host was blocked on, within a window; a launch's arrow to what it
        launched: the first task of each stream."""
        for rank in self.ranks:
            for one in self.stretches[rank]:
                start, end = (min(max(each, low_ps), high_ps) // PS_PER_NS for each in (one.start_ps, one.end_ps))
                if end <= start:
                    continue
                pid, tid = FIRST_PID + rank, self.tids[rank, one.lane]
                category = "launch" if one.lane == HOST_LANE else "lane"
                number = self.launch.get(one.tasks[0], 0) if one.tasks else 0
                args = f'"correlation":{number},"tasks":{len(one.tasks)}' if one.tasks else f'"rank":{rank}'
                yield (f'{{"ph":"X","pid":{pid},"tid":{tid},"name":{dumps(one.name)},"cat":"{category}",'
                       f'"ts":{us(start)},"dur":{us(end - start)},"args":{{{args}{self._ended_by(one.on)}}}}}')
                for row in self._firsts(one.tasks):
                    yield from self._arrow("launches", (pid, tid), end - 1, row)

    def _firsts(self, tasks: Sequence[int]) -> list[int]:
        """The first task of each stream, of those that are shown."""
        streams: dict[tuple[int, int], int] = {}
        for row in tasks:
            if row in self.place:
                streams.setdefault(self.place[row], row)
        return list(streams.values())

    def arrows(self) -> Iterator[str]:
        """From what ended a wait to the task that had waited, of any stream of a rank that is shown, and from what a
        task followed from on another rank."""
        found, columns = self.shown_waits, self.columns
        shown_from: dict[tuple[int, int], int] = {}
        for rows, times in ((self.rows, columns["start_ps"][self.rows]), (found.row, found.from_ps)):
            for row, begin in zip(rows.tolist(), _ns(times), strict=True):
                shown_from[self.place[row]] = min(begin, shown_from.get(self.place[row], begin))
        cause, caused = causes(columns)
        at_once = columns["start_ps"][cause] == columns["ready_ps"][cause]  # the others are among the waits
        cause, caused = cause[at_once], caused[at_once]
        pairs = chain(zip(found.row.tolist(), found.to_ps.tolist(), found.ended_by.tolist(), strict=True),
                      zip(cause.tolist(), (columns["start_ps"][cause] + PS_PER_NS).tolist(), caused.tolist(),
                          strict=True))
        for row, until, by in pairs:
            if by not in self.place or row not in self.place or self.place[by] == self.place[row]:
                continue
            left = min(until, int(columns["end_ps"][by])) // PS_PER_NS - 1
            if left >= shown_from[self.place[by]] and self._is_open(by, left):
                yield from self._arrow("ends the wait of", self.place[by], left, row)

    def _is_open(self, row: int, at_ns: int) -> bool:
        """Whether a slice of a row's stream is open: streams of hosts and cards have gaps."""
        if str(self.columns["engine"][row]) not in LIVE_ENGINES:
            return True
        return bool(self.columns["start_ps"][row] // PS_PER_NS <= at_ns)

    def _arrow(self, name: str, source: tuple[int, int], at_ns: int, row: int) -> Iterator[str]:
        """An arrow into a task's slice, or into the wait before it where the task is shorter than a nanosecond; none
        where there is neither."""
        ready, start, end = (int(self.columns[each][row]) // PS_PER_NS for each in ("ready_ps", "start_ps", "end_ps"))
        to = max(start, at_ns) if end > start else start - 1
        if not max(ready, at_ns) <= to < max(end, start):
            return
        head = f'"cat":"arrow","name":"{name}","id":{next(self.arrow_numbers)}'
        yield f'{{"ph":"s",{head},"pid":{source[0]},"tid":{source[1]},"ts":{us(at_ns)}}}'
        pid, tid = self.place[row]
        yield f'{{"ph":"f","bp":"e",{head},"pid":{pid},"tid":{tid},"ts":{us(to)}}}'


def in_flight(flights: Iterable[Flight]) -> Iterator[str]:
    """Overlapping things in flight, as async events with an id each."""
    for number, flight in enumerate(flights):
        head = (f'"cat":"flow","name":{dumps(flight.name)},"id2":{{"local":"flow-{number}"}},'
                f'"pid":{FIRST_PID + flight.rank}')
        yield f'{{"ph":"b",{head},"ts":{us(flight.start_ps // PS_PER_NS)}}}'
        yield f'{{"ph":"e",{head},"ts":{us(flight.end_ps // PS_PER_NS)}}}'


def _ns(times_ps: Array) -> list[int]:
    return (times_ps // PS_PER_NS).tolist()
