"""A kernel on so many units of a chip: its latency, and the stages in which it moves bytes through L2 and HBM.

A timing says nothing about a die, so that all dies of a chip share it; each die makes flows of its stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from simulator.die.kernels import Cost
from simulator.physics.flows import Capacity, Flow
from simulator.units import to_ps


@dataclass(slots=True, eq=False)
class Stage:
    """After `wait_ps` so many bytes through L2, and `hbm` times as many through HBM; like: a flow of them on no die."""

    wait_ps: int
    size_bytes: float
    hbm: float
    like: Flow


@dataclass(slots=True, eq=False)
class KernelTiming:
    """A kernel on so many units, its weights in L2 or not.

    delay_ps: how long it takes if it moves no bytes. solo_ps: from its start to its end, undisturbed, rounded once.
    limit_name, latency_name: what to call its limit and its latency.
    """

    stages: tuple[Stage, ...]
    latency_ps: int
    delay_ps: int
    solo_ps: int
    limit_name: str
    latency_name: str

    def bound_by(self, flow: Flow) -> str:
        """In words, what limited a kernel longest whose last flow was this."""
        bound, longest_ps = flow.longest_bound()
        if self.latency_ps > longest_ps:
            return self.latency_name
        return bound.name.partition(":")[0] if isinstance(bound, Capacity) else self.limit_name


class KernelTimings(dict[tuple[Cost, int, float], KernelTiming]):
    """The timings of all kernels on one kind of chip: [cost, units, bytes of its weights that lie in L2].

    hbm, l2: what the chip has of them, in bytes/s. speed: of its compute, as a share of what costs say.
    """

    def __init__(self, hbm: float, l2: float, speed: float = 1.0) -> None:
        super().__init__()
        self.speed = speed
        self.hbm, self.l2 = Capacity("HBM", hbm), Capacity("L2", l2)

    def __missing__(self, key: tuple[Cost, int, float]) -> KernelTiming:
        self[key] = timing = self._make(*key)
        return timing

    def _make(self, cost: Cost, units: int, warm: float) -> KernelTiming:
        """At this speed; its solo time is that of the chip's own speed."""
        at_speed = cost if self.speed == 1.0 else replace(cost, tile_s=cost.tile_s / self.speed)
        compute_s = at_speed.compute_s(units)
        latency_ps = to_ps(cost.latency_s)
        if not cost.onchip_bytes:
            solo_ps = to_ps(cost.latency_s + cost.compute_s(units))
            return KernelTiming((), latency_ps, latency_ps + to_ps(compute_s), solo_ps, cost.compute_name,
                                cost.latency_name)  # fmt: skip
        hbm = (cost.hbm_bytes - min(warm, cost.weight_bytes)) / cost.onchip_bytes
        memory = min(self.l2.rate_bytes_per_s, self.hbm.rate_bytes_per_s / hbm if hbm > 0 else inf)
        share, size, limit = cost.unoverlapped, cost.onchip_bytes, at_speed.limit_bytes_per_s(units, hbm)
        solo_s = cost.latency_s + size * (1.0 - share) / min(cost.limit_bytes_per_s(units, hbm), memory)
        if share:  # first bytes, then compute, one after the other; then the rest of both side by side
            core_rate = cost.memory_limit_bytes_per_s(units, hbm)
            solo_s += share * (size / min(core_rate, memory) + cost.compute_s(units))
            stages: tuple[Stage, ...] = (
                self._stage(latency_ps, size * share, hbm, core_rate),
                self._stage(to_ps(compute_s * share), size * (1.0 - share), hbm, limit),
            )
        else:
            stages = (self._stage(latency_ps, size, hbm, limit),)
        return KernelTiming(stages, latency_ps, 0, to_ps(solo_s), at_speed.limited_by(units, hbm), cost.latency_name)

    def _stage(self, wait_ps: int, size_bytes: float, hbm: float, limit: float) -> Stage:
        loads = ((self.l2, 1.0), (self.hbm, hbm)) if hbm > 0 else ((self.l2, 1.0),)
        return Stage(wait_ps, size_bytes, hbm, Flow(size_bytes, loads, limit))
