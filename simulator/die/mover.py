"""Somebody who moves bytes on one die, stage by stage: the kernel of a stream, or one end of a one-sided exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.die.shape import Shape, Stage
from simulator.physics.clock import Alarm
from simulator.physics.flow import DONE
from simulator.physics.flows import Bound, Flow
from simulator.units import PS_PER_S, to_ps

if TYPE_CHECKING:
    from simulator.die.onchip import OnChip

_SAME = 1e-14  # rates closer than this (relative) are the same rate, as on the network

Span = tuple[int, int, Stage]
"""When the bytes of a stage begin and end if nobody slows them."""


class Mover:
    """At work on one shape at a time, over and over. ended: told what bound it.

    stage, number, at_ps: its present stage, its place, and when its wait began. flow: the bytes of the stage, once they
    needed one. end_ps: when all is moved if nobody slows it, while its die is at ease. over: all bytes are moved, and
    its alarm will ring in this instant.
    """

    __slots__ = ("alarm", "at_ps", "end_ps", "ended", "flow", "number", "onchip", "over", "shape", "stage", "start_ps")

    def __init__(self, onchip: OnChip, ended: Callable[[str], object]) -> None:
        self.onchip, self.ended = onchip, ended
        self.alarm = Alarm(onchip.env, self._ring)
        self.number = self.start_ps = self.at_ps = self.end_ps = 0
        self.flow: Flow | None = None
        self.over = False
        self.shape: Shape
        self.stage: Stage

    def start(self, shape: Shape, at_ps: int) -> None:
        """Spend the latency and move the bytes, from now or a later time on."""
        self.shape = shape
        self.start_ps = self.at_ps = at_ps
        self.number, self.flow = 0, None
        if shape.stages:
            self.over, self.stage = False, shape.stages[0]
            self.end_ps = at_ps + shape.alone_ps
            self.onchip.admit(self)
        else:
            self.over = True
            self.alarm.set(at_ps + shape.alone_ps)

    # off the network ------------------------------------------------------------------------------------------------

    def spans(self) -> list[Span]:
        """What is still to be moved."""
        at_ps, flow, spans = self.at_ps, self.flow, []
        for stage in self.shape.stages[self.number :]:
            begin_ps = at_ps + stage.wait_ps
            at_ps = begin_ps + stage.length_ps if flow is None else flow.finish_ps
            flow = None
            spans.append((begin_ps, at_ps, stage))
        return spans

    def turn_ps(self) -> int:
        """When the bytes of the present stage begin or end, as things stand."""
        return self.at_ps + self.stage.wait_ps if self.flow is None else self.flow.finish_ps

    def catch_up(self, now_ps: int) -> None:
        """Be in the stage that it is in now."""
        stages = self.shape.stages
        while True:
            if self.flow is None:
                end_ps = self.at_ps + self.stage.wait_ps + self.stage.length_ps
            else:
                end_ps = self.flow.finish_ps
            if end_ps > now_ps:
                return
            if self.number + 1 == len(stages):
                self.over = True
                return
            self.number += 1
            self.at_ps, self.flow, self.stage = end_ps, None, stages[self.number]

    def begun(self, now_ps: int) -> bool:
        """Whether the bytes of the present stage move; they have a flow from then on."""
        if self.flow is None:
            stage = self.stage
            begin_ps = self.at_ps + stage.wait_ps
            if begin_ps > now_ps:
                return False
            flow = self.flow = self.onchip.flow(stage)
            flow.since_ps = flow.bound_since_ps = begin_ps
            flow.rate_bytes_per_s, flow.bound = flow.solo_rate, flow.solo_bound
            flow.finish_ps = begin_ps + stage.length_ps
        return True

    def go_on(self, rate: float, bound: Bound, now_ps: int) -> bool:
        """Move on at this rate; whether that is full speed."""
        flow = self.flow
        assert flow is not None
        if bound is not flow.bound:
            flow.set_bound(bound, now_ps)
        old = flow.rate_bytes_per_s
        if abs(rate - old) > _SAME * rate:
            flow.left_bytes -= old * ((now_ps - flow.since_ps) / PS_PER_S)
            flow.since_ps = now_ps
            flow.rate_bytes_per_s = rate
            flow.finish_ps = now_ps + to_ps(flow.left_bytes / rate)
        return abs(rate - flow.solo_rate) <= _SAME * rate

    def _ring(self) -> None:
        """Bytes begin or end, where the die is crowded; else all is moved."""
        onchip = self.onchip
        if not self.over:
            if onchip.crowded:
                onchip.turn()
                return
            if not onchip.end(self):
                return
        if self.flow is None:
            self.ended(self.shape.alone_bound)
        else:
            self.finish()

    def finish(self) -> None:
        """All is moved: say what bound it."""
        if self.flow is not None:
            self.catch_up(self.onchip.env._now)
        flow = self.flow
        if flow is None:
            self.ended(self.shape.alone_bound)
        else:
            flow.since_ps, flow.finish_ps = self.onchip.env._now, DONE
            self.ended(self.shape.bound_by(flow))

    # on the network -------------------------------------------------------------------------------------------------

    def join(self, now_ps: int) -> None:
        """Move the bytes of the present stage over the network, from where they are."""
        self.alarm.stop()
        network, stage = self.onchip.network, self.stage
        begin_ps = self.at_ps + stage.wait_ps
        if begin_ps >= now_ps and self.flow is None:
            network.start(self.onchip.flow(stage), self._moved, begin_ps - now_ps)
        else:
            self.begun(now_ps)
            assert self.flow is not None
            network.adopt(self.flow, self._moved)

    def _moved(self, flow: Flow) -> None:
        self.number += 1
        if self.number < len(self.shape.stages):
            self.at_ps, self.flow, self.stage = self.onchip.env._now, None, self.shape.stages[self.number]
            self.end_ps = self.spans()[-1][1]
            self.onchip.admit(self)
        else:
            self.ended(self.shape.bound_by(flow))
