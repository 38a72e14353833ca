"""What prompts share: one of a few common prefixes, or the turns before of the same conversation."""

from __future__ import annotations

from dataclasses import replace

from simulator import np
from simulator.errors import InputError
from simulator.serving.requests import Requests


def with_common_prefixes(requests: Requests, share: float, prefixes: int, hash_tokens: int,
                         random: np.random.Generator) -> Requests:
    """The same requests, of which each starts with one of so many common prefixes, drawn evenly.

    share: of each prompt, the tokens that are the start of its prefix (two prompts of one prefix share the shorter
    start); rounded down to whole blocks of `hash_tokens`, because a block that is common in part is another block.
    """
    if not 0 <= share <= 1:
        raise InputError(f"share is {share}; it must be from 0 to 1")
    if prefixes < 1:
        raise InputError(f"prefixes is {prefixes}; there must be at least 1 common prefix")
    if len(requests.hashes):
        raise InputError("the requests have hashes of their own; common prefixes are for prompts that share nothing")
    blocks = _blocks(requests.input_tokens, hash_tokens)
    common = (requests.input_tokens * share).astype(np.int64) // hash_tokens
    start, prompt, depth = _places(blocks)
    longest = common.max()
    shared = random.integers(prefixes, size=len(requests))[prompt] * longest + depth
    hashes = np.where(depth < common[prompt], shared, prefixes * longest + np.arange(len(prompt)))
    return replace(requests, hashes=hashes, hash_start=start, hash_tokens=hash_tokens)


def conversations(start_s: np.Array, turns: np.Array, new_tokens: np.Array, output_tokens: np.Array, think_s: np.Array,
                  hash_tokens: int) -> Requests:
    """Conversations as requests: the prompt of a turn is all prompts and outputs of the turns before, then new tokens.

    start_s, turns: of each conversation; new_tokens, output_tokens, think_s: of each turn, one conversation after
    the other (the think_s before a first turn is not used). A turn waits for the end of the one before and then for
    think_s; its `arrival_s` is the earliest that can be, as if answers took no time.
    """
    turns, new_tokens, output_tokens = (np.asarray(of, dtype=np.int64) for of in (turns, new_tokens, output_tokens))
    if (turns < 1).any() or {len(new_tokens), len(output_tokens), len(think_s)} != {turns.sum()}:
        raise InputError(f"a conversation must have at least 1 turn, and each of the {turns.sum()} turns its lengths")
    first = np.cumsum(turns) - turns
    conversation = np.repeat(np.arange(len(turns)), turns)
    turn = np.arange(len(conversation))
    is_first = turn == first[conversation]
    pause_s = np.where(is_first, 0.0, think_s)
    arrival_s = np.asarray(start_s)[conversation] + _sum_so_far(pause_s, first, conversation)
    input_tokens = _sum_so_far(new_tokens + output_tokens, first, conversation) - output_tokens
    order = np.argsort(arrival_s, kind="stable")  # a turn stays after the one before, where neither takes time
    place = np.empty_like(order)
    place[order] = turn
    after = np.where(is_first, -1, place[turn - 1])[order]
    hashes, start = _history_hashes(input_tokens[order], conversation[order], hash_tokens)
    return Requests(arrival_s[order], input_tokens[order], output_tokens[order], hashes, start, hash_tokens, after,
                    pause_s[order], np.zeros(len(order)))  # fmt: skip


def _history_hashes(input_tokens: np.Array, conversation: np.Array, hash_tokens: int) -> tuple[np.Array, np.Array]:
    """A whole block of a conversation has one number in all its turns; the last block of a prompt, if it is not whole,
    is its own."""
    start, prompt, depth = _places(_blocks(input_tokens, hash_tokens))
    whole = depth < input_tokens[prompt] // hash_tokens
    deepest = depth.max() + 1
    numbers = (conversation.max() + 1) * deepest
    return np.where(whole, conversation[prompt] * deepest + depth, numbers + prompt), start


def _blocks(input_tokens: np.Array, hash_tokens: int) -> np.Array:
    if hash_tokens < 1:
        raise InputError(f"hash_tokens is {hash_tokens}; it must be at least 1")
    return -(-input_tokens // hash_tokens)


def _places(blocks: np.Array) -> tuple[np.Array, np.Array, np.Array]:
    """Where the blocks of every prompt start; of every block its prompt and its depth in it."""
    start = np.concatenate(([0], np.cumsum(blocks)))
    prompt = np.repeat(np.arange(len(blocks)), blocks)
    return start, prompt, np.arange(start[-1]) - start[prompt]


def _sum_so_far(values: np.Array, first: np.Array, conversation: np.Array) -> np.Array:
    """Of every turn the sum over it and the turns before it in its conversation."""
    total = np.cumsum(values)
    return total - (total - values)[first][conversation]
