"""Counters of a rank over time: what it moves in memories and on links, which cores it holds, what it keeps.

Each task is taken to move its bytes evenly between its start and its end, so a counter is a sum of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator import np
from simulator.np import Array
from simulator.observe.columns import Columns, select
from simulator.observe.events import Sample
from simulator.observe.recorded import Memory, Peaks
from simulator.units import PS_PER_S


def counters(columns: Columns, ranks: Sequence[int], peaks: Peaks, memory: Memory) -> Iterator[Sample]:
    """Every change of every counter of some ranks; its name says the peak: "HBM (peak 1224) GB/s"."""
    yield from memory_samples(ranks, memory)
    for rank in ranks:
        mine = select(columns, columns["rank"] == rank)
        for name, amounts, per_second in series(mine, peaks):
            for time_ps, value in zip(*(each.tolist() for each in steps(mine, amounts, per_second)), strict=True):
                yield Sample(name, rank, time_ps, value)


def memory_samples(ranks: Sequence[int], memory: Memory) -> Iterator[Sample]:
    """What a rank keeps from the start of a run to its end."""
    for rank in ranks:
        yield Sample(f"memory (usable {memory.usable_bytes / 1e9:.4g}) GB", rank, 0, round(memory.used_bytes / 1e9, 3))


def series(columns: Columns, peaks: Peaks) -> Iterator[tuple[str, Array, bool]]:
    """Of the rows of one rank: a counter's name, how much of it each row takes, and whether that is spread over its
    time (bytes, in GB) or held all the while (cores). Counters that nothing takes are left out."""
    rates = [("HBM", columns["hbm_bytes"], peaks.hbm_bytes_per_s), ("L2", columns["l2_bytes"], peaks.l2_bytes_per_s)]
    links = columns["link_bytes"].tolist()
    for place, (level, peak) in enumerate(peaks.links_bytes_per_s.items()):
        rates.append((f"{level} links out", np.array([each[place] if each else 0.0 for each in links]), peak))
    for name, moved, peak in rates:
        if np.any(moved):
            yield f"{name} (peak {peak / 1e9:.4g}) GB/s", moved / 1e9, True
    if not any(map(any, links)) and np.any(columns["wire_bytes"]):  # what live hosts send, of no level
        yield "wire GB/s", columns["wire_bytes"] / 1e9, True
    for pool, count in peaks.cores.items():
        held = np.array([dict(zip(engine.split("+"), cores, strict=False)).get(pool, 0) for engine, cores
                         in zip(columns["engine"].tolist(), columns["cores"].tolist(), strict=True)], dtype=float)
        if held.any():
            yield f"{pool} (of {count}) cores", held, False


def steps(columns: Columns, amounts: Array, per_second: bool) -> tuple[Array, Array]:
    """When the sum of what rows take changes (ps), and to what: amounts a second, or amounts."""
    start, end = columns["start_ps"], columns["end_ps"]
    busy = (amounts > 0) & (end > start)
    level = amounts[busy] / ((end[busy] - start[busy]) / PS_PER_S if per_second else 1.0)
    times, place = np.unique(np.concatenate([start[busy], end[busy]]), return_inverse=True)
    change = np.zeros(len(times))
    np.add.at(change, place, np.concatenate([level, -level]))
    value = np.cumsum(change)
    value[np.abs(value) < 1e-6 * max(1.0, float(np.max(value, initial=0.0)))] = 0.0  # what rounding leaves of nothing
    return times, np.round(value, 3)
