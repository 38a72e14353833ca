"""One in-order queue of an NPU: a callback state machine, not a process.

Its head step starts once the host has issued it, the step before it has ended and every step that it waits for has
ended; then it takes cores, and spends its latency and bytes (a kernel) or meets the other ranks (an exchange).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.die.mover import Mover
from simulator.physics.clock import Call

if TYPE_CHECKING:
    from simulator.die.kernels import Cost
    from simulator.die.npu import Npu


class Stream:
    """Queue number `number` of `npu`. position: index of its head in `order`. running: its head holds it."""

    __slots__ = (
        "_granted", "_in_company", "_issued", "_timer_set", "_units", "index", "kernel", "npu", "order",
        "position", "running",
    )  # fmt: skip

    def __init__(self, npu: Npu, number: int) -> None:
        self.npu, self.order = npu, npu.tape.streams[number]
        self.position = 0
        self.index = -1  # of the step that is running
        self.running = self._timer_set = False
        self.kernel = Mover(npu.onchip, self._ended)
        self._units = 0
        self._in_company = len(npu.tape.streams) > 1
        self._issued = Call(npu.env, self._issue)
        self._granted = self._start  # bound once, for the hot path

    def poke(self) -> None:
        """Start the head if nothing holds it back any more."""
        npu = self.npu
        if self.running or self.position == len(self.order):
            return
        index = self.order[self.position]
        if npu.pending[index]:
            return
        step, opened_ps = npu.steps[index], npu.opened_ps
        if step.segment >= len(opened_ps):
            return
        at_ps, cost = npu.env._now, npu.costs[index]
        issued_ps = opened_ps[step.segment] + step.offset_ps
        if issued_ps > at_ps:
            if cost is None or self._in_company:
                if not self._timer_set:
                    self._timer_set = True
                    self._issued.at(issued_ps)
                return
            at_ps = issued_ps  # nobody else takes cores or changes L2 until then: the kernel can be sent off now
        self.running = True
        self.index = index
        npu.ready_ps[index] = at_ps
        if cost is not None:
            units = npu.units[index]
            if units:
                self._launch(cost, units, at_ps)
                return
            cores = npu.cores[step.partition]
            units = 0 if cores.queue else cores.take(cost.need, cost.at_least, cost.want)
            if units:
                self._launch(cost, units, at_ps)
            else:
                cores.acquire(cost.need, cost.at_least, cost.want, step.priority, self._granted)
        elif step.need and not step.alone:
            cores = npu.cores[step.partition]
            if not cores.queue and cores.take(step.need, 1, 1):
                npu.meet(npu, index)
            else:
                cores.acquire(step.need, 1, 1, step.priority, self._granted)
        else:
            npu.meet(npu, index)

    def _issue(self, _: object) -> None:
        self._timer_set = False
        self.poke()

    def _start(self, units: int) -> None:
        """The head holds its cores."""
        npu = self.npu
        cost = npu.costs[self.index]
        if cost is None:
            npu.meet(npu, self.index)
            return
        self._launch(cost, units, npu.env._now)

    def _launch(self, cost: Cost, units: int, at_ps: int) -> None:
        self._units = units
        npu = self.npu
        weights = npu.weights[self.index]
        warm = npu.cache.resident_bytes(weights) if weights else 0.0
        if warm:
            npu.found(npu.rank, self.index, min(warm, cost.weight_bytes))
        self.kernel.start(npu.shapes[cost, units, warm], at_ps)

    def _ended(self, bound_by: str) -> None:
        """The kernel at the head has ended."""
        npu, kernel = self.npu, self.kernel
        cost, weights = npu.costs[self.index], npu.weights[self.index]
        assert cost is not None
        cache, passing = npu.cache, cost.allocates_bytes
        if cache.held_bytes > cache.capacity_bytes - passing:
            cache.passes(passing)
        if weights:
            cache.keep(weights, cost.kept_bytes)
        npu.finish(self.index, kernel.start_ps, kernel.shape.solo_ps, bound_by, cost.need, self._units)
