"""Which experts the tokens of one request choose: few tokens, every one of them with experts of its own choice.

With a handful of tokens it matters that a token's experts differ from each other, and how many experts are touched at
all. The expert at place i of a random order has a popularity proportional to (i + 1) ** -skew; a token draws its
experts without replacement (Gumbel's trick: the largest of log popularity + noise).
"""

from __future__ import annotations


def chosen_rows(tokens: int, experts: int, per_token: int, skew: float, seed: tuple[int, ...]) -> tuple[int, ...]:
    """Rows of every expert; seed: any whole numbers (run, layer, ...)."""
    import numpy as np

    random = np.random.default_rng(seed)
    popularity = -skew * np.log(np.arange(1, experts + 1, dtype=float))
    random.shuffle(popularity)
    keys = popularity + random.gumbel(size=(tokens, experts))
    chosen = np.argpartition(-keys, per_token - 1, axis=1)[:, :per_token]
    return tuple(int(count) for count in np.bincount(chosen.ravel(), minlength=experts))


def even_rows(tokens: int, experts: int, per_token: int) -> tuple[int, ...]:
    """Rows of every expert where each is touched before one is touched twice, spread over the whole range."""
    each, more = divmod(tokens * per_token, experts)
    return tuple(each + (place * more // experts != (place + 1) * more // experts) for place in range(experts))


def blocks_of(rows: tuple[int, ...], groups: int) -> list[tuple[int, ...]]:
    """The rows of every block of neighbouring experts, one block per group of ranks."""
    size = len(rows) // groups
    return [rows[group * size : (group + 1) * size] for group in range(groups)]
