"""One NPU at run time: in-order streams, a host thread that launches, exclusive cores, shared HBM and L2.

The NPU replays a `Tape`. The host never costs an event of its own: between two blocking reads its launches follow each
other at fixed offsets, so the issue time of every step of such a *segment* is known as soon as the segment opens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from simulator.die.cache import Cache
from simulator.die.shape import Shapes, Stage
from simulator.die.step import Segment, Step, Tape, Watch
from simulator.die.stream import Stream
from simulator.physics.clock import Clock
from simulator.physics.cores import Cores, Need
from simulator.physics.flows import Capacity, Flow, Network

__all__ = ["Npu", "Segment", "Step", "Tape", "Watch"]


class Npu:
    """A die that replays a tape.

    cores: its pools by partition ("" is the whole chip). meet: called as meet(npu, step index) when a collective's
    step is ready and holds its cores; the collective calls `finish` on every member.
    """

    def __init__(
        self,
        env: Clock,
        network: Network,
        rank: int,
        tape: Tape,
        *,
        hbm: Capacity,
        l2: Capacity,
        cache: Cache,
        shapes: Shapes,
        cores: dict[str, Cores],
        meet: Callable[[Npu, int], None],
        watch: Watch,
    ) -> None:
        self.env, self.network, self.hbm, self.l2 = env, network, hbm, l2
        self.rank, self.tape, self.steps = rank, tape, tape.steps
        self.costs, self.weights, self.units = tape.costs, tape.weights, tape.units
        self.cache, self.cores, self.meet, self.shapes = cache, cores, meet, shapes
        self._flows: dict[Stage, Flow] = {}
        self._record, self.found = watch.record, watch.found
        self.pending = [step.waits for step in tape.steps]
        self.ended_ps = array("q", [-1]) * len(tape.steps)
        self.ready_ps = array("q", [-1]) * len(tape.steps)
        self.opened_ps: list[int] = []  # start of every open host segment
        self.blocked_on = -1  # the step that the host waits for
        self.left = len(tape.steps)
        self.streams = [Stream(self, number) for number in range(len(tape.streams))]

    def begin(self) -> None:
        """Let the host start launching at the present time."""
        self._open_segments(self.env.now_ps)

    def _open_segments(self, opens_ps: int) -> None:
        """Open the next segment, and those behind it whose blocking reads are already answered."""
        segments = self.tape.segments
        self.opened_ps.append(opens_ps)
        self.blocked_on = -1
        while len(self.opened_ps) < len(segments):
            following = segments[len(self.opened_ps)]
            ended_ps = self.ended_ps[following.after]
            if following.after >= 0 and ended_ps < 0:
                self.blocked_on = following.after
                break
            free_ps = self.opened_ps[-1] + segments[len(self.opened_ps) - 1].length_ps
            self.opened_ps.append(max(free_ps, ended_ps) + following.read_ps)
        for stream in self.streams:
            stream.poke()

    def flow(self, stage: Stage) -> Flow:
        """A flow for a stage on this die, ready to start."""
        flow = self._flows.get(stage)
        if flow is None:
            flow = self._flows[stage] = stage.on(self.hbm, self.l2)
        elif flow.serial >= 0:  # in use
            return flow.again()
        flow.reset()
        return flow

    def issued_ps(self, index: int) -> int:
        """When the host issued this step, in ps, or -1 if it is not known yet."""
        step = self.steps[index]
        if step.segment >= len(self.opened_ps):
            return -1
        return self.opened_ps[step.segment] + step.offset_ps

    def finish(self, index: int, start_ps: int, solo_ps: int, bound_by: str, need: Need, units: int) -> None:
        """A step has ended: record it, free its cores, wake what waited for it."""
        now_ps = self.env.now_ps
        step = self.steps[index]
        self.ended_ps[index] = now_ps
        self.left -= 1
        issued_ps = self.opened_ps[step.segment] + step.offset_ps
        self._record(self.rank, index, issued_ps, self.ready_ps[index], start_ps, now_ps, solo_ps, bound_by)
        stream = self.streams[step.stream]
        stream.position += 1
        stream.running = False
        followers = step.followers
        if followers:
            pending = self.pending
            for follower in followers:
                pending[follower] -= 1
        if need and not step.alone:
            self.cores[step.partition].release(need, units)
        if self.blocked_on == index:
            segment = self.tape.segments[len(self.opened_ps)]
            free_ps = self.opened_ps[-1] + self.tape.segments[len(self.opened_ps) - 1].length_ps
            self._open_segments(max(free_ps, now_ps) + segment.read_ps)
            return  # opening pokes every stream
        stream.poke()
        if followers:
            for follower in followers:
                if not pending[follower]:
                    self.streams[self.steps[follower].stream].poke()
