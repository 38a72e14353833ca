"""Fused kernels that write every row into its expert's rank and wait until all have come, without counts before.

As CloudMatrix384's dispatch and combine, and DeepEP's low-latency kernels: receive buffers have room for the most that
may come, so that no rank needs to know what the others send. What differs is the engine that drives them.
"""

from __future__ import annotations

from functools import cache

from simulator.parallel.border import Form
from simulator.parallel.exchange.task import ExpertTask, check_places
from simulator.parallel.mesh import place_of
from simulator.program.task import Collective


class PutCollect:
    """Rows written straight to where they are needed."""

    needs: Form = "own"
    gives: Form = "own"

    def __init__(self, task: ExpertTask) -> None:
        check_places(task, "put_collect", whole=True)
        self._task = task
        self._group = task.npu.group("ep")

    def dispatch(self) -> None:
        """Own rows out, those of own experts in."""
        task = self._task
        self._move("dispatch", task.via, task.model.hidden * task.stack.wire_bytes + task.settings.slot_bytes)

    def compute(self) -> None:
        """Local experts on the rows that came, where they lie."""
        self._task.launch_experts(self._task.own, lambda _: 0)

    def combine(self) -> None:
        """Results back, BF16, and summed up."""
        task = self._task
        self._move("combine", task.settings.combine_engine or task.via, 2.0 * task.model.hidden, back=True)

    def _move(self, name: str, via: str, row_bytes: float, back: bool = False) -> None:
        """Write, then wait. What a rank sends to itself does not leave it."""
        task, size, own = self._task, self._group.size, self._task.own
        rows_of = task.rows_of(own)

        @cache
        def put(leaving: int, arriving: int) -> list[tuple[str, Collective]]:
            ends = (arriving, leaving) if back else (leaving, arriving)
            sent, received = (int(count * row_bytes) * (size - 1) // size for count in ends)
            work = Collective("put", self._group.name, via, sent_bytes=sent, received_bytes=received)
            return [(f"{name}.write", work)]

        def of_rank(rank: int) -> list[tuple[str, Collective]]:
            return put(own[place_of(task.mesh, rank)] * task.copies, sum(rows_of(rank)))

        task.launch(task.uneven, of_rank)
        self._group.collect(f"{name}.arrive", via)
