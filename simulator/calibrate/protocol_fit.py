"""Fits the protocols of an engine on measured collectives: each a latency, a latency per peer and a rate.

A protocol is linear in its numbers, so each is fitted to the rows in which it is the fastest, by least absolute
relative errors, until no row changes sides. Several starts, drawn from a fixed seed; the best one stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator import np
from simulator.collective.protocols import parts, wire_bytes
from simulator.np import Array

STARTS, ROUNDS, REWEIGHTINGS = 40, 30, 4
DECODE_BYTES = 8192.0, 4.0 * 2**20  # messages of decode count twice, those beyond LARGE_BYTES half
LARGE_BYTES = 64.0 * 2**20


class Way(NamedTuple):
    """An algorithm of a protocol that is to be fitted; `limited`: the library takes it up to some size only."""

    name: str
    algorithm: str
    limited: bool = False


class Row(NamedTuple):
    """One measurement: ranks of one node, bytes of the buffer, seconds."""

    ranks: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class Numbers:
    """What was found for one way; up_to_bytes is infinite where there is no limit."""

    way: Way
    startup_s: float
    startup_per_peer_s: float
    rate_bytes_per_s: float
    up_to_bytes: float = float("inf")


class _Table:
    """Rows as columns, and what each way's latency is a sum of: (starts, starts x peers, wire bytes)."""

    def __init__(self, rows: Sequence[Row], kind: str, ways: Sequence[Way], hop_s: float) -> None:
        self.n, self.size, self.seconds = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
        self.terms, self.hops_s = [], []
        for way in ways:
            starts = parts(way.algorithm, kind)
            wire = [wire_bytes(way.algorithm, kind, row.size_bytes, row.ranks) for row in rows]
            peers = np.zeros_like(self.n) if way.algorithm == "nvls" else self.n - 1.0  # a switch asks all at once
            self.terms.append(np.stack([starts * np.ones_like(self.n), starts * peers, np.array(wire)], axis=1))
            self.hops_s.append(starts * hop_s)
        decode = (self.size >= DECODE_BYTES[0]) & (self.size <= DECODE_BYTES[1])
        self.weight = np.where(decode, 2.0, np.where(self.size > LARGE_BYTES, 0.5, 1.0))

    def times_s(self, found: Array, closed: Array) -> Array:
        """Of every row and way; infinite where a way is closed to a row."""
        each = [terms @ own + hop_s for terms, own, hop_s in zip(self.terms, found, self.hops_s, strict=True)]
        return np.where(closed, np.inf, np.stack(each, axis=1))

    def loss(self, times_s: Array) -> float:
        """The mean of |log(simulated / measured)|."""
        errors = np.abs(np.log(times_s.min(axis=1) / self.seconds))
        return float((self.weight * errors).sum() / self.weight.sum())


def fit(rows: Sequence[Row], kind: str, ways: Sequence[Way], hop_s: float, link_rate: float) -> list[Numbers]:
    """The numbers of each way that are nearest to the rows. link_rate: no way is faster, in bytes/s.

    hop_s: the latency of the fabric, which every part of a collective bears beside its start-up.
    """
    table, best = _Table(rows, kind, ways, hop_s), (np.inf, [])
    sizes = np.unique(table.size)
    limits = sizes[(sizes >= 2**20) & (sizes <= 2**27)] if any(way.limited for way in ways) else [np.inf]
    for limit in limits:
        closed = np.stack([way.limited & (table.size > limit) for way in ways], axis=1)
        draw = np.random.default_rng(1)
        for _ in range(STARTS):
            found = _settled(table, closed, _start(table, len(ways), draw), 1.0 / link_rate)
            loss = table.loss(table.times_s(found, closed)) if found is not None else np.inf
            if loss < best[0]:
                best = loss, [_numbers(way, own, limit) for way, own in zip(ways, found, strict=True)]
    return best[1]


def _numbers(way: Way, own: Array, limit: float) -> Numbers:
    startup_s, per_peer_s, inverse = own.tolist()
    return Numbers(way, startup_s, per_peer_s, 1.0 / inverse, float(limit) if way.limited else float("inf"))


def _start(table: _Table, ways: int, draw: np.random.Generator) -> Array:
    """Each row's way: by size, with borders that move with the number of ranks."""
    low, high = np.log(table.size.min()), np.log(table.size.max())
    borders = np.sort(draw.uniform(low, high, ways - 1))
    return np.searchsorted(borders, np.log(table.size) + 0.5 * draw.normal() * np.log(table.n / 4))


def _settled(table: _Table, closed: Array, taken: Array, least: float) -> Array | None:
    """The numbers of all ways when no row changes to a faster one any more; None where a way never had rows enough."""
    found = np.full((len(table.terms), 3), np.nan)
    for _ in range(ROUNDS):
        for way in range(len(found)):
            own = (taken == way) & ~closed[:, way]
            if own.sum() >= 3:
                found[way] = _line(table, way, own, least)
        if np.isnan(found).any():
            return None
        fastest = table.times_s(found, closed).argmin(axis=1)
        if (fastest == taken).all():
            break
        taken = fastest
    return found


def _line(table: _Table, way: int, own: Array, least: float) -> Array:
    """Startup, startup per peer and inverse rate of one way on its own rows: least absolute relative errors."""
    terms, seconds = table.terms[way][own], table.seconds[own] - table.hops_s[way]
    scale, weight = np.maximum(terms.max(axis=0), 1.0), table.weight[own] / table.seconds[own]
    found = np.zeros(3)
    bounds = np.array([0.0, 0.0, least])
    every = weight
    for _ in range(REWEIGHTINGS):
        found = _bounded(terms / scale * every[:, None], seconds * every, bounds * scale) / scale
        off = np.abs(terms @ found - seconds) / table.seconds[own]
        every = weight / np.sqrt(np.maximum(off, 0.01))
    return found


def _bounded(terms: Array, right: Array, bounds: Array) -> Array:
    """Least squares whose numbers are not below their bounds: what falls below stays there, the others are solved."""
    found, free = bounds.copy(), terms.any(axis=0)
    while free.any():
        rest = right - terms[:, ~free] @ bounds[~free]
        found[free] = np.linalg.lstsq(terms[:, free], rest, rcond=None)[0]
        below = free & (found < bounds)
        if not below.any():
            break
        found[below], free = bounds[below], free & ~below
    return found
