"""How long the next steps of an engine take: what matters of what its groups work on, asked of the step times."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from simulator import np
from simulator.model.micro_batch import MicroBatch
from simulator.serving.audit import Audit
from simulator.serving.board import Board
from simulator.serving.group import Group
from simulator.serving.schedulers import DECODING, Plan
from simulator.serving.settings import Instances
from simulator.serving.steps import Load, heaviest
from simulator.serving.uneven import Uneven

Plans = Mapping[int, Plan]
"""Of the groups that had something to decide."""


class StepLengths:
    """Of one engine. audit: step times, which can be others from some step on."""

    def __init__(self, settings: Instances, groups: list[Group], board: Board, audit: Audit) -> None:
        self._settings, self._groups, self._board, self.audit = settings, groups, board, audit
        self._padded = 0  # tokens to which those of every group are padded in the next step

    def with_host(self, steps_s: Any, decoding: Any, plans: Plans) -> Any:
        """What a step takes with its hosts, one to a group: that of the fullest counts."""
        host, requests = self._settings.host, decoding.copy()
        for number, plan in plans.items():
            requests[number] += len(plan.prompts)
        host_s = host.step_ms / 1e3 + host.request_us / 1e6 * int(requests.max())
        return np.maximum(steps_s, host_s) if host.overlapped else steps_s + host_s

    def mixed_s(self, decoding: Any, held: Any, plans: Plans, uneven: Uneven | None) -> Any:
        """One step with prompts."""
        chunks = [[(new, one.computed) for one, new in plan.prompts] for plan in plans.values()]
        new = [sum(count for count, _ in some) for some in chunks]
        pairs = sum(count * (before + count / 2) for some in chunks for count, before in some)
        most = int(decoding.max())
        rows = self._groups[0].growth.queries * decoding
        rows[list(plans)] += new
        self._padded = _fitting(self._settings.capture_prefill, int(rows.max()))
        share = decoding.mean() / most if most else 1.0
        (_, cached), *fewer = heaviest(decoding, held * (decoding > 0), self._board.pace, 1)
        load = Load(most, self._padded, int(cached[0]), share, max(new), pairs / sum(new),
                    sum(new) / len(self._groups) / max(new), uneven,
                    tuple((count, int(tokens[0])) for count, tokens in fewer))  # fmt: skip
        return self.audit.mixed_seconds(load, partial(self._batch, plans))

    def decode_s(self, decoding: Any, held: Any, plans: Plans, most_steps: int, uneven: Uneven | None) -> Any:
        """The steps of a stretch, so many at most."""
        steps = max(min(most_steps, self.audit.steps_together()), 1)
        most = int(decoding.max())
        found = heaviest(decoding, held, self._board.pace, steps)
        (_, cached), *fewer = found
        padded = _fitting(self._settings.capture, most)
        self._padded = self._groups[0].growth.queries * padded
        load = Load(most, padded, int(cached[0]), decoding.mean() / most, experts=uneven,
                    fewer=tuple((count, int(tokens[0])) for count, tokens in fewer))  # fmt: skip
        return self.audit.decode_seconds(load, np.array([tokens for _, tokens in found]), partial(self._batch, plans))

    def _batch(self, plans: Plans) -> list[MicroBatch]:
        """What all groups work on in the next step."""
        return [self._batch_of(number, plans.get(number, DECODING)) for number in range(len(self._groups))]

    def _batch_of(self, number: int, plan: Plan) -> MicroBatch:
        group = self._groups[number]
        behind = int(self._board.steps[number] - self._board.synced[number])
        queries, decoding = group.growth.queries, group.decoding.values() if plan.decode else ()
        decodes = tuple((queries, group.length(one, behind)) for one in decoding)
        prompts = tuple((new, one.computed) for one, new in plan.prompts)
        ends = sum(one.computed + new == one.prompt for one, new in plan.prompts)
        return MicroBatch(0, decodes, prompts, ends, self._padded)


def _fitting(sizes: tuple[int, ...], rows: int) -> int:
    """The size of the captured graph that so many rows run in; 0: none is as large."""
    return next((size for size in sizes if size >= rows), 0)
