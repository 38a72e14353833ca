"""An engine: data-parallel groups that step together, as long as there is work.

A step is decided at its beginning: the scheduler of every group says what it works on. Steps that only decode, while
nothing else can happen at the engine, are taken together (a stretch): nothing is decided between them, and the time of
each follows from the tokens cached. What arrives meanwhile is seen at the end of the step that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from simulator import np
from simulator.model.micro_batch import MicroBatch
from simulator.physics.clock import SOLVE, Alarm, Clock, call_later
from simulator.serving.audit import Audit
from simulator.serving.group import Group
from simulator.serving.schedulers import SCHEDULERS, Plan, receiving
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Instances, Role
from simulator.serving.steps import Load, StepTimes, load_of
from simulator.units import PS_PER_S

MOST_TOGETHER = 4096  # steps of a stretch


class Told(NamedTuple):
    """What is called with an engine and a request: when it is first worked on, when it is preempted, at the end of the
    step in which its prompt is computed, and of that in which its last token is there."""

    scheduled: Callable[[Engine, Sequence], None]
    preempted: Callable[[Engine, Sequence], None]
    prefilled: Callable[[Engine, Sequence], None]
    ended: Callable[[Engine, Sequence], None]


class Engine:
    """name: as results say it. role: whether it prefills, decodes, or both. rows: of every stretch its start, how many
    steps it has, and as they were at its beginning requests that decode, tokens that they have cached, new prompt
    tokens, requests that wait, and blocks in use; durations: of all steps of each, in ps."""

    def __init__(self, name: str, role: Role, settings: Instances, groups: list[Group], times: StepTimes, audit: Audit,
                 clock: Clock, told: Told) -> None:  # fmt: skip
        self.name, self.role, self.groups = name, role, groups
        self._settings, self._times, self._audit = settings, times, audit
        self._schedule = receiving if role == "decode" else SCHEDULERS[settings.scheduling.scheduler]
        self._clock, self._alarm = clock, Alarm(clock, self._step_ends)
        self._told = told
        self._plans: list[Plan] = []
        self._start_ps = 0
        self._woken = False
        self._ends_ps: Any = None  # of the steps of this stretch; None: idle
        self.rows: list[tuple[int, int, int, int, int, int, int]] = []
        self.durations: list[Any] = []

    def receive(self, one: Sequence) -> None:
        """A request comes to its group; while a step runs whose successor is decided, it is looked at after that."""
        group = self.groups[one.group]
        ahead = self._settings.scheduling.async_scheduling and self._ends_ps is not None
        (group.unseen if ahead else group.waiting).append(one)
        self.wake()

    def wake(self) -> None:
        """Something has come: an idle engine begins, one in a stretch looks at it after the step that runs."""
        if self._ends_ps is None:
            if not self._woken:  # after all that comes in this instant
                self._woken = True
                call_later(self._clock, 0, lambda _: self._begin(), SOLVE)
        elif len(self._ends_ps) > 1:
            place = int(np.searchsorted(self._ends_ps, self._clock.now_ps))
            self._ends_ps = self._ends_ps[: place + 1]
            self._alarm.set(int(self._ends_ps[-1]))

    def _begin(self) -> None:
        """Decide on the next step, or be idle."""
        self._woken = False
        self._plans = [self._schedule(group, self._settings.scheduling) for group in self.groups]
        for plan in self._plans:
            for one in plan.preempted:
                self._told.preempted(self, one)
        for one in self._new():
            self._told.scheduled(self, one)
        prompts, decode = any(plan.prompts for plan in self._plans), any(plan.decode for plan in self._plans)
        came = self._see()
        if not prompts and not decode:
            self._ends_ps = None
            if came:
                self.wake()
            return
        self._start_ps = self._clock.now_ps
        lengths_s = self._mixed_s() if prompts else self._decode_s(1 if came else MOST_TOGETHER)
        lengths_ps = np.maximum(np.rint(self._with_host(lengths_s) * PS_PER_S).astype(np.int64), 1)
        self._ends_ps = self._start_ps + np.cumsum(lengths_ps)
        self._alarm.set(int(self._ends_ps[-1]))

    def _see(self) -> bool:
        """What came after the step that begins was decided can be in the next one: whether there is any."""
        came = False
        for group in self.groups:
            came |= bool(group.unseen)
            group.waiting.extend(group.unseen)
            group.unseen.clear()
        return came

    def _new(self) -> Iterator[Sequence]:
        """Requests that are worked on for the first time since they came."""
        for group, plan in zip(self.groups, self._plans, strict=True):
            for one in (*(one for one, _ in plan.prompts), *group.coming.values()):
                if not one.scheduled:
                    one.scheduled = True
                    yield one

    def _with_host(self, steps_s: Any) -> Any:
        """What a step takes with its host."""
        host = self._settings.host
        requests = sum(len(plan.prompts) + len(group.decoding) * plan.decode
                       for plan, group in zip(self._plans, self.groups, strict=True))  # fmt: skip
        host_s = host.step_ms / 1e3 + host.request_us / 1e6 * requests
        return np.maximum(steps_s, host_s) if host.overlapped else steps_s + host_s

    def _mixed_s(self) -> Any:
        """One step with prompts."""
        batch = [self._batch(group, plan) for group, plan in zip(self.groups, self._plans, strict=True)]
        load = load_of(batch)
        return np.array([self._audit.corrected(load, self._times.seconds(load), lambda: batch)])

    def _decode_s(self, most_steps: int) -> Any:
        """The steps of a stretch, so many at most."""
        groups = [group for group, plan in zip(self.groups, self._plans, strict=True) if plan.decode]
        steps = min(self._steps_together(groups), most_steps)
        most = max(len(group.decoding) for group in groups)
        share = sum(len(group.decoding) for group in groups) / most / len(self.groups)
        count = np.arange(steps)
        ahead = max(groups, key=lambda group: (group.cached, len(group.decoding)))
        later = max(groups, key=lambda group: (group.cached + steps * len(group.decoding), group.cached))
        cached = np.maximum(ahead.cached + count * len(ahead.decoding), later.cached + count * len(later.decoding))
        load = Load(most, self._captured(most), ahead.cached, share)
        found = self._times.decode_seconds(load, cached)
        return self._audit.corrected_stretch(load, found, self._batch_after)

    def _steps_together(self, groups: list[Group]) -> int:
        """Decode steps in which nothing ends, none comes in, and no block is missing."""
        if any(group.waited for group in groups):
            return 1
        steps = min(MOST_TOGETHER, *(group.steps_to_end() for group in groups))
        while steps > 1 and any(group.blocks_of(steps) > group.cache.free for group in groups):
            steps //= 2
        return max(steps, 1)

    def _captured(self, requests: int) -> int:
        """Rows of the graph that so many requests run in; 0: none is as large."""
        return next((size for size in self._settings.capture if size >= requests), 0)

    def _batch(self, group: Group, plan: Plan) -> MicroBatch:
        """What a group works on in a step."""
        decodes = tuple((1, group.length(one)) for one in group.decoding.values()) if plan.decode else ()
        prompts = tuple((new, one.computed) for one, new in plan.prompts)
        ends = sum(one.computed + new == one.prompt for one, new in plan.prompts)
        return MicroBatch(0, decodes, prompts, ends)

    def _batch_after(self, steps: int) -> list[MicroBatch]:
        """What all groups work on after so many more decode steps."""
        padded = self._captured(max(len(group.decoding) for group in self.groups))
        return [MicroBatch(0, tuple((1, group.length(one) + steps) for one in group.decoding.values()), padded=padded)
                for group in self.groups]  # fmt: skip

    def _step_ends(self) -> None:
        """All steps of the stretch are over."""
        steps = len(self._ends_ps)
        self._record(steps)
        for group, plan in zip(self.groups, self._plans, strict=True):
            for one, new in plan.prompts:
                one.computed += new
            if plan.decode:
                for one in group.decode(steps):
                    self._told.ended(self, one)
            for one, _ in plan.prompts:
                if not one.new:
                    self._computed(group, one)
        self._begin()

    def _computed(self, group: Group, one: Sequence) -> None:
        """A prompt is computed, and with it the next token is there."""
        group.prefilling.remove(one)
        one.emitted += 1
        self._told.prefilled(self, one)
        if self.role == "prefill":  # its blocks are held until they have been read
            return
        if one.emitted >= one.output:
            group.finish(one)
            self._told.ended(self, one)
        else:
            group.join(one)

    def _record(self, steps: int) -> None:
        """A row of the stretch that is over, as it was at its beginning."""
        decoding = sum(len(group.decoding) for group, plan in zip(self.groups, self._plans, strict=True) if plan.decode)
        new = sum(count for plan in self._plans for _, count in plan.prompts)
        self.rows.append((self._start_ps, steps, decoding, sum(group.cached for group in self.groups), new,
                          sum(len(group.waiting) for group in self.groups),
                          sum(group.cache.used for group in self.groups)))  # fmt: skip
        self.durations.append(np.diff(self._ends_ps, prepend=self._start_ps))
