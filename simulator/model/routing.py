"""Expert load: which rows every rank sends to every expert, balanced or drawn from a seeded power law.

`Balanced` is the load of a benchmark that forces even routing: every expert gets the same rows. `Drawn` gives the
expert at place i of a random order a popularity proportional to (i + 1) ** -skew and draws, per source rank, what it
sends: with skew 0 ranks still differ by chance. Sampling is multinomial, which stands for top-k without replacement as
long as no expert is chosen by more than a few in ten tokens; where one would be chosen more than once, it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from simulator import np
from simulator.program.task import SizeTable


@dataclass(frozen=True)
class Balanced:
    """tokens: of each source rank; experts are spread evenly over the same ranks."""

    tokens: tuple[int, ...]
    experts: int
    per_token: int

    drawn = False

    def rows(self, rank: int = 0) -> tuple[int, ...]:
        """Rows that arrive for each local expert: the same on every rank, rounded up."""
        each = -(-sum(self.tokens) * self.per_token // self.experts)
        return (each,) * (self.experts // len(self.tokens))

    def arriving(self, rank: int = 0) -> int:
        """Rows that arrive in all."""
        return sum(self.rows(rank))

    def pair_bytes(self, row_bytes: int) -> int | None:
        """Bytes of every pair of ranks, or None if the ranks differ."""
        if len(set(self.tokens)) > 1:
            return None
        return -(-self.tokens[0] * self.per_token * row_bytes // len(self.tokens))

    def sizes(self, row_bytes: int) -> SizeTable:
        """Bytes from every rank to every rank."""
        ranks = len(self.tokens)
        return tuple((-(-tokens * self.per_token * row_bytes // ranks),) * ranks for tokens in self.tokens)


@dataclass(frozen=True)
class Drawn:
    """As `Balanced`, with popularity skewed by a power law; seed: any whole numbers (run, layer, ...)."""

    tokens: tuple[int, ...]
    experts: int
    per_token: int
    skew: float
    seed: tuple[int, ...]

    drawn = True

    @cached_property
    def counts(self) -> np.ndarray:
        """[source rank, expert] rows."""
        random = np.random.default_rng(self.seed)
        popularity = power_law(self.experts, self.skew, random)
        return np.stack([random.multinomial(tokens * self.per_token, popularity) for tokens in self.tokens])

    @cached_property
    def _arriving(self) -> tuple[int, ...]:
        """Rows for each expert."""
        return tuple(self.counts.sum(axis=0).tolist())

    def rows(self, rank: int) -> tuple[int, ...]:
        """Rows that arrive for each local expert of `rank`."""
        local = self.experts // len(self.tokens)
        return self._arriving[rank * local : (rank + 1) * local]

    def arriving(self, rank: int) -> int:
        """Rows that arrive in all."""
        return sum(self.rows(rank))

    def pair_bytes(self, row_bytes: int) -> None:
        """Pairs differ."""

    def sizes(self, row_bytes: int) -> SizeTable:
        """Bytes from every rank to every rank."""
        ranks = len(self.tokens)
        table = self.counts.reshape(ranks, ranks, -1).sum(axis=2) * row_bytes
        return tuple(map(tuple, table.tolist()))


def routing_of(tokens: Sequence[int], experts: int, per_token: int, skew: float | None,
               seed: tuple[int, ...]) -> Balanced | Drawn:
    """Balanced without a skew, drawn with one (0.0 included); ValueError: experts do not divide, or as `check_skew`."""
    if experts % len(tokens):
        raise ValueError(f"{experts} experts do not divide over {len(tokens)} ranks")
    if skew is None:
        return Balanced(tuple(tokens), experts, per_token)
    check_skew(experts, per_token, skew)
    return _drawn(tuple(tokens), experts, per_token, skew, seed)


_drawn = lru_cache(maxsize=512)(Drawn)  # every rank that takes part asks for the same draw


def power_law(experts: int, skew: float, random: np.random.Generator) -> np.ndarray:
    """The popularity of every expert, in a random order; they add up to 1."""
    popularity = np.arange(1, experts + 1, dtype=float) ** -skew
    random.shuffle(popularity)
    return popularity / popularity.sum()


def check_skew(experts: int, per_token: int, skew: float) -> None:
    """ValueError if a token would choose the most popular expert more than once at this skew."""
    often = per_token / sum((place + 1) ** -skew for place in range(experts))
    if often > 1.0:
        raise ValueError(
            f"routing.skew is {skew}: a token would choose the most popular of {experts} experts {often:.2f} times; "
            f"it must be small enough for once at most ({per_token} of them are chosen)"
        )
