"""What if a resource of the machine, or a block of the program, were free; or a resource twice as fast?

Beside what is saved stands what the critical path promised. Of a free block that is its share of the path. Of a
resource it is what tasks on the path take alone, on the machine as it is and on the one with that resource better:

    promised = sum over stretches of length (1 - alone on the better machine / alone)

More can be saved where others on the path were slowed by what is now gone, at most until each takes what it takes
alone; what is saved beyond that comes of another order: a queue for cores, a stream or a rank went another way, or the
path passed as a wait what was the block's work. The table says which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from simulator.observe.columns import find_rows
from simulator.observe.critical import Segment
from simulator.program.free import blocks_of
from simulator.program.task import Flag, Task
from simulator.study.promises import Alone, twice_as_good
from simulator.study.provenance import bounded_by
from simulator.study.whatif import AS_IS, Answers, Base, Settings, settings_of
from simulator.units import PS_PER_S, Quantity, dimension_of

FREE, TWICE = "free", "x2"
ENDLESS = 1e9  # times as fast is free: a second becomes a nanosecond
_FASTER = ("s", "B/s", "FLOP/s", "Hz")
_NAMES = {"chip.hbm.peak": "HBM", "chip.l2.rate": "L2", "chip.l2.port_rate": "L2 ports", "chip.peak": "compute",
          "host.device_read": "device read", "host": "launch", "fabric": "links", "collectives": "engine",
          "kernels": "kernel latency", "exchange_kernels": "exchange kernels", "nic": "network cards",
          "proxy": "proxy threads"}  # fmt: skip

_NO_WORK = frozenset({"prologue", "timeout", "retransmit", "give_up", "readmit"})  # hides work, or answers faults


@dataclass(frozen=True)
class Faster:
    """A resource or block made free or twice as fast. share: of the path, what it bounds or its tasks take; promised:
    what the path promises to save; most: and if nothing slowed the others on it. All of the run's length."""

    title: str
    how: str
    settings: Settings
    share: float
    promised: float
    most: float


@dataclass(frozen=True)
class FasterRow:
    """A `Faster` with what came of it: saved, of the run's length; speed_up: of the length; value: of the metric.
    remark: why more or less was saved than promised. reason: why it could not run."""

    what: str
    how: str
    share: float
    promised: float
    saved: float | None
    speed_up: float | None
    value: float | None
    remark: str
    reason: str


SECOND, RELIEVED, REORDERED, SLOWER = "also second", "relieves others", "reordered", "slower: reordered"
REMARKS = {SECOND: "it saves more than it bounds: it is what bounds other stretches in part, or next",
           RELIEVED: "it saves more than promised: others on the path were slowed by it",
           REORDERED: "it saves more than its share of the path and the slowing of others: a queue for cores, a stream"
                      " or a rank went another way, or its work was a wait on the path",
           SLOWER: "the run is longer: a queue went another way"}  # fmt: skip


def resources(numbers: Mapping[str, Quantity], read: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """What a machine has that takes time, by name: the keys of the numbers that are read of it."""
    found: dict[str, list[str]] = {}
    for key, quantity in numbers.items():
        name = _resource(key)
        if name and key in read and quantity.value and dimension_of(quantity.unit) in _FASTER:
            found.setdefault(name, []).append(key)
    return {name: tuple(keys) for name, keys in found.items()}


def _resource(key: str) -> str:
    """The name of what a number belongs to; "" for what is no resource."""
    first, *rest = key.split(".")
    known = [prefix for prefix in _NAMES if f"{key}.".startswith(f"{prefix}.")]
    if not known or rest[-1] in _NO_WORK:
        return ""
    name = _NAMES[max(known, key=len)]
    if name == "compute":
        return f"compute: {rest[1]}"
    if first == "fabric":
        return "link latency" if rest[-1] == "latency" else f"links: {rest[0]}"  # the way out leads through the levels
    return f"engine: {rest[0]}" if first == "collectives" else name


def fasters(base: Base, hows: Sequence[str]) -> Iterator[Faster]:
    """Every resource, and for "free" every block of the program, in turn."""
    if not base.result.makespan_ps:
        return
    if FREE in hows:
        yield from _blocks(base)
    path, result = base.result.critical, base.result
    bounded = bounded_by(path, result.machine, base.scenario.kernels, result.world)
    as_is = _alone_s(base, AS_IS)
    for name, keys in resources(base.numbers, base.read).items():
        inside = {id(one) for key in keys for one in bounded.get(key, ())}
        bounds = [id(one) in inside for one in path.segments]
        for how in hows:
            settings = base.of_machine({key: _better(key, base.numbers[key], how) for key in keys})
            better = _alone_s(base, settings)
            promised, most = _promised(path.segments, bounds, as_is, better, 1.0 if how == FREE else 0.5)
            share = sum(one.to_ps - one.from_ps for one, its in zip(path.segments, bounds, strict=True) if its)
            shares = (length / result.makespan_ps for length in (share, promised, most))
            yield Faster(f"{name} {how}", how, settings, *shares)


def _alone_s(base: Base, settings: Settings) -> list[float | None]:
    """How long the task of each stretch of the path takes alone on a machine with these numbers."""
    machine = base.machine(settings) or base.result.machine  # one that cannot be promises nothing
    alone = Alone(machine, base.scenario.kernels, base.result.world)
    return [alone.seconds(one) for one in base.result.critical.segments]


def _promised(segments: Sequence[Segment], bounds: Sequence[bool], as_is: Sequence[float | None],
              better: Sequence[float | None], unknown: float) -> tuple[float, float]:
    """What stretches save (ps) by how much sooner their tasks end alone, and at most, if those then run alone. unknown:
    the share that is saved of a stretch that the resource bounds, where its task cannot be told alone."""
    promised = most = 0.0
    for one, its, before, after in zip(segments, bounds, as_is, better, strict=True):
        length = one.to_ps - one.from_ps
        if before and after is not None:
            part = max(1.0 - after / before, 0.0)
            most += max(length - after * PS_PER_S, length * part, 0.0)
        else:
            part = unknown * its
            most += length * part
        promised += length * part
    return promised, most


def _better(key: str, quantity: Quantity, how: str) -> float:
    if how == TWICE:
        return twice_as_good(key, quantity)
    return 0.0 if dimension_of(quantity.unit) == "s" else quantity.value * ENDLESS


def _blocks(base: Base) -> Iterator[Faster]:
    """Every block of the program."""
    segments = base.result.critical.segments
    tasks = cache(lambda rank: base.result.world.programs[rank].tasks)
    blocks = [_block(one, tasks(one.rank)) for one in segments]
    slowed = _slowed_ps(base, segments)
    whole = base.result.makespan_ps
    for block in blocks_of(base.result.world):
        inside = [one == block for one in blocks]
        share = sum(one.to_ps - one.from_ps for one, its in zip(segments, inside, strict=True) if its)
        others = sum(slow for slow, its in zip(slowed, inside, strict=True) if not its)
        yield Faster(f"{block} {FREE}", FREE, settings_of({"free": ",".join((*base.scenario.free, block))}),
                     share / whole, share / whole, (share + others) / whole)  # fmt: skip


def _block(segment: Segment, tasks: Sequence[Task]) -> str:
    """Whose time a stretch of the path is; "" where it is the host's, a wait, or what a live host does."""
    if segment.what in ("host", "wait") or segment.task >= len(tasks):
        return ""
    task = tasks[segment.task]
    return "" if isinstance(task.work, Flag) else task.block


def _slowed_ps(base: Base, segments: Sequence[Segment]) -> list[int]:
    """How much shorter each stretch would be if its task had run alone."""
    from simulator import np

    columns = base.result.columns
    rows = find_rows(columns, np.array([one.rank for one in segments]), np.array([one.task for one in segments]))
    late = columns["end_ps"][rows] - columns["start_ps"][rows] - columns["solo_ps"][rows]
    return [max(min(int(slow), one.to_ps - one.from_ps), 0) if one.what in ("work", "latency") else 0
            for slow, one in zip(late, segments, strict=True)]


def faster_rows(base: Base, asked: Sequence[Faster], answers: Answers) -> list[FasterRow]:
    """With what came of them, those that save most first; what could not run last."""
    rows = [_row(base, one, answers) for one in asked]
    return sorted(rows, key=lambda row: (-row.saved if row.saved is not None else 1e9, row.what))


def _row(base: Base, one: Faster, answers: Answers) -> FasterRow:
    outcome = answers[one.settings]
    if outcome.reason:
        return FasterRow(one.title, one.how, one.share, one.promised, None, None, None, "", outcome.reason)
    whole = base.result.makespan_ps
    saved = 1.0 - outcome.makespan_ps / whole
    rounding = (len(base.result.critical.segments) + 2) / whole  # a picosecond for each stretch
    remark = (SLOWER if saved < -rounding else "" if saved <= one.share + rounding
              else SECOND if saved <= one.promised + rounding
              else RELIEVED if saved <= one.most + rounding else REORDERED)  # fmt: skip
    speed_up = whole / outcome.makespan_ps if outcome.makespan_ps else None
    value = outcome.value(base.metric)
    return FasterRow(one.title, one.how, one.share, one.promised, saved, speed_up, value, remark, "")
