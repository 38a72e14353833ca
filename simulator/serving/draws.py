"""Random draws of a service: every kind of draw has a stream of its own, so that one more of it moves no other."""

from __future__ import annotations

from simulator import np
from simulator.errors import InputError

STREAMS = ("arrivals", "input", "output", "pairs", "prefixes", "turns", "think", "audits", "drafts", "priorities",
           "experts", "faults")  # fmt: skip
"""Kinds of draws; a new one goes to the end, where it changes no result."""


def stream_of(seed: int, stream: str, *of: int) -> np.random.Generator:
    """The generator of one kind of draw: the same draws for the same seed in every process, independent of the other
    streams. seed: a whole number, at least 0; of: numbers of what has draws of its own, as a request's."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be a whole number, at least 0")
    return np.random.default_rng((seed, STREAMS.index(stream), *of))
