"""Which experts the tokens of one request choose: few tokens, every one of them with experts of its own choice.

With a handful of tokens it matters that a token's experts differ from each other, and how many experts are touched at
all. A token draws its experts without replacement: each comes after an exponential time of its own, at a rate that is
its popularity, and the token takes those that come first. Popularities are a power law, in one of two ways:

* chosen_rows: the expert at place i of a random order has a popularity proportional to (i + 1) ** -skew;
* power_law_rows: popularities have the density x ** -skew over one decade. That is what the tables of routed experts of
  ai-dynamo/aiconfigurator (at 095f58a, B200, `power_law_1.01`) ask for: their BF16 rows of 4, 8 and 16 tokens, read
  against the balanced ones, touch 29, 61 and 100 of 256 experts, and 6, 11 and 17 on the fullest of 8 groups; drawn are
  30, 56 and 94, and 6, 10 and 16. Any range up to 16 to 1 does as well; ranks ** -1.01 would touch 25, 42 and 68.
"""

from __future__ import annotations

from functools import lru_cache
from math import isclose

from simulator import np

LEAST, MOST = 1.0, 10.0  # popularities of power_law_rows, before scaling
AT_ONCE = 256  # tokens whose draws are held side by side
AT_LEAST = 64  # tokens that are drawn for, where fewer are asked for


@lru_cache(maxsize=512)
def chosen_rows(tokens: int, experts: int, per_token: int, skew: float, seed: tuple[int, ...], groups: int = 0,
                kept: int = 0) -> tuple[int, ...]:
    """Rows of every expert; seed: any whole numbers (run, layer, ...). groups, kept: as of power_law_rows.

    The first of many tokens choose what they would choose alone, so each is drawn once.
    """
    return _rows(_chosen(tokens, experts, per_token, skew, seed, groups, kept))


def chosen_by_source(tokens: tuple[int, ...], experts: int, per_token: int, skew: float, seed: tuple[int, ...],
                     groups: int = 0, kept: int = 0, popularity: tuple[float, ...] = ()) -> np.ndarray:
    """[source, expert] rows, where each source has so many tokens, one after the other; else as chosen_rows.
    popularity: of every expert (none: the power law)."""
    chosen = _chosen(sum(tokens), experts, per_token, skew, seed, groups, kept, popularity)
    return np.stack([part.sum(axis=0) for part in np.split(chosen, np.cumsum(tokens)[:-1])])


def _chosen(tokens: int, experts: int, per_token: int, skew: float, seed: tuple[int, ...], groups: int,
            kept: int, popularity: tuple[float, ...] = ()) -> np.ndarray:
    """[token, expert]: whether it chooses it."""
    drawn = _drawn(experts, per_token, skew, seed, groups, kept, popularity)
    if not drawn or len(drawn[0]) < tokens:
        random = np.random.default_rng(seed)
        times = np.arange(1, experts + 1, dtype=float) ** skew
        random.shuffle(times)
        times = 1.0 / np.array(popularity) if popularity else times
        most = 1 << max(tokens - 1, AT_LEAST - 1).bit_length()  # a little more is asked for soon
        drawn[:] = [np.packbits(_choices(random, most, times, per_token, groups, kept), axis=1)]
    return np.unpackbits(drawn[0][:tokens], axis=1, count=experts)


@lru_cache(maxsize=512)
def _drawn(*_: object) -> list[np.ndarray]:
    """The choices of the most tokens that chosen_rows has drawn in one way, a bit for every expert: one array, or none
    yet."""
    return []


def power_law_rows(tokens: int, experts: int, per_token: int, skew: float, seed: tuple[int, ...], groups: int = 0,
                   kept: int = 0) -> tuple[int, ...]:
    """Rows of every expert; skew: exponent of the density (0: all popularities between the two ends are as likely).

    groups, kept: a token keeps to so many groups of neighbouring experts, those with the best two (DeepSeek-V3, arXiv
    2412.19437, section 2.1.2): the least product of their times; 0: it chooses from all.
    """
    random = np.random.default_rng(seed)
    times = np.array([1.0 / _quantile(share, skew) for share in random.random(experts)])
    return _rows(_choices(random, tokens, times, per_token, groups, kept))


def _rows(chosen: np.ndarray) -> tuple[int, ...]:
    return tuple(chosen.sum(axis=0).tolist())


def _choices(random: np.random.Generator, tokens: int, times: np.ndarray, per_token: int, groups: int,
             kept: int) -> np.ndarray:
    """Which `per_token` experts each token takes; times: when each of them comes on average, 1 / popularity."""
    if groups and kept * len(times) < per_token * groups:
        raise ValueError(f"{per_token} experts of a token are more than {kept} of {groups} groups hold")
    chosen = [np.zeros((0, len(times)), dtype=bool)]
    for first in range(0, tokens, AT_ONCE):
        some = min(AT_ONCE, tokens - first)
        coming = np.subtract(1.0, random.random((some, len(times))))
        np.log(coming, out=coming)
        coming *= -times
        if groups:
            grouped = coming.reshape(some, groups, -1)
            best = np.partition(grouped, 1, axis=2)[:, :, :2].prod(axis=2)
            grouped[~_first(best, kept)] = np.inf
        chosen.append(_first(coming, per_token))
    return np.concatenate(chosen)


def _first(times: np.ndarray, count: int) -> np.ndarray:
    """Which are among the first of their row; no two drawn ones are equal."""
    return times <= np.partition(times, count - 1, axis=1)[:, count - 1, None]


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
