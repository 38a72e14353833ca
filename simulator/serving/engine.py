"""An engine: data-parallel groups that step together, as long as there is work.

A step is decided at its beginning: the scheduler of every group says what it works on. Steps that only decode, while
nothing else can happen at the engine, are taken together (a stretch): nothing is decided between them, and the time of
each follows from the tokens cached. What arrives meanwhile is seen at the end of the step that runs, or later (see
`Unseen`).

Of hundreds of groups few have something to decide in a step. The others decode: they are left alone until a request of
theirs ends or their blocks run out (`_due`), and are then brought up to the steps that have been (`_catch_up`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, NamedTuple

from simulator import np
from simulator.physics.clock import SOLVE, Alarm, Clock, call_later
from simulator.serving.attention_dp import ContextWait, SharedQueue
from simulator.serving.audit import Audit
from simulator.serving.board import Board
from simulator.serving.experts import Experts
from simulator.serving.group import Group
from simulator.serving.schedulers import DECODING, SCHEDULERS, Plan, receiving
from simulator.serving.sequences import Sequence
from simulator.serving.settings import AttentionDp, Instances, Role
from simulator.serving.step_lengths import StepLengths
from simulator.serving.stretches import Stretches
from simulator.serving.unseen import Unseen
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
    """name: as results say it. role: whether it prefills, decodes, or both. stretches: those that are over; blocks of
    groups that only decode are counted as if they grew evenly. experts: where they change over time. down: it is
    lost."""

    def __init__(self, name: str, role: Role, settings: Instances, groups: list[Group], audit: Audit, clock: Clock,
                 told: Told, board: Board, experts: Experts | None = None) -> None:
        self.name, self.role, self.groups = name, role, groups
        self._settings, self._scheduling = settings, settings.scheduling
        if role == "decode":  # it has no prompts that could wait for each other
            self._scheduling = settings.scheduling.model_copy(update={"attention_dp_config": AttentionDp()})
        self._schedule = receiving if role == "decode" else SCHEDULERS[settings.scheduling.scheduler]
        self._clock, self._alarm = clock, Alarm(clock, self._step_ends)
        self._told = told
        self._board = board
        self.experts = experts
        if experts is not None:
            experts.changed = self._begin_soon
        board.blocks[:] = [group.cache.blocks for group in groups]
        self._steps = 0  # that have been
        self._plans: dict[int, Plan] = {}  # of the groups that had something to decide
        self._active: set[int] = set()  # groups that have
        self._dues: list[tuple[int, int]] = []  # (steps, group), a heap; those that `_due` does not say are old
        self._ahead = self._scheduling.async_scheduling
        self._unseen = Unseen(self._scheduling.scheduler_recv_interval)
        self._queue = SharedQueue(groups, self._scheduling)
        self._wait = ContextWait(groups, self._scheduling)
        self._lengths = StepLengths(settings, groups, board, audit)
        self._start_ps = 0
        self._woken = False
        self._ends_ps: Any = None  # of the steps of this stretch; None: idle
        self._row: tuple[int, ...] = ()
        self.stretches = Stretches()
        self.down = False
        self._stranded: list[tuple[Sequence, int]] = []

    @property
    def busy(self) -> bool:
        """Whether a step runs."""
        return self._ends_ps is not None

    def receive(self, one: Sequence) -> None:
        """A request comes to its group; while a step runs it may not be looked at yet (see `Unseen`)."""
        if self.down:
            self.strand([(one, 0)])
            return
        seldom = self._scheduling.scheduler_recv_interval > 1
        if self._ends_ps is not None and (seldom or self._ahead):
            self._unseen.add(one)
        else:
            self._add(one)
        if self._ends_ps is None or not seldom:
            self._begin_soon()

    def _add(self, one: Sequence) -> None:
        """It can be in the next step that is decided."""
        if self._scheduling.shared_queue:
            self._queue.add(one)
        else:
            self.groups[one.group].add(one)
            self._active.add(one.group)
            self._seen(one.group)

    def outside(self) -> Iterator[Sequence]:
        """Requests that are at no group yet."""
        yield from self._queue.waiting
        yield from self._unseen
        yield from (one for one, _ in self._stranded)

    def wake(self, group: int) -> None:
        """Something has come to a group: an idle engine begins, one in a stretch looks at it after the step that runs.
        """
        if self.down:
            return
        self._active.add(group)
        self._seen(group)
        self._begin_soon()

    def loaded(self, number: int, one: Sequence) -> None:
        """What lay below the HBM of a group has come: its prompt goes on."""
        group = self.groups[number]
        group.prefilling.append(group.loading.pop(one.request))
        self.wake(number)

    def _begin_soon(self) -> None:
        if self._ends_ps is None:
            if not self._woken:  # after all that comes in this instant
                self._woken = True
                call_later(self._clock, 0, lambda _: self._begin(), SOLVE)
        elif len(self._ends_ps) > 1:
            place = int(np.searchsorted(self._ends_ps, self._clock.now_ps))
            self._ends_ps = self._ends_ps[: place + 1]
            self._alarm.set(int(self._ends_ps[-1]))

    def _seen(self, number: int) -> None:
        """Who is at a group."""
        group, board = self.groups[number], self._board
        board.waiting[number], board.running[number] = len(group.waiting), group.running
        board.queued_tokens[number] = group.queued_tokens
        board.begun[number] = group.begun_tokens

    # --- deciding ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Decide on the next step, or be idle."""
        self._woken = False
        if self.down:
            return
        if self.experts is not None and self.experts.blocked:
            return
        if not self._ahead:
            self._see(self._unseen.look())
        self._active.update(self._queue.hand_out())
        self._wait.decide()
        self._plans = {number: self._decided(number) for number in sorted(self._active)}
        prompts = any(plan.prompts for plan in self._plans.values())
        decoding = self._board.requests.copy()
        for number, plan in self._plans.items():
            decoding[number] *= plan.decode
        if not prompts and not decoding.any():
            self._ends_ps = None
            if self._see(self._unseen.look(idle=True)):
                self._begin_soon()
            return
        came = False
        if self._ahead:  # the step that begins counts: the next one is decided while it runs
            self._unseen.passed(1, prompts=prompts)
            came = self._see(self._unseen.look())
        self._start_ps = self._clock.now_ps
        held = self._board.cached_now()
        tokens = decoding.copy()
        for number, plan in self._plans.items():
            tokens[number] += sum(count for _, count in plan.prompts)
        new = int((tokens - decoding).sum())
        most_steps = int(min(MOST_TOGETHER, self._wait.steps))
        if self._scheduling.scheduler_recv_interval > 1:
            most_steps = min(most_steps, self._unseen.steps)
        if came or any(self.groups[number].waited for number in self._active):
            most_steps = 1
        uneven = None
        if self.experts is not None:
            uneven = self.experts.begin()
            most_steps = min(most_steps, self.experts.most_steps)
        lengths_s = (self._lengths.mixed_s(decoding, held, self._plans, uneven) if prompts else
                     self._lengths.decode_s(decoding, held, self._plans, min(most_steps, self._first_due()), uneven))
        waiting = int(self._board.waiting.sum()) + len(self._queue.waiting) + len(self._unseen)
        self._row = (int(decoding.sum()), int((held * (decoding > 0)).sum()), new, waiting,
                     int(self._board.used_now().sum()), int(tokens.max()))  # fmt: skip
        lengths_s = self._lengths.with_host(lengths_s, decoding, self._plans)
        self._ends_ps = self._start_ps + np.cumsum(np.maximum(np.rint(lengths_s * PS_PER_S).astype(np.int64), 1))
        if self.experts is not None:
            self._ends_ps = self.experts.cut(self._ends_ps)
        self._alarm.set(int(self._ends_ps[-1]))

    def _see(self, came: list[Sequence]) -> bool:
        """What came after the step that begins was decided can be in the next one: whether there is any."""
        for one in came:
            self._add(one)
        return bool(came)

    def _decided(self, number: int) -> Plan:
        """What a group works on in the next step."""
        self._catch_up(number)
        group = self.groups[number]
        plan = DECODING if self._wait.held else self._schedule(group, self._scheduling)
        for one in plan.preempted:
            self._told.preempted(self, one)
        for one in (*(one for one, _ in plan.prompts), *group.coming.values(), *group.loading.values()):
            if not one.scheduled:
                one.scheduled = True
                self._told.scheduled(self, one)
        if not plan.prompts and not plan.preempted and not group.waited and not self._wait.held:
            self._active.discard(number)
        self._note(number)
        return plan

    def _note(self, number: int) -> None:
        """What a group is like from this step on, and when it must be looked at again."""
        group, board = self.groups[number], self._board
        self._seen(number)
        board.requests[number], board.pace[number] = len(group.decoding), group.growth.pace()
        board.cached[number], board.used[number] = group.cached, group.cache.used
        steps = group.steps_to_end()
        while steps > 1 and group.blocks_of(steps) > group.cache.free:
            steps //= 2
        due = self._steps + steps if group.decoding else -1
        if due != board.due[number]:
            board.due[number] = due
            heappush(self._dues, (due, number))

    def _catch_up(self, number: int) -> None:
        """A group decodes the steps that have been since it was looked at."""
        behind = self._steps - int(self._board.synced[number])
        self._board.synced[number] = self._steps
        if behind:
            for one in self.groups[number].decode(behind):
                self._told.ended(self, one)

    def _first_due(self) -> int:
        """Steps until a group must be looked at."""
        while self._dues and self._board.due[self._dues[0][1]] != self._dues[0][0]:
            heappop(self._dues)
        return self._dues[0][0] - self._steps if self._dues else MOST_TOGETHER

    # --- what comes of it -------------------------------------------------------------------------------------------

    def _step_ends(self) -> None:
        """All steps of the stretch are over."""
        steps = len(self._ends_ps)
        self._record()
        self._ends_ps = None
        self._wait.passed(steps)
        self._unseen.passed(steps - self._ahead, prompts=self._row[2] > 0 and not self._ahead)
        self._steps += steps
        self._board.steps[:] = self._steps
        for number, plan in self._plans.items():
            if not plan.decode:
                self._board.synced[number] = self._steps
            for one, new in plan.prompts:
                one.computed += new * (not one.gone)
        while self._first_due() <= 0:
            number = heappop(self._dues)[1]
            self._board.due[number] = -1
            self._active.add(number)
            self._catch_up(number)
        for number, plan in self._plans.items():
            for one, _ in plan.prompts:
                if not one.new and not one.gone:
                    self._computed(number, one)
        self._begin_soon()

    def stopped(self) -> int:
        """The run is stopped: steps of the stretch that are over by now, which have a row of their own."""
        for number in range(len(self.groups)):
            self._catch_up(number)
        if self._ends_ps is None:
            return 0
        steps = int(np.searchsorted(self._ends_ps, self._clock.now_ps, side="right"))
        self._ends_ps = self._ends_ps[:steps]
        if steps:
            self._record()
        return steps

    def paced(self, audit: Audit) -> None:
        """From the next step on steps take what this says."""
        self._lengths.audit = audit
        self._begin_soon()

    def lose(self) -> None:
        """It is gone, with all that is cached: of the steps of the stretch those that are over have been, the one that
        runs never was. Its requests are stranded, and those too that are still sent here."""
        self._break_off()
        self.down = True
        found = [(one, 0) for one in self.outside()]
        for group in self.groups:
            found += group.lose()
        self._plans, self._active, self._dues = {}, set(), []
        self._unseen = Unseen(self._scheduling.scheduler_recv_interval)
        self._queue = SharedQueue(self.groups, self._scheduling)
        self._wait = ContextWait(self.groups, self._scheduling)
        for name in ("waiting", "running", "queued_tokens", "requests", "cached", "used", "begun", "pace"):
            getattr(self._board, name)[:] = 0
        self._board.due[:] = -1
        self.strand(found)

    def lose_group(self, number: int) -> list[Sequence]:
        """One group is gone, and the others go on: the step that runs is taken again without it. Its requests."""
        self._break_off()
        unseen = [(one, 0) for one in self._unseen if one.group == number and self._unseen.withdraw(one)]
        found = self.groups[number].lose() + unseen
        self.groups[number].forget()
        self._note(number)
        self.strand(found)
        self._begin_soon()
        return [one for one, _ in found]

    def _break_off(self) -> None:
        """Of the steps of the stretch those that are over have been, and no other."""
        if self._ends_ps is not None:
            over = int(np.searchsorted(self._ends_ps, self._clock.now_ps, side="right"))
            self._alarm.stop()
            self._ends_ps = self._ends_ps[:over] if over else None
            if over:
                self._step_ends()
        for number in range(len(self.groups)):
            self._catch_up(number)

    def strand(self, found: list[tuple[Sequence, int]]) -> None:
        """Requests of an engine that does not answer count as waiting there, as long as they are not taken away."""
        self._stranded += found
        for one, _ in found:
            self._board.waiting[one.group] += 1

    def stranded(self) -> list[tuple[Sequence, int]]:
        """Its requests are taken away, each with the tokens of it that were cached."""
        found, self._stranded = self._stranded, []
        for one, _ in found:
            self._board.waiting[one.group] -= 1
        return found

    def abandon(self, one: Sequence) -> None:
        """A prompt that was to be decoded elsewhere is of no use any more, begun or computed."""
        group = self.groups[one.group]
        self._catch_up(one.group)
        if not self._unseen.withdraw(one) and not self._queue.withdraw(one) and not group.withdraw(one):
            if one in group.prefilling:
                group.prefilling.remove(one)
            group.loading.pop(one.request, None)
            group.finish(one)
        one.gone = True
        self.wake(one.group)

    def withdraw(self, one: Sequence) -> None:
        """A request that was to be prefilled elsewhere is taken away, wherever it is here."""
        left = [other for other in self._stranded if other[0] is not one]
        if len(left) < len(self._stranded):
            self._stranded = left
            self._board.waiting[one.group] -= 1
        elif not self._unseen.withdraw(one) and not self._queue.withdraw(one):
            self._catch_up(one.group)
            self.groups[one.group].withdraw(one)
            self.wake(one.group)

    def restart(self) -> None:
        """It is back, with nothing cached."""
        self.down = False
        for group in self.groups:
            group.forget()

    def _computed(self, number: int, one: Sequence) -> None:
        """A prompt is computed, and with it the next token is there."""
        group = self.groups[number]
        self._catch_up(number)
        self._active.add(number)
        group.prefilling.remove(one)
        one.emitted += 1
        if group.below is not None:
            group.below.keep(one)
        self._told.prefilled(self, one)
        if self.role == "prefill":  # its blocks are held until they have been read
            return
        if one.emitted >= one.output:
            group.finish(one)
            self._told.ended(self, one)
        else:
            group.join(one)

    def _record(self) -> None:
        """A row of the stretch that is over, as it was at its beginning."""
        steps = len(self._ends_ps)
        begun = self._row[0] * (steps - 1) // self._settings.cache.block_size
        self.stretches.add((self._start_ps, steps, *self._row, begun), np.diff(self._ends_ps, prepend=self._start_ps))
        self._lengths.audit.took_place(self._row[2] > 0, steps)
        if self.experts is not None:
            self.experts.took_place(steps, self._row[0] * self.groups[0].growth.queries + self._row[2])
