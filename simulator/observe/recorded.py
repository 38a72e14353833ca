"""A recorded run as it is read: its timeline, and what else is to be known of it, from a run or from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simulator.observe.columns import Columns
from simulator.observe.critical import CriticalPath, critical_path
from simulator.observe.metrics import Metrics, measure


@dataclass(frozen=True)
class Peaks:
    """What a rank has at most. hbm, l2: bytes/s; cores: of each pool; links: bytes/s, one way, out of a die, by level
    of the fabric from the inside out (0: no links of that level begin at dies); flops: FLOP/s by pool, then by data
    type."""

    hbm_bytes_per_s: float
    l2_bytes_per_s: float
    cores: Mapping[str, int]
    links_bytes_per_s: Mapping[str, float]
    flops: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Memory:
    """What the fullest rank keeps. items: (category, name, bytes); usable: what driver and runtime leave."""

    capacity_bytes: float
    usable_bytes: float
    items: Sequence[tuple[str, str, float]]

    @property
    def used_bytes(self) -> float:
        """What all items need."""
        return sum(size for _, _, size in self.items)


@dataclass(frozen=True)
class Recorded:
    """A run. about: how it was run: scenario, title, version, seed, machine, model, cards, ranks, classes (how many
    ranks were simulated), leaders (for each rank the one that stands for it), mode, changes (settings by key) and
    settings (all of them). metrics: by name, in the unit
    that ends the name. expected: published values beside simulated ones. parameters: that bounded the critical path:
    name, value, unit, kind, source, share of the path, saves (what twice as good a number would save, as a share).
    """

    about: Mapping[str, Any]
    columns: Columns
    metrics: Mapping[str, float]
    expected: Sequence[Mapping[str, Any]]
    parameters: Sequence[Mapping[str, Any]]
    memory: Memory
    peaks: Peaks

    @property
    def name(self) -> str:
        """Of the scenario."""
        return str(self.about["scenario"])

    def leader(self, rank: int) -> int:
        """The rank that was simulated for a rank; ValueError if there is none of that number."""
        if not 0 <= rank < len(self.leaders):
            raise ValueError(f"no rank {rank}: {self.name} has ranks 0 to {len(self.leaders) - 1}")
        return self.leaders[rank]

    @cached_property
    def leaders(self) -> list[int]:
        """For each rank the one that was simulated for it."""
        return [int(one) for one in str(self.about["leaders"]).split()]

    @cached_property
    def measured(self) -> Metrics:
        """Where the time went."""
        return measure(self.columns)

    @cached_property
    def critical(self) -> CriticalPath:
        """The chain of tasks and waits that made the run as long as it is."""
        return critical_path(self.columns)
