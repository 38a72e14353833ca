"""What every data-parallel group works on, pass by pass: requests that decode, or prompts, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.model.eplb import pack
from simulator.model.micro_batch import MicroBatch


def decode_batches(lengths: Sequence[Sequence[int]], queries: int, number: int = 0, rows: int = 0) -> list[MicroBatch]:
    """By group: its requests with so many query tokens each, padded to the fullest group, or to so many `rows` of
    requests where they are more, as a captured graph does."""
    padded = queries * max(rows, *map(len, lengths))
    return [MicroBatch(number, tuple((queries, length) for length in held), padded=padded) for held in lengths]


def prompt_batches(prompts: Sequence[tuple[int, int]], parts: int) -> list[MicroBatch]:
    """Whole prompts, (new tokens, tokens cached before them), in so many micro-batches of about as many new tokens."""
    return [MicroBatch(number, (), some, len(some)) for number, some in enumerate(deal_prompts(prompts, parts))]


def deal_prompts(prompts: Sequence[tuple[int, int]], hands: int) -> list[tuple[tuple[int, int], ...]]:
    """As `deal`, by new tokens."""
    return [tuple(prompts[place] for place in hand)
            for hand in pack([new for new, _ in prompts], hands, len(prompts))]


def prefill_passes(lengths: Sequence[Sequence[int]], prefix: int, budget: int) -> list[list[MicroBatch]]:
    """[pass][group]: its prompts in passes of at most `budget` new tokens (0: all in one), each with `prefix` cached
    tokens before it; all groups take part in every pass."""
    chunks = [list(_chunks(one, prefix, budget)) for one in lengths]
    idle = MicroBatch(padded=1)  # takes part in exchanges with a token that counts for nothing
    return [[one[number] if number < len(one) else idle for one in chunks] for number in range(max(map(len, chunks)))]


def _chunks(lengths: Sequence[int], prefix: int, budget: int) -> Iterator[MicroBatch]:
    """The passes of one group, in order."""
    pieces: list[tuple[int, int]] = []
    ends, room = 0, budget
    for length in lengths:
        done = 0
        while done < length:
            piece = min(length - done, room) if budget else length
            pieces.append((piece, prefix + done))
            done, room = done + piece, room - piece
            ends += done == length
            if budget and not room:
                yield MicroBatch(0, (), tuple(pieces), ends)
                pieces, ends, room = [], 0, budget
    if pieces:
        yield MicroBatch(0, (), tuple(pieces), ends)
