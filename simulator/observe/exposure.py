"""Where communication hides, and why the rest of it is exposed.

Communication of a rank is hidden while compute runs there, and exposed while none does. At each exposed instant the
streams of the rank that carry compute say why none runs, the first of these that holds for one of them:

    cores          a task is ready and waits for cores
    launch         a compute task lacks its launch
    late peer      the stream is in an exchange whose last peer has not come
    dependency     the stream waits for an exchange or a flag of another stream: nothing to hide under
    stream order   an exchange runs on that stream itself, and all behind it waits
    other task     the stream waits for a task that is no exchange
    no compute     there is no compute to wait: none has begun, or none is left

The parts add up to the exposed time to the picosecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, Intervals, block_of, codes, rank_weights, union
from simulator.observe.metrics import RankLine
from simulator.observe.waiting import WHY, Waiting

REASONS = ("cores", "launch", "late peer", "dependency", "stream order", "other task", "no compute")


@dataclass(frozen=True)
class Exposure:
    """Communication of one name and micro-batch (-1: none, or all) on an average rank (ps): busy = hidden + exposed.

    under_ps: by (block, micro-batch) of compute, kernel time that ran beside it, the longest first; where two kernels
    run at once both count. reasons_ps: why it was exposed; they add up to exposed. waiting: for cores or peers before
    it began. contention: how much longer its tasks lasted than alone.
    """

    name: str
    micro_batch: int
    busy_ps: float
    hidden_ps: float
    exposed_ps: float
    waiting_ps: float
    contention_ps: float
    under_ps: Mapping[tuple[str, int], float]
    reasons_ps: Mapping[str, float]


def exposures(columns: Columns, waits: Waiting, rows: Array, rank: int | None = None) -> list[Exposure]:
    """Of the communication among some rows, by name and micro-batch, most busy first. rows: a mask; waits: all of the
    table. rank: whose rows they are, which then is the average rank (None: all count)."""
    line = RankLine(columns)
    if rank is not None:
        line.weights = np.where(rank_weights(columns)[0] == rank, 1, 0)
    compute = line.union(line.compute)
    why = [one.minus(compute) for one in _why(line, waits)]
    blocks = _blocks(columns, line)
    chosen = rows & columns["communication"]
    name, names = codes(columns["name"])
    several = int(columns["micro_batch"].max(initial=-1)) > 0
    batch = columns["micro_batch"] if several else np.full(len(name), -1)
    pairs = sorted(set(zip(name[chosen].tolist(), batch[chosen].tolist(), strict=True)))
    found = [_exposure(line, chosen & (name == code) & (batch == one), (names[code], one), compute, why, blocks)
             for code, one in pairs]
    return sorted(found, key=lambda each: (-each.busy_ps, each.name, each.micro_batch))


def _exposure(line: RankLine, rows: Array, key: tuple[str, int], compute: Intervals, why: Sequence[Intervals],
              blocks: tuple[Array, list[tuple[str, int]]]) -> Exposure:
    work, columns = line.union(rows), line.columns
    hidden = line.mean(work, compute.covered(work.start, work.end))
    total = line.mean(work) - hidden
    parts = [line.mean(work, one.covered(work.start, work.end)) for one in why]
    reasons = dict(zip(REASONS, [*parts, total - sum(parts)], strict=True))
    excess = np.maximum(columns["end_ps"] - columns["start_ps"] - columns["solo_ps"], 0)[rows]
    ranks = line.weights.sum()
    contention = float((excess * line.weights[line.position[rows]]).sum() / ranks)
    return Exposure(*key, line.mean(work), hidden, total,
                    line.mean(line.union(rows, "ready_ps", "start_ps")), contention, _under(line, work, blocks),
                    {reason: part for reason, part in reasons.items() if part > 0.5})  # fmt: skip


def _blocks(columns: Columns, line: RankLine) -> tuple[Array, list[tuple[str, int]]]:
    """Of the compute rows, in their order: the number of their (block, micro-batch), and these."""
    rows = np.flatnonzero(line.compute)
    name, names = codes(columns["name"])
    block = np.array([block_of(one) for one in names], dtype=object)[name[rows]] if len(names) else name[rows]
    pairs = list(zip(block.tolist(), columns["micro_batch"][rows].tolist(), strict=True))
    known = sorted(set(pairs))
    number = {pair: place for place, pair in enumerate(known)}
    return np.array([number[pair] for pair in pairs], dtype=np.int64), known


def _under(line: RankLine, work: Intervals,
           blocks: tuple[Array, list[tuple[str, int]]]) -> dict[tuple[str, int], float]:
    number, known = blocks
    rows = np.flatnonzero(line.compute)
    columns = line.columns
    beside = work.covered(line.at(columns["start_ps"], rows), line.at(columns["end_ps"], rows))
    total = np.bincount(number, beside * line.weights[line.position[rows]], minlength=len(known)) / line.weights.sum()
    times = {pair: float(length) for pair, length in zip(known, total.tolist(), strict=True) if length}
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _why(line: RankLine, waits: Waiting) -> list[Intervals]:
    """When each of REASONS but the last holds on the streams that carry compute, none beside one before it."""
    columns = line.columns
    carries, _ = _carriers(line)
    on_carrier = carries[waits.row]
    talks = columns["communication"]
    ended = np.where(waits.ended_by >= 0, waits.ended_by, 0)
    by_exchange = (waits.ended_by >= 0) & talks[ended]
    why = {name: waits.why == WHY.index(name) for name in WHY}
    stretches = [why["cores"], why["host"] & ~talks[waits.row], why["peers"],
                 (why["event"] & by_exchange) | why["flag"], None, why["event"] & ~by_exchange]
    found: list[Intervals] = []
    seen = union(columns["start_ps"][:0], columns["end_ps"][:0])
    for chosen in stretches:
        if chosen is None:
            one = line.union(carries & talks)
        else:
            some = np.flatnonzero(chosen & on_carrier)
            begin = line.begin[waits.row[some]]
            one = union(begin + waits.from_ps[some], begin + waits.to_ps[some])
        found.append(one.minus(seen))
        seen = union(np.concatenate([seen.start, one.start]), np.concatenate([seen.end, one.end]))
    return found


def _carriers(line: RankLine) -> tuple[Array, Array]:
    """Rows on streams that carry compute (a mask), and the number of every row's stream."""
    stream, names = codes(line.columns["stream"])
    number = line.position * max(len(names), 1) + stream
    carries = np.zeros(int(number.max(initial=-1)) + 1, dtype=bool)
    carries[number[line.compute]] = True
    return carries[number] if len(number) else np.zeros(0, dtype=bool), number
