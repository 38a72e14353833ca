"""How TensorRT-LLM balances attention over the data-parallel groups of an engine.

A step lasts as long as its fullest group takes, so a prompt in one group beside seven that decode costs all eight.

* `SharedQueue`: requests wait at the engine. When a step is decided it takes in as many as its groups have room for:
  the longest prompt first, each to the group with the fewest prompt tokens, none to a group that has more requests
  than the mean (`_balance_requests_across_ranks`, tensorrt_llm/_torch/pyexecutor/executor_request_queue.py). A request
  that comes to a full engine goes where another one has ended.
* `ContextWait` (`attention_dp_config.enable_balance`): prompts are held back until every group has one and room for it
  in its batch, and then for `batching_wait_iters` more steps; or until `timeout_iters` steps have passed
  (`_balance_adp_context_requests` of tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py). The count of steps goes
  on where no group has a prompt, so one waits from 1 to `timeout_iters` steps, wherever the count is when it comes.

Worked example. Of two groups with a timeout of 3, one has a prompt from step 5 on, where the count is at 1: it waits in
step 5, and goes in step 6, where the count is 3, alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Several
from heapq import heapify, heappop, heappush
from math import inf

from simulator.serving.group import Group
from simulator.serving.schedulers import has_prompts
from simulator.serving.sequences import Sequence, queue_up
from simulator.serving.settings import Scheduling


class SharedQueue:
    """Requests that wait at an engine for any of its groups."""

    def __init__(self, groups: Several[Group], scheduling: Scheduling) -> None:
        self._groups, self._scheduling = groups, scheduling
        self.waiting: deque[Sequence] = deque()

    def add(self, one: Sequence) -> None:
        """A request waits, by its priority where that counts."""
        queue_up(self.waiting, one, by_priority=self._scheduling.policy == "priority")

    def withdraw(self, one: Sequence) -> bool:
        """A request is taken away; False: it is not here."""
        if one not in self.waiting:
            return False
        self.waiting.remove(one)
        return True

    def hand_out(self) -> list[int]:
        """Requests leave for groups that have room for them: the numbers of these groups, ascending."""
        if not self.waiting:
            return []
        groups = self._groups
        counts = [group.running + len(group.waiting) for group in groups]
        room = max(len(groups) * self._scheduling.max_num_seqs - sum(counts), 0)
        new = [self.waiting.popleft() for _ in range(min(len(self.waiting), room))]
        each = max(-(-(sum(counts) + len(new)) // len(groups)), *counts)
        heap = [(groups[number].prompt_tokens, count, number) for number, count in enumerate(counts) if count < each]
        heapify(heap)
        for one in sorted(new, key=lambda one: -one.input):
            tokens, count, one.group = heappop(heap)
            groups[one.group].add(one)
            if count + 1 < each:
                heappush(heap, (tokens + one.input, count + 1, one.group))
        return sorted({one.group for one in new})


class ContextWait:
    """Whether prompts are held back in a step. held: in the one that was decided last."""

    def __init__(self, groups: Several[Group], scheduling: Scheduling) -> None:
        settings = scheduling.attention_dp_config
        self._groups, self._scheduling = groups, scheduling
        self._timeout, self._more = settings.timeout_iters, settings.batching_wait_iters
        self._works = settings.enable_balance and len(groups) > 1
        self._waited = self._batched = 0
        self._counts = ""  # what goes on in every step that is like the one that was decided
        self.held = False

    def decide(self) -> None:
        """On the next step. A group with nothing to do takes part with a request that is made up."""
        if self._works:
            prompts = [has_prompts(group, self._scheduling) for group in self._groups]
            decoding = [len(group.decoding) or not (group.running or group.waiting) for group in self._groups]
            self.held = self._holds(prompts, decoding) and any(prompts)

    def _holds(self, prompts: Several[bool], decoding: Several[int]) -> bool:
        others, ready = all(decoding), all(prompts) and max(decoding) < self._scheduling.max_num_seqs
        self._counts = "" if not others else "more" if ready else "timeout"
        if ready:
            self._waited = 0
            if others:
                self._batched = self._batched + 1 if self._batched < self._more else 0
            return others and self._batched > 0
        self._waited = self._waited + 1 if others and self._waited + 1 < self._timeout else 0
        return self._waited > 0

    @property
    def steps(self) -> float:
        """For which prompts that are held back now stay so, unless something changes."""
        if not self.held:
            return inf
        return self._timeout - self._waited if self._counts == "timeout" else self._more - self._batched + 1

    def passed(self, steps: int) -> None:
        """So many steps were like the one that was decided last."""
        if self._counts == "timeout":
            self._waited = (self._waited + steps - 1) % max(self._timeout, 1)
        elif self._counts == "more":
            self._batched += steps - 1
