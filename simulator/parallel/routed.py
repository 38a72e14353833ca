"""Which rows go to which experts of which rank: even or drawn, with redundant slots; every rank finds the same.

Up to `SAMPLE` tokens draw their experts one by one without replacement (`choices`), so that as many experts are touched
as in truth; of more tokens every source draws how many rows go to each expert (multinomial), or, where there is one
source alone, `ENOUGH` of them stand for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

from simulator import np
from simulator.model.choices import blocks_of, chosen_by_source, even_rows
from simulator.model.eplb import Placement, rebalance
from simulator.model.expert_load import ExpertLoad
from simulator.model.expert_state import ExpertState
from simulator.model.routing import Drawn, check_skew, power_law
from simulator.model.transformer import Experts
from simulator.program.task import SizeTable

SAMPLE = 4096
ENOUGH = 2048  # of more tokens of one source, chance moves no expert's share by much

Draw: TypeAlias = "Callable[[Routed], np.ndarray]"


@dataclass(frozen=True)
class Routing:
    """skew: of a power law that experts are drawn from, None: even. seed: of the draws. places: ranks, or groups of
    ranks, with whole routed experts. redundant: slots of each place beyond those that hold every expert once. block: of
    experts, whose tokens draw for themselves. draw: how [source, expert] rows are drawn with a skew (None: as above).
    shared: places behind them with the shared expert, which every token chooses: they get tokens evenly. state: what
    experts are asked for and where they are (None: popularity is drawn, and experts are placed for it).
    """

    skew: float | None
    seed: int
    places: int
    redundant: int = 0
    block: int = 0
    draw: Draw | None = None
    shared: int = 0
    state: ExpertState | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """Where its draws begin."""
        return (self.seed, self.block) if self.block else (self.seed,)


@dataclass(frozen=True)
class Routed:
    """The tokens of every source, routed in one layer and micro-batch."""

    experts: Experts
    tokens: tuple[int, ...]
    routing: Routing
    layer: int
    number: int

    @property
    def even(self) -> bool:
        """Whether all places get the same rows, and all sources send the same."""
        return self.routing.skew is None and len(set(self.tokens)) == 1

    @cached_property
    def counts(self) -> np.ndarray:
        """[source, expert] rows; where routing is even, of all sources together: one row."""
        e, skew = self.experts, self.routing.skew
        if skew is None:
            return np.array([even_rows(sum(self.tokens), e.routed, e.per_token)])
        if self.routing.draw is not None:
            check_skew(e.routed, e.per_token, skew)
            return self.routing.draw(self)
        seed, total = (*self.routing.seeds, self.layer), sum(self.tokens)
        if total <= SAMPLE or len(self.tokens) == 1:
            sample = self.tokens if len(self.tokens) > 1 else (min(total, ENOUGH),)
            # those of a later micro-batch are further tokens with the same popularity
            tokens, limits = (self.number * sum(sample), *sample), (e.groups, e.groups_per_token)
            asked = self.routing.state.popularity_of(self.layer) if self.routing.state else ()
            drawn = chosen_by_source(tokens, e.routed, e.per_token, skew, seed, *limits, asked)[1:]
            return np.rint(drawn * total / sum(sample)).astype(int) if sample != self.tokens else drawn
        check_skew(e.routed, e.per_token, skew)
        random = np.random.default_rng((*seed, self.number + 1))
        popularity = _popularity(self.experts, self.routing, self.layer)
        return np.stack([random.multinomial(own * e.per_token, popularity) for own in self.tokens])

    @cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Rows for every expert slot of every place."""
        arriving, shared = tuple(self.counts.sum(axis=0).tolist()), self.routing.shared
        behind = ((-(-sum(self.tokens) // shared),),) * shared if shared else ()
        if self._in_order:
            return (*blocks_of(arriving, self.routing.places), *behind)
        if self.routing.skew is None:
            return (*blocks_of(even_rows(sum(self.tokens), self._slots, self.experts.per_token), self.routing.places),
                    *behind)  # fmt: skip
        return (*_placement(self.experts, self.routing, self.layer).rows(arriving), *behind)

    @property
    def _in_order(self) -> bool:
        """Whether every expert lies on one place, as many on each."""
        return not (self.routing.redundant or self.experts.routed % self.routing.places or self.routing.state)

    @property
    def _slots(self) -> int:
        """Of all places."""
        return self.routing.places * (-(-self.experts.routed // self.routing.places) + self.routing.redundant)

    def sizes(self, row_bytes: float) -> SizeTable:
        """Bytes that every source sends to every place."""
        places, shared = self.routing.places, self.routing.shared
        behind = tuple((round(own * row_bytes / shared),) * shared if shared else () for own in self.tokens)
        if self.routing.skew is None:
            return tuple((-(-own * self.experts.per_token // places) * round(row_bytes),) * places + more
                         for own, more in zip(self.tokens, behind, strict=True))  # fmt: skip
        table = np.rint(self.counts @ self.shares * row_bytes).astype(int)
        return tuple((*row, *more) for row, more in zip(table.tolist(), behind, strict=True))

    @cached_property
    def shares(self) -> np.ndarray:
        """[expert, place]: how much of an expert's rows goes to a place."""
        shares = np.zeros((self.experts.routed, self.routing.places))
        if not self._in_order:
            placement = _placement(self.experts, self.routing, self.layer)
            for place, slots in enumerate(placement.slots):
                for expert in slots:
                    shares[expert, place] += 1.0 / placement.copies[expert]
            return shares
        for place, block in enumerate(np.split(np.arange(self.experts.routed), self.routing.places)):
            shares[block, place] = 1.0
        return shares


def drawn_by_step(routed: Routed, first: int = 0) -> np.ndarray:
    """[source, expert] rows, where every layer and micro-batch draws popularities of its own, as steps of a benchmark
    do; first: number of the first micro-batch."""
    experts, routing = routed.experts, routed.routing
    assert routing.skew is not None
    seed = (routing.seed, routed.layer, routed.number + first)
    return Drawn(routed.tokens, experts.routed, experts.per_token, routing.skew, seed).counts


@lru_cache(maxsize=1024)
def routed(experts: Experts, tokens: tuple[int, ...], routing: Routing, layer: int, number: int) -> Routed:
    """The same object for all who take part in one exchange."""
    return Routed(experts, tokens, routing, layer if routing.skew is not None else 0,
                  number if routing.skew is not None else 0)  # fmt: skip


@dataclass(frozen=True)
class Together:
    """The tokens of all sources, routed by one draw of what arrives in all; every source sends an equal share of it.

    A draw per source adds up to the same; this is as many times quicker as there are sources.
    """

    load: ExpertLoad
    tokens: tuple[int, ...]
    layer: int
    number: int
    block: int = 0

    @property
    def even(self) -> bool:
        """Whether all places get the same rows, and all sources send the same."""
        return self.load.skew is None and len(set(self.tokens)) == 1

    @cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Rows for every expert slot of every place."""
        return self.load.rows(sum(self.tokens), self.layer, self.number, self.block)

    def sizes(self, row_bytes: float) -> SizeTable:
        """Bytes that every source sends to every place."""
        sources = len(self.tokens)
        return (tuple(sum(rows) // sources * round(row_bytes) for rows in self.rows),) * sources


together = lru_cache(maxsize=1024)(Together)  # the same object for all who take part in one exchange


@lru_cache(maxsize=256)
def _placement(experts: Experts, routing: Routing, layer: int) -> Placement:
    """Where experts live, with redundant copies of the popular ones (EPLB) if nothing else is said."""
    if routing.state is not None:
        return routing.state.placement_of(layer)
    return rebalance(_popularity(experts, routing, layer).tolist(), routing.places, routing.redundant)


def _popularity(experts: Experts, routing: Routing, layer: int) -> np.ndarray:
    """Of every expert of a layer, as `chosen_by_source` finds it with this seed."""
    if routing.skew is None:
        return np.full(experts.routed, 1.0 / experts.routed)
    if routing.state is not None:
        return np.array(routing.state.popularity_of(layer))
    return power_law(experts.routed, routing.skew, np.random.default_rng((*routing.seeds, layer)))
