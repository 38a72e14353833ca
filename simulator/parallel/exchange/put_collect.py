"""Fused kernels that write every row into its expert's rank and wait until all have come, without counts before.

As CloudMatrix384's dispatch and combine, and DeepEP's low-latency kernels: receive buffers have room for the most that
may come, so that no rank needs to know what the others send. What differs is the engine that drives them.
"""

from __future__ import annotations

from functools import cache

from simulator.errors import InputError
from simulator.parallel.border import Form
from simulator.parallel.exchange.all_to_all import check_whole
from simulator.parallel.exchange.task import Exchange, ExpertTask
from simulator.program.task import Collective


class PutCollect(Exchange):
    """Rows written straight to where they are needed."""

    needs: Form = "own"
    gives: Form = "own"
    by_row = True
    apart = True

    def __init__(self, task: ExpertTask) -> None:
        check_whole(task, "put_collect")
        check_ports(task)
        self._task = task
        self._group = task.npu.group("ep")

    def dispatch(self) -> None:
        """Own rows out, those of own experts in."""
        task = self._task
        self._move("dispatch", task.via, task.model.hidden * task.stack.wire_bytes + task.settings.slot_bytes)

    def compute(self) -> None:
        """Local experts on the rows that came."""
        self._task.launch_experts(0, self._task.routed(self._task.own).rows)

    def combine(self) -> None:
        """Results back, BF16."""
        task = self._task
        self._move("combine", task.settings.combine_engine or task.via, 2.0 * task.model.hidden, back=True)

    def _move(self, name: str, via: str, row_bytes: float, back: bool = False) -> None:
        """Write, then wait. What a rank sends to itself does not leave it."""
        task, size, own = self._task, self._group.size, self._task.own
        if task.mesh.apart:
            self._move_apart(name, via, row_bytes, back)
            return
        routed = task.routed(own)

        @cache
        def move(place: int) -> list[tuple[str, Collective]]:
            leaving, arriving = own[place] * task.copies, sum(routed.rows[place])
            ends = (arriving, leaving) if back else (leaving, arriving)
            sent, received = (int(count * row_bytes) * (size - 1) // size for count in ends)
            group = self._group.name
            work = Collective("put", group, via, sent_bytes=sent, received_bytes=received, rows=ends[0])
            return [(f"{name}.write", work), (f"{name}.arrive", Collective("collect", group, via, rows=ends[1]))]

        task.launch(not routed.even, move)

    def _move_apart(self, name: str, via: str, row_bytes: float, back: bool) -> None:
        """Those of one role write and go on; those of the other wait for all of them."""
        task, npu, mesh = self._task, self._task.npu, self._task.mesh
        sends, group = (npu.coordinate("role") == "attention") != back, npu.group("back" if back else "ep")
        table = task.table(task.routed(task.own).sizes(1.0))
        rows = [sum(out) + sum(into) for out, into in zip(table, zip(*table, strict=True), strict=True)]

        @cache
        def put(member: int) -> Collective:
            size, count = int(rows[member] * row_bytes), rows[member] * sends
            return Collective("put", group.name, via, sent_bytes=size * sends, received_bytes=size * (not sends),
                              rows=int(count))  # fmt: skip

        npu.launch_by_rank(lambda rank: put(rank % mesh.stage), f"{name}.write")
        if not sends:
            npu.launch_by_rank(lambda rank: Collective("collect", group.name, via, rows=int(rows[rank % mesh.stage])),
                               f"{name}.arrive")


def check_ports(task: ExpertTask) -> None:
    """InputError where bytes that go to ranks of experts alone would be spread over ports that do not lead there."""
    mesh, reached = task.mesh, task.settings.ported
    if mesh.apart and mesh.ranks > reached and reached % mesh.block:
        raise InputError(f"exchange put_collect: apart={mesh.apart}: {mesh.block} ranks of a stage reach each other "
                         f"through several ports each, which it loads evenly; as many as divide {reached} have one "
                         "each, and all_to_all and deepep_ll load those that lead to the experts")
