"""Rows that arrive at every place of an expert-parallel group, drawn for the tokens of all its ranks at once.

Popularity is a seeded power law per layer; every micro-batch of an iteration draws its own rows from it. The placement
knows the popularity, as it does in a system that rearranges experts from what it has counted. The shared expert may
have places of its own, behind those of the routed ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from simulator import np
from simulator.model.eplb import Placement, rebalance, spread
from simulator.model.routing import check_skew, power_law
from simulator.model.transformer import Experts

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ExpertLoad:
    """routed, shared: places of each role, the routed ones first; shared 0: that expert is not exchanged with. skew: of
    the power law, None: load is forced even. placement: experts in order, or replicated and packed by popularity (EPLB)
    with `spare` slots of every place beyond those that hold each expert once.
    """

    experts: Experts
    routed: int
    shared: int = 0
    placement: Literal["in_order", "eplb"] = "eplb"
    skew: float | None = None
    seed: int = 0
    spare: int = 0

    @property
    def slots(self) -> int:
        """Expert slots of a routed place."""
        return -(-self.experts.routed // self.routed)

    def rows(self, tokens: int, layer: int, number: int, group: int) -> Rows:
        """Rows of every slot of every place, for so many tokens of a micro-batch of one expert-parallel group."""
        chosen = tokens if self.experts.shared_intermediate else 0
        behind = ((-(-chosen // self.shared),),) * self.shared if self.shared else ()
        if self.skew is None:
            each = -(-tokens * self.experts.per_token // (self.routed * self.slots))
            return ((each,) * self.slots,) * self.routed + behind
        return _drawn_rows(self, tokens, layer, number, group) + behind


@lru_cache(maxsize=1024)
def _drawn_rows(load: ExpertLoad, tokens: int, layer: int, number: int, group: int) -> Rows:
    random = np.random.default_rng((load.seed, 3, layer, number, group))
    arriving = random.multinomial(tokens * load.experts.per_token, _popularity(load, layer))
    return tuple(_placed(load, layer).rows(arriving.tolist()))


@cache
def _placed(load: ExpertLoad, layer: int) -> Placement:
    if load.placement == "in_order":
        return spread(load.experts.routed, load.routed)
    return rebalance(_popularity(load, layer).tolist(), load.routed, spare=load.spare)


@cache
def _popularity(load: ExpertLoad, layer: int) -> np.ndarray:
    """Of every expert in one layer; they add up to 1. ValueError: `check_skew`."""
    skew = load.skew or 0.0
    check_skew(load.experts.routed, load.experts.per_token, skew)
    return power_law(load.experts.routed, skew, np.random.default_rng((load.seed, 4, layer)))
