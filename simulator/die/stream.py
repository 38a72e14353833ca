"""One in-order queue of an NPU: a callback state machine, not a process.

Its head step starts once the host has issued it, the step before it has ended and every step that it waits for has
ended; then it takes cores, and spends its latency and bytes (a kernel) or meets the other ranks (an exchange).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.physics.clock import Call

if TYPE_CHECKING:
    from simulator.die.kernels import Cost
    from simulator.die.npu import Npu
    from simulator.die.shape import Shape
    from simulator.physics.flows import Flow


class Stream:
    """Queue number `number` of `npu`. position: index of its head in `order`. running: its head holds it."""

    __slots__ = (
        "_delayed", "_granted", "_in_company", "_issued", "_moved", "_shape", "_stage", "_start_ps", "_timer_set",
        "_units", "index", "npu", "order", "position", "running",
    )  # fmt: skip

    def __init__(self, npu: Npu, number: int) -> None:
        self.npu, self.order = npu, npu.tape.streams[number]
        self.position = 0
        self.index = -1  # of the step that is running
        self.running = self._timer_set = False
        self._units = self._stage = self._start_ps = 0
        self._shape: Shape
        self._delayed = Call(npu.env, self._waited)
        self._in_company = len(npu.tape.streams) > 1
        self._issued = Call(npu.env, self._issue)
        self._granted, self._moved = self._start, self._stage_ended  # bound once, for the hot path

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
        at_ps, cost = npu.env.now_ps, npu.costs[index]
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
        self._launch(cost, units, npu.env.now_ps)

    def _launch(self, cost: Cost, units: int, at_ps: int) -> None:
        self._units = units
        npu = self.npu
        weights = npu.weights[self.index]
        warm = npu.cache.resident_bytes(weights) if weights else 0.0
        if warm:
            npu.found(npu.rank, self.index, min(warm, cost.weight_bytes))
        shape = self._shape = npu.shapes[cost, units, warm]
        self._start_ps, self._stage = at_ps, 0
        if shape.stages:
            stage = shape.stages[0]
            npu.network.start(npu.flow(stage), self._moved, at_ps - npu.env.now_ps + stage.wait_ps)
        else:
            self._delayed.at(at_ps + shape.delay_ps)

    def _waited(self, _: object) -> None:
        """A kernel that moves no bytes has ended."""
        self._ended(self._shape.latency_name)

    def _stage_ended(self, flow: Flow) -> None:
        """The bytes of one stage are moved."""
        self._stage += 1
        stages = self._shape.stages
        flow.serial = -1  # free for another kernel
        if self._stage == len(stages):
            self._ended(self._shape.bound_by(flow))
        else:
            stage, npu = stages[self._stage], self.npu
            npu.network.start(npu.flow(stage), self._moved, stage.wait_ps)

    def _ended(self, bound_by: str) -> None:
        """The kernel at the head has ended."""
        npu = self.npu
        cost, weights = npu.costs[self.index], npu.weights[self.index]
        assert cost is not None
        cache, passing = npu.cache, cost.allocates_bytes
        if cache.held_bytes > cache.capacity_bytes - passing:
            cache.passes(passing)
        if weights:
            cache.keep(weights, cost.kept_bytes)
        npu.finish(self.index, self._start_ps, self._shape.solo_ps, bound_by, cost.need, self._units)
