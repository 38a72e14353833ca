"""When the tokens of a request came: at the ends of the steps of its engine that decoded, while it did.

A step gives a request one token, and with drafts several at once: a chunk. All gaps here are those between chunks. In
which steps a preempted request did not decode is not recorded: its gaps are those of all steps from its first token to
its last, and one more for each preemption, of the mean time that it was preempted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from simulator import np
from simulator.serving.record import NEVER, Served
from simulator.serving.spread import Block, spread

LONGEST = 10  # one in so many of a request's gaps


@dataclass(frozen=True, eq=False)
class Chunks:
    """Those of request r after its first token came at ends_ps[first[r]:stop[r]]. ends_ps: of steps that decoded,
    engine after engine; gap_ps: since the end of the one before."""

    ends_ps: np.Array
    gap_ps: np.Array
    first: np.Array
    stop: np.Array
    first_gap_ps: np.Array
    """Of each request with a chunk after its first token, the gap between the two; NaN: there is none."""

    @property
    def count(self) -> np.Array:
        """Of each request, those after its first token."""
        return self.stop - self.first


def chunks_of(served: Served) -> Chunks:
    """From the steps of a service. ValueError where a request has more than one token and no step that gave them."""
    steps, decoded = served.steps, served.steps["decoding"] > 0
    engine, start = steps["engine"][decoded], steps["start_ps"][decoded]
    order = np.argsort(engine, kind="stable")
    start, ends = start[order], (start + steps["duration_ps"][decoded])[order]
    edges = np.searchsorted(engine[order], np.arange(len(served.engines) + 1))
    first, stop = np.zeros(len(served), dtype=np.int64), np.zeros(len(served), dtype=np.int64)
    came, left = served.times["first_token"], served.times["last_token"]
    since = np.maximum(came, served.times["joined"])
    until = np.where(left == NEVER, served.end_ps, left)
    decodes = (came != NEVER) & (served.emitted > 1)
    for place, (low, high) in enumerate(pairwise(edges)):
        mine = decodes & (served.decode_engine == place)
        first[mine] = low + np.searchsorted(start[low:high], since[mine], side="left")
        stop[mine] = low + np.searchsorted(ends[low:high], until[mine], side="right")
    stop = np.maximum(first, stop)
    without = served.done & decodes & (stop == first)
    if without.any():
        raise ValueError(f"request {int(np.flatnonzero(without)[0])}: no step decoded from its first token to its last")
    gap = np.full(len(served), np.nan)
    gap[stop > first] = ends[first[stop > first]] - came[stop > first]
    return Chunks(ends, np.diff(ends, prepend=ends[:1]), first, stop, gap)


def longest_gaps_ms(served: Served, chunks: Chunks) -> np.Array:
    """Mooncake's TBT of each request: the mean of its longest 10% of gaps, at least one; NaN where it has no gap."""
    means = np.full(len(served), np.nan)
    lost = served.preempted_ps / np.maximum(served.preemptions, 1)
    for place in np.flatnonzero(chunks.count):
        gaps = chunks.gap_ps[chunks.first[place]:chunks.stop[place]].copy()
        gaps[0] = chunks.first_gap_ps[place]
        if served.preemptions[place]:
            gaps = np.append(gaps, np.full(served.preemptions[place], int(lost[place])))
        rest = len(gaps) - -(-len(gaps) // LONGEST)
        gaps.partition(rest)
        means[place] = gaps[rest:].sum() / (len(gaps) - rest)
    return means / 1e9


def gaps_spread(chunks: Chunks, whom: np.Array) -> Block | None:
    """All gaps of these requests, in ms; None where there is none."""
    mine = whom & (chunks.count > 0)
    change = np.zeros(len(chunks.ends_ps) + 1, dtype=np.int64)
    np.add.at(change, chunks.first[mine] + 1, 1)
    np.add.at(change, chunks.stop[mine], -1)
    counts = np.cumsum(change)[:-1]
    values = np.concatenate([chunks.gap_ps[counts > 0], chunks.first_gap_ps[mine]]) / 1e9
    counts = np.concatenate([counts[counts > 0], np.ones(int(mine.sum()), dtype=np.int64)])
    return spread("ms", values, counts) if len(values) else None


def tokens_between(served: Served, chunks: Chunks, start_ps: int, end_ps: int) -> float:
    """Tokens of all requests that came from the one time to before the other; a request's tokens after its first are
    taken to be as many in every chunk."""
    came = served.times["first_token"]
    inside = (chunks.ends_ps >= start_ps) & (chunks.ends_ps < end_ps)
    before = np.concatenate([[0], np.cumsum(inside)])
    each = np.divide(served.emitted - 1, chunks.count, out=np.zeros(len(served)), where=chunks.count > 0)
    later = (each * (before[chunks.stop] - before[chunks.first])).sum()
    return float(((came >= start_ps) & (came < end_ps)).sum() + later)
