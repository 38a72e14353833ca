"""Fits the protocols of an engine on measured collectives: each a latency, a latency per peer and a rate.

A protocol is linear in its numbers, so each is fitted to the rows in which it is the fastest, by least absolute
relative errors, until no row changes sides. Several starts, drawn from a fixed seed; the best one stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal, NamedTuple

from simulator import np
from simulator.collective.protocols import parts, wire_bytes
from simulator.errors import InputError
from simulator.np import Array

STARTS, ROUNDS, REWEIGHTINGS = 40, 30, 4
DECODE_BYTES = 8192.0, 4.0 * 2**20  # messages of decode count twice, those beyond LARGE_BYTES half
LARGE_BYTES = 64.0 * 2**20


class Way(NamedTuple):
    """An algorithm of a protocol that is to be fitted.

    side: a library has kernels of its own "up_to" some size and another's "above" it; "" for any size.
    """

    name: str
    algorithm: str
    side: Literal["", "up_to", "above"] = ""


class Row(NamedTuple):
    """One measurement: ranks of one node, bytes of the buffer, seconds."""

    ranks: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class Numbers:
    """What was found for one way. limit_bytes: of the side that it is on, NaN where it is on none."""

    way: Way
    startup_s: float
    startup_per_peer_s: float
    rate_bytes_per_s: float
    limit_bytes: float = nan

    def takes(self, size_bytes: float) -> bool:
        """Whether a buffer may go this way."""
        return not self.way.side or (size_bytes <= self.limit_bytes) == (self.way.side == "up_to")


class _Table:
    """Rows as columns, and what each way's latency is a sum of: (starts, starts x peers, wire bytes)."""

    def __init__(self, rows: Sequence[Row], kind: str, ways: Sequence[Way], hop_s: float) -> None:
        self.n, self.size, self.seconds = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
        self.terms, hops_s = [], []
        for way in ways:
            starts = parts(way.algorithm, kind)
            wire = [wire_bytes(way.algorithm, kind, row.size_bytes, row.ranks) for row in rows]
            peers = np.zeros_like(self.n) if way.algorithm == "nvls" else self.n - 1.0  # a switch asks all at once
            self.terms.append(np.stack([starts * np.ones_like(self.n), starts * peers, np.array(wire)], axis=1))
            hops_s.append(starts * hop_s)
        self.hops_s = np.array(hops_s)
        decode = (self.size >= DECODE_BYTES[0]) & (self.size <= DECODE_BYTES[1])
        self.weight = np.where(decode, 2.0, np.where(self.size > LARGE_BYTES, 0.5, 1.0))

    def taken(self, found: Array, closed: Array) -> Array:
        """The way of every row: the fastest that is open to it, hops left out, as a library chooses (`protocols`)."""
        each = np.stack([terms @ own for terms, own in zip(self.terms, found, strict=True)], axis=1)
        return np.where(closed, np.inf, each).argmin(axis=1)

    def loss(self, found: Array, closed: Array) -> float:
        """The mean of |log(simulated / measured)|."""
        ways = self.taken(found, closed)
        each = np.stack([terms @ own for terms, own in zip(self.terms, found, strict=True)], axis=1) + self.hops_s
        errors = np.abs(np.log(each[np.arange(len(ways)), ways] / self.seconds))
        return float((self.weight * errors).sum() / self.weight.sum())


def fit(rows: Sequence[Row], kind: str, ways: Sequence[Way], hop_s: float, link_rate: float) -> list[Numbers]:
    """The numbers of each way that are nearest to the rows. link_rate: no way is faster, in bytes/s.

    hop_s: the latency of the fabric, which every part of a collective bears beside its start-up.
    """
    table = _Table(rows, kind, ways, hop_s)
    best: tuple[float, list[Numbers]] = np.inf, []
    sizes = np.unique(table.size)
    limits = sizes[(sizes >= 2**20) & (sizes <= 2**27)] if any(way.side for way in ways) else [np.nan]
    for limit in limits:
        sides = {"": table.size < 0, "up_to": table.size > limit, "above": table.size <= limit}
        closed = np.stack([sides[way.side] for way in ways], axis=1)
        draw = np.random.default_rng(1)
        for _ in range(STARTS):
            found = _settled(table, closed, _start(table, closed, draw), 1.0 / link_rate)
            if found is None:
                continue
            loss = table.loss(found, closed)
            if loss < best[0]:
                best = loss, [_numbers(way, own, limit) for way, own in zip(ways, found, strict=True)]
    if not best[1]:
        raise InputError(f"{len(rows)} rows of {kind} are too few to tell {len(ways)} protocols apart")
    return best[1]


def _numbers(way: Way, own: Array, limit: float) -> Numbers:
    startup_s, per_peer_s, inverse = own.tolist()
    return Numbers(way, startup_s, per_peer_s, 1.0 / inverse, float(limit) if way.side else nan)


def _start(table: _Table, closed: Array, draw: np.random.Generator) -> Array:
    """Each row's way: by size, with borders that move with the number of ranks; any open one where that is closed."""
    low, high = np.log(table.size.min()), np.log(table.size.max())
    borders = np.sort(draw.uniform(low, high, closed.shape[1] - 1))
    taken = np.searchsorted(borders, np.log(table.size) + 0.5 * draw.normal() * np.log(table.n / 4))
    other = np.where(closed, np.inf, draw.random(closed.shape)).argmin(axis=1)
    return np.where(closed[np.arange(len(taken)), taken], other, taken)


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
        before, taken = taken, table.taken(found, closed)
        if (before == taken).all():
            break
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
