"""Rows that arrive at every die in decode, where shared experts have dies of their own and experts may be replicated.

Popularity is a seeded power law per layer; every micro-batch of an iteration draws its own rows from it. The placement
knows the popularity, as it does in a system that rearranges experts from what it has counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol

from simulator import np
from simulator.model.eplb import Placement, rebalance, spread
from simulator.model.routing import check_skew, power_law
from simulator.spec.model import ModelShapes

Rows = tuple[tuple[int, ...], ...]


class Dies(Protocol):
    """What a layout has to say."""

    @property
    def expert_parallel(self) -> int: ...
    @property
    def shared(self) -> int: ...
    @property
    def placement(self) -> str: ...


@dataclass(frozen=True)
class ExpertLoad:
    """routed, shared: dies of each role in an expert-parallel group, the routed ones first. skew: of the power law."""

    experts: int
    per_token: int
    shared_experts: int
    routed: int
    shared: int
    placement: str
    skew: float
    seed: int
    spare: int = 0

    @classmethod
    def of(cls, s: ModelShapes, dies: Dies, skew: float | None, seed: int) -> ExpertLoad:
        """The load of a model on a layout; ValueError: no die is left for routed experts."""
        routed = dies.expert_parallel - dies.shared
        if routed < 1:
            raise ValueError(f"{dies.shared} of {dies.expert_parallel} dies hold the shared expert: none are left")
        return cls(s.routed_experts, s.experts_per_token, s.shared_experts, routed, dies.shared, dies.placement,
                   skew or 0.0, seed)  # fmt: skip

    @property
    def slots(self) -> int:
        """Expert slots of a routed die."""
        return -(-self.experts // self.routed)

    def shared_rows(self, tokens: int) -> int:
        """Rows of a shared die: tokens of all dies, evenly."""
        return -(-tokens * self.shared_experts // self.shared)

    def even_rows(self, tokens: int) -> tuple[int, ...]:
        """Rows of every slot of a routed die when all dies get the same."""
        return (-(-tokens * self.per_token // (self.routed * self.slots)),) * self.slots

    def drawn_rows(self, tokens: int, layer: int, micro_batch: int, group: int) -> Rows:
        """Rows of every slot of every routed die, drawn for one micro-batch of one expert-parallel group."""
        return _drawn_rows(self, tokens, layer, micro_batch, group)


@lru_cache(maxsize=1024)
def _drawn_rows(load: ExpertLoad, tokens: int, layer: int, micro_batch: int, group: int) -> Rows:
    random = np.random.default_rng((load.seed, 3, layer, micro_batch, group))
    arriving = random.multinomial(tokens * load.per_token, _popularity(load, layer))
    return tuple(_placed(load, layer).rows(arriving.tolist()))


@cache
def _placed(load: ExpertLoad, layer: int) -> Placement:
    if load.placement == "in_order":
        return spread(load.experts, load.routed)
    return rebalance(_popularity(load, layer).tolist(), load.routed, spare=load.spare)


@cache
def _popularity(load: ExpertLoad, layer: int) -> np.ndarray:
    """Of every expert in one layer; they add up to 1. ValueError: `check_skew`."""
    check_skew(load.experts, load.per_token, load.skew)
    return power_law(load.experts, load.skew, np.random.default_rng((load.seed, 4, layer)))
