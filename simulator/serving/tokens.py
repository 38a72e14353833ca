"""When the tokens of a request came: at the ends of the steps of its engine that decoded, while it did.

A step gives a request one token, and with drafts several at once: a chunk. All gaps here are those between chunks. In
which steps a preempted request did not decode is not recorded: its gaps are those of all steps from its first token to
its last, and one more for each preemption, of the mean time that it was preempted. So it is of one whose engine
was lost: its steps are taken to be those of the engine where it ended. Where none of these decoded, all came at last.
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
    engine after engine."""

    ends_ps: np.Array
    first: np.Array
    stop: np.Array
    first_gap_ps: np.Array
    """Of each request with a chunk after its first token, the gap between the two; NaN: there is none."""

    @property
    def count(self) -> np.Array:
        """Of each request, those after its first token."""
        return self.stop - self.first

    def gaps_ps(self, first: int, stop: int) -> np.Array:
        """Of some chunks, the time since the one before; 0 of the very first."""
        ends_ps = self.ends_ps
        return ends_ps[first:stop] - ends_ps[first - 1:stop - 1] if first else np.diff(ends_ps[:stop],
                                                                                      prepend=ends_ps[:1])


def chunks_of(served: Served) -> Chunks:
    """From the steps of a service. ValueError where a request has more than one token and no step that gave them."""
    start, ends, edges = _decoding_steps(served)
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
    without[served.stranded] = False
    if without.any():
        raise ValueError(f"request {int(np.flatnonzero(without)[0])}: no step decoded from its first token to its last")
    gap = np.full(len(served), np.nan)
    gap[stop > first] = ends[first[stop > first]] - came[stop > first]
    return Chunks(ends, first, stop, gap)


def _decoding_steps(served: Served) -> tuple[np.Array, np.Array, np.Array]:
    """When those begin and end that decoded, engine after engine, and where those of each engine begin."""
    decoded = np.flatnonzero(served.steps["decoding"] > 0)
    engine = served.steps["engine"][decoded]
    if (engine[1:] < engine[:-1]).any():
        decoded = decoded[np.argsort(engine, kind="stable")]
    edges = np.concatenate([[0], np.cumsum(np.bincount(engine, minlength=len(served.engines)))])
    start = served.steps["start_ps"][decoded]
    return start, start + served.steps["duration_ps"][decoded], edges


def longest_gaps_ms(served: Served, chunks: Chunks) -> np.Array:
    """Mooncake's TBT of each request: the mean of its longest 10% of gaps, at least one; NaN where it has no gap."""
    means = np.full(len(served), np.nan)
    lost = served.preempted_ps / np.maximum(served.preemptions, 1)
    for place in np.flatnonzero(chunks.count):
        gaps = chunks.gaps_ps(chunks.first[place], chunks.stop[place])
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
    counts = np.zeros(len(chunks.ends_ps) + 1, dtype=np.int32)
    np.add.at(counts, chunks.first[mine] + 1, 1)
    np.add.at(counts, chunks.stop[mine], -1)
    counts = np.cumsum(counts[:-1], out=counts[:-1])
    there = counts > 0
    counts = np.concatenate([counts[there], np.ones(int(mine.sum()), dtype=np.int32)])
    if not len(counts):
        return None
    return spread("ms", _gaps_ms(chunks, there, mine), counts)


def _gaps_ms(chunks: Chunks, there: np.Array, mine: np.Array) -> np.Array:
    """Of chunks that are there, and the first one of some requests."""
    first_ones, found = chunks.first_gap_ps[mine], np.empty(int(there.sum()) + int(mine.sum()))
    found[len(found) - len(first_ones):] = first_ones
    found[:len(found) - len(first_ones)] = chunks.gaps_ps(0, len(chunks.ends_ps))[there]
    found /= 1e9
    return found


def tokens_between(served: Served, chunks: Chunks, start_ps: int, end_ps: int) -> float:
    """Tokens of all requests that came from the one time to before the other; a request's tokens after its first are
    taken to be as many in every chunk."""
    came = served.times["first_token"]
    inside = (chunks.ends_ps >= start_ps) & (chunks.ends_ps < end_ps)
    before = np.concatenate([[0], np.cumsum(inside)])
    each = np.divide(served.emitted - 1, chunks.count, out=np.zeros(len(served)), where=chunks.count > 0)
    later = (each * (before[chunks.stop] - before[chunks.first])).sum()
    last, at_once = served.times["last_token"], served.done & (chunks.count == 0)
    later += (served.emitted - 1)[at_once & (last >= start_ps) & (last < end_ps)].sum()
    return float(((came >= start_ps) & (came < end_ps)).sum() + later)
