"""Fits one kernel family of a library on its table: numbers by coordinate search, tiles one after the other.

What is made small is the mean of |log(simulated / measured)| over a seeded sample of rows, as many of decode sizes as
of prefill sizes; errors are those of all rows. How a law fares outside its table is tried on rows held back: the same
search without the largest fifth of the sizes, or without the smallest, and the error on those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from simulator import np
from simulator.calibrate.library_tables import Columns, where

Numbers: TypeAlias = dict[str, float]
SHARES = ("hbm_share", "compute_share", "unoverlapped", "vector_share")  # at most 1
COUNTS = ("split_k", "stream_k", "split_keys", "tile_m", "tile_n", "granule", "least_tile", "tile_keys", "sharing")
DISPENSABLE = ("per_row", "per_slot", "per_copy", "serial_per_k", "tile_ramp", "combine", "softmax_dims", "per_query",
               "port_share", "tile_latency", "split_k", "stream_k", "input_rate")  # fmt: skip
WORTH = 1.003  # a number is left out if the loss grows by no more than this factor without it
SAMPLE, COARSE, REFINED, RESTARTS, SEED = 2400, 700, 4, 6, 0
HELD_BACK = 0.2


@dataclass(frozen=True)
class Family:
    """A family's table and law: simulated(columns, numbers) in seconds, numbers to start from, which of them are free,
    alternatives (other tiles) to each of which the search is made, the size that grows from decode to prefill."""

    name: str
    columns: Columns
    simulated: Callable[[Columns, Numbers], Any]
    start: Numbers
    free: tuple[str, ...]
    alternatives: tuple[Numbers, ...]
    size: Any
    decode: Any


@dataclass(frozen=True)
class Errors:
    """Of one range of rows: how many, the median of |simulated / measured - 1|, and what nine in ten are within."""

    rows: int
    median: float
    ninth_decile: float

    def __str__(self) -> str:
        if not self.rows:
            return "no rows"
        return f"{self.rows:6d} rows, median {self.median:5.1%}, 90% within {self.ninth_decile:5.1%}"


@dataclass(frozen=True)
class Found:
    """Numbers of a family with their errors by range, the median error of rows held back by which they were."""

    numbers: Numbers
    errors: dict[str, Errors]
    held_back: dict[str, float]


def fit(family: Family) -> Found:
    """The best numbers over all alternatives, and how far the law is then."""
    random = np.random.default_rng(SEED)
    chosen = sample(family)
    part, started = where(family.columns, chosen), ({**family.start, **one} for one in family.alternatives or ({},))
    few = where(part, random.choice(len(chosen), min(COARSE, len(chosen)), replace=False))
    coarse = sorted((search(family, few, start, 1.2) for start in started), key=lambda found: found[1])
    best, off = min((search(family, part, one) for one, _ in coarse[:REFINED]), key=lambda found: found[1])
    for _ in range(RESTARTS):
        other, less = search(family, part, _shaken(family, best, random), 1.05)
        best, off = (other, less) if less < off else (best, off)
    best, off = search(family, part, best)
    numbers = rounded(needed(family, part, best))
    off = errors(family, family.columns, numbers)
    ranges = {"decode sizes": family.decode, "prefill sizes": ~family.decode}
    return Found(numbers, {name: summary(off[mask]) for name, mask in ranges.items()},
                 dict(_held_back(family, chosen, numbers)))


def _shaken(family: Family, numbers: Numbers, random: Any) -> Numbers:
    """Every free number up to four times as large or as small."""
    shaken = {name: numbers[name] * 4.0 ** random.uniform(-1.0, 1.0) for name in family.free}
    return {**numbers, **{name: min(value, 1.0) if name in SHARES else value for name, value in shaken.items()}}


def sample(family: Family) -> Any:
    """Places of rows to fit on."""
    random = np.random.default_rng(SEED)
    places = []
    for mask in (family.decode, ~family.decode):
        there = np.flatnonzero(mask)
        places.append(random.choice(there, min(SAMPLE // 2, len(there)), replace=False))
    return np.sort(np.concatenate(places))


def errors(family: Family, columns: Columns, numbers: Numbers) -> Any:
    """simulated / measured - 1 of every row."""
    return family.simulated(columns, numbers) / columns["seconds"] - 1.0


def summary(off: Any) -> Errors:
    """Of relative errors."""
    if not len(off):
        return Errors(0, 0.0, 0.0)
    size = np.abs(off)
    return Errors(len(off), float(np.median(size)), float(np.quantile(size, 0.9)))


def loss(family: Family, part: Columns, numbers: Numbers) -> float:
    """The mean of |log(simulated / measured)|."""
    return float(np.abs(np.log(family.simulated(part, numbers) / part["seconds"])).mean())


def needed(family: Family, part: Columns, numbers: Numbers) -> Numbers:
    """Without the numbers that make next to no difference."""
    limit = WORTH * loss(family, part, numbers)
    for name in DISPENSABLE:
        fewer = {key: value for key, value in numbers.items() if key != name}
        if name in family.free and loss(family, part, fewer) <= limit:
            numbers = fewer
    return numbers


def rounded(numbers: Numbers) -> Numbers:
    """Three digits, and whole counts."""
    return {name: float(max(round(value), 1)) if name in COUNTS else float(f"{value:.3g}")
            for name, value in numbers.items()}  # fmt: skip


def search(family: Family, part: Columns, start: Numbers, finest: float = 1.01) -> tuple[Numbers, float]:
    """Coordinate search: each number a step up or down as long as that helps, then smaller steps down to `finest`."""
    numbers, best, step = dict(start), loss(family, part, start), 1.6
    while step > finest:
        improved = False
        for name in family.free:
            if name not in numbers:
                continue
            for factor in (step, 1.0 / step):
                value = numbers[name] * factor
                other = {**numbers, name: min(value, 1.0) if name in SHARES else value}
                if (off := loss(family, part, other)) < best - 1e-6:
                    best, numbers, improved = off, other, True
        if not improved:
            step = step**0.5
    return numbers, best


def _held_back(family: Family, chosen: Any, numbers: Numbers) -> Iterable[tuple[str, float]]:
    """Median error on the largest and on the smallest rows of numbers found without them."""
    size = family.size[chosen]
    low, high = np.quantile(size, HELD_BACK), np.quantile(size, 1.0 - HELD_BACK)
    for name, held in (("largest", size > high), ("smallest", size < low)):
        if held.any() and not held.all():
            without, _ = search(family, where(family.columns, chosen[~held]), numbers)
            off = errors(family, where(family.columns, chosen[held]), without)
            yield name, float(np.median(np.abs(off)))
