"""Cached tokens of the requests of every rank in decode: all alike, or drawn, and how requests fall on ranks."""

from __future__ import annotations

from simulator.model.layout import deal


def cached_lengths(ranks: int, per_rank: int, mean: int, spread: float, seed: int) -> list[int]:
    """Lengths of all requests in order of arrival; log-normal with this mean and coefficient of variation."""
    if not spread:
        return [mean] * (ranks * per_rank)
    import numpy as np

    sigma = float(np.sqrt(np.log1p(spread**2)))
    drawn = np.random.default_rng((seed, 2)).lognormal(np.log(mean) - sigma**2 / 2, sigma, ranks * per_rank)
    return [max(1, round(length)) for length in drawn]


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
