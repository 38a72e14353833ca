"""What was simulated of an engine, or why it cannot be."""

from __future__ import annotations

from typing import NamedTuple

from simulator.search.deployment import Engine


class Sheet(NamedTuple):
    """What an engine does. cards, groups: how many; per_iteration: tokens of a request in one step; capacity: tokens
    that the cache of a group holds; front_s: seconds that servers take before a prompt comes to it; full: what has no
    room for more requests, "memory" or "max_num_seqs". decode: (requests of a group, seconds), ascending; chunk:
    seconds that a chunk of one group adds to a step of the largest batch within the limits, and one of each group;
    prefill: (prompts of a group, seconds); none where that was not asked for. Steps are with what their hosts take.
    queries: tokens of a request that decodes in a step; alone: whether prompts have steps to themselves (SGLang).
    refused: why there is nothing, and of what kind; kind: "" where there is."""

    engine: Engine
    cards: int = 0
    groups: int = 1
    per_iteration: float = 1.0
    capacity: int = 0
    front_s: float = 0.0
    decode: tuple[tuple[int, float], ...] = ()
    chunk: tuple[float, ...] = ()
    prefill: tuple[tuple[int, float], ...] = ()
    kind: str = ""
    refused: str = ""
    full: str = "memory"
    queries: int = 1
    alone: bool = False
