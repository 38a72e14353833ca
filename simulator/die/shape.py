"""A kernel on so many units of a chip: its latency, and the stages in which it moves bytes through L2 and HBM.

A shape says nothing about a die, so that all dies of a chip share it. Where its bytes meet others, the die makes flows
of its stages (see `onchip`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from simulator.die.kernels import Cost
from simulator.physics.flows import LIMIT, Bound, Capacity, Flow, Network
from simulator.physics.two import Ask
from simulator.units import to_ps


@dataclass(slots=True, eq=False)
class Stage:
    """After `wait_ps` a flow like `flow`, which is never started itself; alone it takes `length_ps`.

    ask: what it asks of HBM and L2 (see `physics.two`), its limit being that of the ports that it crosses too, `own` of
    which bounds it. hbm_rate, l2_rate: the bytes/s that it moves there alone, and so the most that it ever does.
    ports: what it crosses beside, and bytes/s likewise; a flow that has none is a pattern on the capacities of
    `Shapes`, for any die.
    """

    wait_ps: int
    flow: Flow
    length_ps: int
    ask: Ask
    own: Bound
    hbm_rate: float
    l2_rate: float
    ports: tuple[tuple[Capacity, float], ...]

    def of_size(self, size_bytes: float) -> Stage:
        """One like this that moves so many bytes."""
        flow = self.flow.again()
        flow.size_bytes = flow.left_bytes = size_bytes
        length_ps = to_ps(flow.solo_s())
        return Stage(self.wait_ps, flow, length_ps, self.ask, self.own, self.hbm_rate, self.l2_rate, self.ports)


def stage_of(wait_ps: int, flow: Flow, hbm: Capacity, l2: Capacity) -> Stage:
    """A stage that moves bytes like this flow, on a die of which these are the capacities."""
    Network.check(flow)
    pulls = dict(flow.pulls)
    on_hbm, on_l2 = pulls.pop(hbm, 0.0), pulls.pop(l2, 0.0)
    limit = flow.limit_bytes_per_s
    own: Bound = LIMIT
    for port, pull in pulls.items():
        if port.rate_bytes_per_s / pull <= limit:
            limit, own = port.rate_bytes_per_s / pull, port
    rate = flow.solo_rate
    ports = tuple((port, pull * rate) for port, pull in pulls.items())
    return Stage(wait_ps, flow, to_ps(flow.solo_s()), (on_hbm, on_l2, limit, flow.weight), own,
                 on_hbm and on_hbm * rate, on_l2 and on_l2 * rate, ports)  # fmt: skip


@dataclass(slots=True, eq=False)
class Shape:
    """A kernel on so many units, its weights in L2 or not.

    alone_ps: from its start to its end, undisturbed, and alone_bound what limits it then. solo_ps: the same for the
    timeline, rounded once. limit_name, latency_name: what to call its limit and its latency. hbm_rate, l2_rate: the
    most bytes/s that any of its stages moves.
    """

    stages: tuple[Stage, ...]
    latency_ps: int
    alone_ps: int
    solo_ps: int
    limit_name: str
    latency_name: str
    alone_bound: str = field(init=False)
    hbm_rate: float = field(init=False)
    l2_rate: float = field(init=False)

    def __post_init__(self) -> None:
        last = self.stages[-1] if self.stages else None
        self.alone_bound = self._word(last.flow.solo_bound, last.length_ps) if last else self.latency_name
        self.hbm_rate = max([stage.hbm_rate for stage in self.stages], default=0.0)
        self.l2_rate = max([stage.l2_rate for stage in self.stages], default=0.0)

    def bound_by(self, flow: Flow) -> str:
        """In words, what limited a kernel longest whose last flow was this."""
        return self._word(flow.bound_by(), max(flow.bound_ps.values(), default=0))

    def _word(self, bound: Bound, longest_ps: int) -> str:
        if self.latency_ps > longest_ps:
            return self.latency_name
        return bound.name.partition(":")[0] if isinstance(bound, Capacity) else self.limit_name


class Shapes(dict[tuple[Cost, int, float], Shape]):
    """All shapes of kernels on one kind of chip: [cost, units, bytes of its weights that lie in L2].

    hbm, l2: what the chip has of them, in bytes/s.
    """

    def __init__(self, hbm: float, l2: float) -> None:
        super().__init__()
        self.hbm, self.l2 = Capacity("HBM", hbm), Capacity("L2", l2)

    def __missing__(self, key: tuple[Cost, int, float]) -> Shape:
        self[key] = shape = self._make(*key)
        return shape

    def _make(self, cost: Cost, units: int, warm: float) -> Shape:
        compute_s = cost.compute_s(units)
        latency_ps = to_ps(cost.latency_s)
        names = cost.limit_name, cost.latency_name
        if not cost.onchip_bytes:
            solo_ps = to_ps(cost.latency_s + compute_s)
            return Shape((), latency_ps, latency_ps + to_ps(compute_s), solo_ps, *names)
        hbm = (cost.hbm_bytes - min(warm, cost.weight_bytes)) / cost.onchip_bytes
        limit = cost.limit_bytes_per_s(units, hbm)
        memory = min(self.l2.rate_bytes_per_s, self.hbm.rate_bytes_per_s / hbm if hbm > 0 else inf)
        share, size = cost.unoverlapped, cost.onchip_bytes
        solo_s = cost.latency_s + size * (1.0 - share) / min(limit, memory)
        if share:  # first bytes, then compute, one after the other; then the rest of both side by side
            ports = cost.memory_limit_bytes_per_s(units, hbm)
            solo_s += share * (size / min(ports, memory) + compute_s)
            stages: tuple[Stage, ...] = (
                self._stage(latency_ps, size * share, hbm, ports),
                self._stage(to_ps(compute_s * share), size * (1.0 - share), hbm, limit),
            )
        else:
            stages = (self._stage(latency_ps, size, hbm, limit),)
        alone_ps = sum(stage.wait_ps + stage.length_ps for stage in stages)
        return Shape(stages, latency_ps, alone_ps, to_ps(solo_s), *names)

    def _stage(self, wait_ps: int, size_bytes: float, hbm: float, limit: float) -> Stage:
        loads = ((self.l2, 1.0), (self.hbm, hbm)) if hbm > 0 else ((self.l2, 1.0),)
        return stage_of(wait_ps, Flow(size_bytes, loads, limit), self.hbm, self.l2)
