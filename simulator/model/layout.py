"""Who holds what: how ranks form groups, how long requests are in decode, and how they fall on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from simulator import np
from simulator.model.eplb import pack


def blocks(ranks: int, size: int, setting: str = "") -> list[tuple[int, ...]]:
    """Groups of `size` neighbours: blocks(4, 2) is [(0, 1), (2, 3)]; ValueError, with `setting`, if none fit."""
    if size < 1 or ranks % size:
        raise ValueError(f"{ranks} ranks do not divide into groups of {size}{setting and f' ({setting})'}")
    return [tuple(range(first, first + size)) for first in range(0, ranks, size)]


def strides(ranks: int, size: int) -> list[tuple[int, ...]]:
    """Groups of `size` ranks as far apart as can be: strides(4, 2) is [(0, 2), (1, 3)]."""
    if size < 1 or ranks % size:
        raise ValueError(f"{ranks} ranks do not divide into groups of {size}")
    step = ranks // size
    return [tuple(range(first, ranks, step)) for first in range(step)]


def deal(lengths: Sequence[int], ranks: int) -> list[tuple[int, ...]]:
    """Requests to data-parallel ranks: each, longest first, to the rank with the fewest tokens so far."""
    return [tuple(lengths[place] for place in hand) for hand in pack(lengths, ranks, len(lengths))]


def shard_size(whole: int, ranks: int, what: str) -> int:
    """What each rank holds of a dimension: shard_size(128, 8, "heads") is 16; ValueError where it does not divide."""
    if whole % ranks:
        raise ValueError(f"{whole} {what} do not divide over {ranks} ranks")
    return whole // ranks


def split(total: int, parts: int) -> list[int]:
    """A whole number in nearly equal parts, the larger ones first: split(7, 3) is [3, 2, 2]."""
    share, rest = divmod(total, parts)
    return [share + (part < rest) for part in range(parts)]


def cached_lengths(ranks: int, per_rank: int, mean: int, spread: float, seed: int) -> list[int]:
    """Lengths of all requests in order of arrival; log-normal with this mean and coefficient of variation."""
    if not spread:
        return [mean] * (ranks * per_rank)
    sigma = float(np.sqrt(np.log1p(spread**2)))
    drawn = np.random.default_rng((seed, 2)).lognormal(np.log(mean) - sigma**2 / 2, sigma, ranks * per_rank)
    return [max(1, round(length)) for length in drawn]


@lru_cache(maxsize=4)
def lengths_on_ranks(arrivals: int, each: int, mean: int, spread: float, seed: int, ranks: int,
                     length_aware: bool = False) -> Sequence[tuple[int, ...]]:
    """Cached tokens of the requests of every rank, where `each` arrive at each of so many places."""
    return on_ranks(cached_lengths(arrivals, each, mean, spread, seed), ranks, length_aware)


def on_ranks(lengths: list[int], ranks: int, length_aware: bool) -> list[tuple[int, ...]]:
    """The lengths on each rank: as many requests each as they come, or as many tokens each.

    Where requests divide over ranks they get as many of them too: a deal of the sorted lengths, back and forth.
    """
    if not length_aware:
        return [tuple(lengths[rank::ranks]) for rank in range(ranks)]
    if len(lengths) % ranks:
        return deal(lengths, ranks)
    longest_first = sorted(lengths, reverse=True)
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for start in range(0, len(lengths), ranks):
        poorest_first = sorted(range(ranks), key=lambda rank: sum(hands[rank]))
        for rank, length in zip(poorest_first, longest_first[start : start + ranks], strict=True):
            hands[rank].append(length)
    return [tuple(hand) for hand in hands]
