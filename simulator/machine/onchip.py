"""What kernels move through the L2 and HBM of one die. A kernel that nobody disturbs costs a single event.

A kernel's bytes move in *stages*, one after the other: a wait, then a flow. Alone on its die it takes exactly the time
that each flow takes at its solo rate, so its end is known when it starts: it runs *apart*, off the network. As soon as
another kernel would move bytes in the same time, or any flow begins on this L2 or HBM, those that run apart join the
network where they are (not begun, or begun so long ago), and from then on max-min fairness decides. The result is the
same to the picosecond as with every kernel on the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.machine.kernels import Cost
from simulator.physics.clock import Call
from simulator.physics.flows import Bound, Capacity, Flow, Network
from simulator.units import to_ps

Loads = tuple[tuple[Capacity, float], ...]


@dataclass(slots=True)
class Stage:
    """After `wait_ps` a flow like `flow`, which is never started itself; alone it takes `length_ps`."""

    wait_ps: int
    flow: Flow
    length_ps: int


@dataclass(slots=True)
class Shape:
    """A kernel on so many units of one die, its weights in L2 or not.

    begin_ps: from its start to its first byte; alone_ps: to its end, undisturbed, and alone_bound what limits it then.
    solo_ps: the same for the books, from unrounded seconds.
    """

    cost: Cost
    latency_ps: int
    stages: tuple[Stage, ...]
    begin_ps: int
    alone_ps: int
    alone_bound: str
    solo_ps: int


class OnChip:
    """The memory of one die and the kernels that use it."""

    __slots__ = ("_apart", "_shapes", "_watchers", "env", "hbm", "l2", "network")

    def __init__(self, network: Network, hbm: Capacity, l2: Capacity) -> None:
        self.network, self.hbm, self.l2 = network, hbm, l2
        self.env: Any = network.env
        hbm.guard = l2.guard = self.join
        self._apart: list[Kernel] = []
        self._watchers = network.watchers  # who watches the network wants to see everything there
        self._shapes: dict[tuple[Cost, int, float], Shape] = {}

    def shape(self, cost: Cost, units: int, warm: float) -> Shape:
        """What a kernel does on so many units, with so many bytes of its weights (`warm`) in L2."""
        found = self._shapes.get((cost, units, warm))
        if found is None:
            found = self._shapes[cost, units, warm] = self._shape(cost, units, warm)
        return found

    def run_apart(self, kernel: Kernel, begin_ps: int, end_ps: int) -> bool:
        """Whether nobody moves bytes between these times, as far as is known now; then the kernel may run apart."""
        if self.hbm.flows or self.l2.flows or self._watchers:
            return False
        apart = self._apart
        for other in apart:
            if begin_ps < other.end_ps and other.begin_ps < end_ps:
                self.join()
                return False
        apart.append(kernel)
        return True

    def ended_apart(self, kernel: Kernel) -> None:
        """A kernel has ended without having been disturbed."""
        self._apart.remove(kernel)

    def join(self) -> None:
        """Put all kernels that run apart on the network, where they are."""
        if not self._apart:
            return
        now_ps = self.env._now
        apart, self._apart = self._apart, []
        for kernel in apart:
            if kernel.end_ps > now_ps:
                kernel.join(now_ps)
            else:
                self._apart.append(kernel)  # it ends in this very instant

    def _shape(self, cost: Cost, units: int, warm: float) -> Shape:
        compute_s = cost.compute_s(units)
        latency_ps = to_ps(cost.latency_s)
        if not cost.onchip_bytes:
            alone_ps = latency_ps + to_ps(compute_s)
            solo_ps = to_ps(cost.latency_s + compute_s)
            return Shape(cost, latency_ps, (), alone_ps, alone_ps, cost.latency_name, solo_ps)
        hbm = (cost.hbm_bytes - min(warm, cost.weight_bytes)) / cost.onchip_bytes
        loads: Loads = ((self.l2, 1.0), (self.hbm, hbm)) if hbm > 0 else ((self.l2, 1.0),)
        limit = cost.limit_bytes_per_s(units, hbm)
        memory = min(capacity.rate_bytes_per_s / load for capacity, load in loads)
        share, size = cost.unoverlapped, cost.onchip_bytes
        solo_s = cost.latency_s + size * (1.0 - share) / min(limit, memory)
        if share:  # first bytes, then compute, one after the other; then the rest of both side by side
            ports = cost.memory_limit_bytes_per_s(units, hbm)
            solo_s += share * (size / min(ports, memory) + compute_s)
            stages: tuple[Stage, ...] = (
                self._stage(latency_ps, size * share, loads, ports),
                self._stage(to_ps(compute_s * share), size * (1.0 - share), loads, limit),
            )
        else:
            stages = (self._stage(latency_ps, size, loads, limit),)
        alone_ps = sum(stage.wait_ps + stage.length_ps for stage in stages)
        last = stages[-1]
        bound = bound_by(last.flow.solo_bound, last.length_ps, latency_ps, cost)
        return Shape(cost, latency_ps, stages, latency_ps, alone_ps, bound, to_ps(solo_s))

    def _stage(self, wait_ps: int, size_bytes: float, loads: Loads, limit: float) -> Stage:
        flow = Flow(size_bytes, loads, limit)
        self.network.check(flow)
        return Stage(wait_ps, flow, to_ps(flow.solo_s()))


class Kernel:
    """The kernel at work in one stream; the object is used for one kernel after the other. ended: told what bound it.

    begin_ps, end_ps: its first and last byte, while it runs apart.
    """

    __slots__ = ("_alarm", "_ended", "_onchip", "_stage", "apart", "begin_ps", "end_ps", "shape", "start_ps")

    def __init__(self, onchip: OnChip, ended: Callable[[str], object]) -> None:
        self._onchip, self._ended = onchip, ended
        self._alarm = Call(onchip.env, self._end_apart)
        self._stage = 0
        self.apart = False
        self.start_ps = self.begin_ps = self.end_ps = 0
        self.shape: Shape

    def start(self, shape: Shape, at_ps: int) -> None:
        """Spend the latency and move the bytes, from now or a later time on."""
        onchip = self._onchip
        self.shape = shape
        self.start_ps = at_ps
        self.end_ps = end_ps = at_ps + shape.alone_ps
        self.begin_ps = begin_ps = at_ps + shape.begin_ps
        if not shape.stages or onchip.run_apart(self, begin_ps, end_ps):
            self.apart = True
            self._alarm.at(end_ps)
        else:
            self.apart = False
            self._stage = 0
            first = shape.stages[0]
            onchip.network.start(first.flow.again(), self._moved, at_ps - onchip.env._now + first.wait_ps)

    def join(self, now_ps: int) -> None:
        """Go on as a flow on the network; the alarm that was set has no meaning any more."""
        self.apart = False
        network, at_ps = self._onchip.network, self.start_ps
        for number, stage in enumerate(self.shape.stages):
            begin_ps = at_ps + stage.wait_ps
            at_ps = begin_ps + stage.length_ps
            if now_ps < at_ps:
                self._stage = number
                if begin_ps >= now_ps:
                    network.start(stage.flow.again(), self._moved, begin_ps - now_ps)
                else:
                    network.resume(stage.flow.again(), self._moved, begin_ps)
                return

    def _end_apart(self, _: object) -> None:
        if self.apart and self.end_ps == self._onchip.env._now:
            self.apart = False
            if self.shape.stages:
                self._onchip.ended_apart(self)
            self._ended(self.shape.alone_bound)

    def _moved(self, flow: Flow) -> None:
        self._stage += 1
        shape = self.shape
        if self._stage < len(shape.stages):
            stage = shape.stages[self._stage]
            self._onchip.network.start(stage.flow.again(), self._moved, stage.wait_ps)
            return
        longest_ps = max(flow.bound_ps.values(), default=0)
        self._ended(bound_by(flow.bound_by(), longest_ps, shape.latency_ps, shape.cost))


def bound_by(bound: Bound, longest_ps: int, latency_ps: int, cost: Cost) -> str:
    """In words, what limited a kernel longest."""
    if latency_ps > longest_ps:
        return cost.latency_name
    return bound.name.partition(":")[0] if isinstance(bound, Capacity) else cost.limit_name
