"""Fused kernels that write every row into its expert's rank and wait until all have come, without counts before.

As CloudMatrix384's dispatch and combine, and DeepEP's low-latency kernels: receive buffers have room for the most that
may come, so that no rank needs to know what the others send. What differs is the engine that drives them.
"""

from __future__ import annotations

from functools import cache

from simulator.parallel.border import Form
from simulator.parallel.exchange.all_to_all import check_whole
from simulator.parallel.exchange.task import Exchange, ExpertTask
from simulator.parallel.mesh import coordinates_of
from simulator.program.task import Collective


class PutCollect(Exchange):
    """Rows written straight to where they are needed."""

    needs: Form = "own"
    gives: Form = "own"
    by_row = True

    def __init__(self, task: ExpertTask) -> None:
        check_whole(task, "put_collect")
        self._task = task
        self._group = task.npu.group("ep")
        self._routed = task.routed(task.own)
        self._via = task.via

    def dispatch(self) -> None:
        """Own rows out, those of own experts in."""
        self._move("dispatch", self._task.model.hidden * self._task.stack.wire_bytes)

    def compute(self) -> None:
        """Local experts on the rows that came."""
        self._task.launch_experts(0, self._routed.rows)

    def combine(self) -> None:
        """Results back, BF16."""
        self._move("combine", 2.0 * self._task.model.hidden, back=True)

    def _move(self, name: str, row_bytes: float, back: bool = False) -> None:
        """Write, then wait. What a rank sends to itself does not leave it."""
        task, size = self._task, self._group.size
        rows, own = self._routed.rows, task.own

        @cache
        def put(place: int) -> Collective:
            leaving, arriving = own[place] * task.experts.per_token, sum(rows[place])
            out, into = (arriving, leaving) if back else (leaving, arriving)
            sent, received = (round(count * row_bytes * (size - 1) / size) for count in (out, into))
            return Collective("put", self._group.name, self._via, sent_bytes=sent, received_bytes=received)

        if self._routed.even:
            task.npu.launch(put(0), f"{name}.write")
        else:
            task.npu.launch_by_rank(lambda rank: put(coordinates_of(task.mesh, rank)["place"]), f"{name}.write")
        self._group.collect(f"{name}.arrive", self._via)
