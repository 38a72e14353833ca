"""The tokens of a micro-batch: requests that decode, and prompts that are prefilled, in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class MicroBatch:
    """What one data-parallel rank works on in one forward pass, or one of the parts that it is cut into.

    number: which part. decodes: (query tokens, cached tokens) of every request that decodes. prompts: (new tokens,
    tokens before them that are cached) of every prompt, or chunk of one. ends: how many of the prompts end here, so
    that a token is sampled. padded: tokens to which a captured graph, or the fullest rank, pads it.
    """

    number: int = 0
    decodes: tuple[tuple[int, int], ...] = ()
    prompts: tuple[tuple[int, int], ...] = ()
    ends: int = 0
    padded: int = 0

    @cached_property
    def routed(self) -> int:
        """Query and prompt tokens, of which each chooses its experts; what pads them chooses none."""
        return sum(count for count, _ in (*self.decodes, *self.prompts))

    @property
    def tokens(self) -> int:
        """Rows that every product computes: the same, padded."""
        return max(self.routed, self.padded)

    @property
    def sampled(self) -> int:
        """Rows of which logits are needed: all query tokens of decode, the last token of every prompt that ends."""
        return sum(queries for queries, _ in self.decodes) + self.ends

    @property
    def held(self) -> list[int]:
        """Tokens of every request in the cache when the pass has ended."""
        return [new + before for new, before in (*self.decodes, *self.prompts)]

    def drafting(self, queries: int, most: int) -> MicroBatch:
        """The same requests in a pass of a draft layer, with so many query tokens each, padded to `most` requests."""
        decodes = tuple((queries, cached) for _, cached in self.decodes)
        return MicroBatch(self.number, decodes, (), 0, queries * most)


def parted(batch: MicroBatch, parts: int) -> tuple[MicroBatch, ...]:
    """A batch in so many micro-batches of as many requests, and as many tokens of prompts, as near as can be.

    Prompts are cut between tokens where there are fewer than parts: the later part attends to the earlier one.
    ValueError where a part would have nothing to do.
    """
    if parts == 1:
        return (batch,)
    decodes = [batch.decodes[number::parts] for number in range(parts)]
    prompts = _dealt(batch.prompts, parts)
    ends = [len(part) for part in prompts] if batch.ends else [0] * parts
    if len(batch.prompts) < parts and batch.ends:
        ends = [0] * (parts - 1) + [batch.ends]
    made = tuple(
        MicroBatch(number, decodes[number], prompts[number], ends[number], -(-batch.padded // parts))
        for number in range(parts)
    )
    idle = not (batch.decodes or batch.prompts)  # in this pass; it takes part with what pads it
    if not idle and not all(one.decodes or one.prompts for one in made) and batch.padded < parts * _queries(batch):
        raise ValueError(f"{parts} micro-batches need {parts} requests on every data-parallel rank, or a prompt of "
                         f"{parts} tokens: there are {len(batch.decodes)} and {len(batch.prompts)}")
    return made


def _queries(batch: MicroBatch) -> int:
    """Of a request, where there is one."""
    return batch.decodes[0][0] if batch.decodes else 1


def _dealt(prompts: Sequence[tuple[int, int]], parts: int) -> list[tuple[tuple[int, int], ...]]:
    """Prompts to parts: whole ones in turn, or one cut into neighbouring pieces where there are fewer than parts."""
    if not prompts or len(prompts) >= parts:
        return [tuple(prompts[number::parts]) for number in range(parts)]
    pieces: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    for new, before in prompts:
        done = 0
        for number in range(parts):
            piece = new * (number + 1) // parts - done
            if piece:
                pieces[number].append((piece, before + done))
            done += piece
    return [tuple(part) for part in pieces]
