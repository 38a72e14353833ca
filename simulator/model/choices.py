"""Which experts the tokens of one request choose: few tokens, every one of them with experts of its own choice.

With a handful of tokens it matters that a token's experts differ from each other, and how many experts are touched at
all. A token draws its experts without replacement (Gumbel's trick: the largest of log popularity + noise). Popularities
are a power law, in one of two ways:

* chosen_rows: the expert at place i of a random order has a popularity proportional to (i + 1) ** -skew;
* power_law_rows: popularities have the density x ** -skew over one decade. That is what the tables of routed experts of
  ai-dynamo/aiconfigurator (at 095f58a, B200, `power_law_1.01`) ask for: their BF16 rows of 4, 8 and 16 tokens, read
  against the balanced ones, touch 29, 61 and 100 of 256 experts, and 6, 11 and 17 on the fullest of 8 groups; drawn are
  30, 56 and 94, and 6, 10 and 16. Any range up to 16 to 1 does as well; ranks ** -1.01 would touch 25, 42 and 68.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isclose, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator

LEAST, MOST = 1.0, 10.0  # popularities of power_law_rows, before scaling


@lru_cache(maxsize=512)
def chosen_rows(
    tokens: int, experts: int, per_token: int, skew: float, seed: tuple[int, ...], groups: int = 0, kept: int = 0
) -> tuple[int, ...]:
    """Rows of every expert; seed: any whole numbers (run, layer, ...). groups, kept: as of power_law_rows."""
    import numpy as np

    random = np.random.default_rng(seed)
    popularity = -skew * np.log(np.arange(1, experts + 1, dtype=float))
    random.shuffle(popularity)
    return _choose(random, tokens, popularity, per_token, groups, kept)


def power_law_rows(
    tokens: int, experts: int, per_token: int, skew: float, seed: tuple[int, ...], groups: int = 0, kept: int = 0
) -> tuple[int, ...]:
    """Rows of every expert; skew: exponent of the density (0: all popularities between the two ends are as likely).

    groups, kept: a token keeps to so many groups of neighbouring experts, those with the best two (DeepSeek-V3, arXiv
    2412.19437, section 2.1.2); 0: it chooses from all.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    popularity = [log(_quantile(share, skew)) for share in random.random(experts)]
    return _choose(random, tokens, popularity, per_token, groups, kept)


def _choose(
    random: Generator, tokens: int, popularity: Sequence[float], per_token: int, groups: int = 0, kept: int = 0
) -> tuple[int, ...]:
    """Rows of every expert where each token takes `per_token` different ones; popularity: logarithms."""
    import numpy as np

    experts = len(popularity)
    keys = popularity + random.gumbel(size=(tokens, experts))
    if groups:
        if kept * experts < per_token * groups:
            raise ValueError(f"{per_token} experts of a token are more than {kept} of {groups} groups hold")
        grouped = keys.reshape(tokens, groups, -1)
        best = np.partition(grouped, -2, axis=2)[:, :, -2:].sum(axis=2)
        keys = np.where(_largest(best, kept)[:, :, None], grouped, -np.inf).reshape(tokens, experts)
    return tuple(_largest(keys, per_token).sum(axis=0).tolist())


def _largest(keys: np.ndarray, count: int) -> np.ndarray:
    """Which keys are among the largest of their row; no two drawn ones are equal."""
    import numpy as np

    return keys >= np.partition(keys, -count, axis=1)[:, -count, None]


def _quantile(share: float, skew: float) -> float:
    """Of that density: below it lies this share of all experts."""
    if isclose(skew, 1.0):
        return LEAST * (MOST / LEAST) ** share
    low, high = LEAST ** (1.0 - skew), MOST ** (1.0 - skew)
    return float((low + share * (high - low)) ** (1.0 / (1.0 - skew)))


def even_rows(tokens: int, experts: int, per_token: int) -> tuple[int, ...]:
    """Rows of every expert where each is touched before one is touched twice, spread over the whole range."""
    each, more = divmod(tokens * per_token, experts)
    return tuple(each + (place * more // experts != (place + 1) * more // experts) for place in range(experts))


def blocks_of(rows: tuple[int, ...], groups: int) -> list[tuple[int, ...]]:
    """The rows of every block of neighbouring experts, one block per group of ranks."""
    size = len(rows) // groups
    return [rows[group * size : (group + 1) * size] for group in range(groups)]
