"""Expert load: which rows every rank sends to every expert, drawn from a seeded power law.

The expert at place i of a random order has a popularity proportional to (i + 1) ** -skew; per source rank it is drawn
what it sends: with skew 0 ranks still differ by chance. Sampling is multinomial, which stands for top-k without
replacement as long as no expert is chosen by more than a few in ten tokens; where one would be chosen more than once,
it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator import np
from simulator.program.task import SizeTable


@dataclass(frozen=True)
class Drawn:
    """tokens: of each source rank; experts are spread evenly over the same ranks. seed: any whole numbers."""

    tokens: tuple[int, ...]
    experts: int
    per_token: int
    skew: float
    seed: tuple[int, ...]

    @cached_property
    def counts(self) -> np.ndarray:
        """[source rank, expert] rows."""
        random = np.random.default_rng(self.seed)
        popularity = power_law(self.experts, self.skew, random)
        return np.stack([random.multinomial(tokens * self.per_token, popularity) for tokens in self.tokens])

    def sizes(self, row_bytes: int) -> SizeTable:
        """Bytes from every rank to every rank."""
        ranks = len(self.tokens)
        table = self.counts.reshape(ranks, ranks, -1).sum(axis=2) * row_bytes
        return tuple(map(tuple, table.tolist()))


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
