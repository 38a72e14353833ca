"""A request at an engine: what of its prompt is computed, and what is still to be generated."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Sequence:
    """request: its number. input, output: tokens of its prompt, and that it will have generated in all; emitted: so
    far. prompt: tokens to compute before it decodes, those generated before a preemption included; computed: of these.
    hashes: of its prompt. group: of its engine, by number. joined: decode steps of its group when it began to decode;
    steps: that it takes; blocks: that it held then, or holds before. scheduled: whether it has been worked on since it
    came or was preempted. priority: 0 the first. gone: its engine is lost.
    """

    request: int
    input: int
    output: int
    hashes: list[int]
    prompt: int = 0
    group: int = 0
    computed: int = 0
    emitted: int = 0
    joined: int = 0
    steps: int = 0
    blocks: int = 0
    preempted: bool = False
    scheduled: bool = False
    priority: int = 0
    gone: bool = False

    def __post_init__(self) -> None:
        self.prompt = self.prompt or self.input

    @property
    def new(self) -> int:
        """Prompt tokens that are not computed."""
        return self.prompt - self.computed


def queue_up(queue: deque[Sequence], one: Sequence, *, first: bool = False, by_priority: bool = False) -> None:
    """A request waits behind all others, or before them if it is to be the first; of those with its own priority where
    that counts."""
    if not by_priority:
        (queue.appendleft if first else queue.append)(one)
        return
    place = (bisect_left if first else bisect_right)(queue, one.priority, key=lambda other: other.priority)
    queue.insert(place, one)
