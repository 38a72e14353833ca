"""All2All of token copies that their sender has sorted by expert, with their scales as an exchange of its own.

As operators of Ascend's serving stack: a copy of each token for each of its experts in their order, counts, then rows
and scales, which need not wait for each other; every result comes back and is summed where its token is.
"""

from __future__ import annotations

from functools import cache

from simulator.model import ops
from simulator.parallel.border import Form
from simulator.parallel.exchange.task import ExpertTask, check_places
from simulator.program.task import Collective


class SortedRows:
    """Rows to the ranks of their experts."""

    needs: Form = "own"
    gives: Form = "own"

    def __init__(self, task: ExpertTask) -> None:
        check_places(task, "sorted_rows", whole=True)
        self._task, self._group = task, task.npu.group("ep")
        self._tokens, self._copies = max(task.own), max(task.own) * task.experts.per_token

    def dispatch(self) -> None:
        """All of it in one stream."""
        self.announce()
        if self._task.stack.wire_bytes < 2.0:
            self.scales()
        self.activations()

    def announce(self) -> None:
        """Copies in the order of their experts, and how many there are."""
        task, npu, hidden = self._task, self._task.npu, self._task.model.hidden
        npu.launch(ops.cached(ops.copy(4 * self._copies, 4.0)), "gate.sort")  # four passes of a radix sort
        npu.launch(ops.cached(ops.passes(self._tokens * hidden, self._copies * hidden)), "gate.copies")
        size = 4 * task.experts.routed // self._group.size
        self._group.all_to_all("dispatch.counts", size, task.via, task.moving.algorithm)

    def scales(self) -> None:
        """Of each row, FP32."""
        self._send("dispatch.scales", 4)

    def activations(self) -> None:
        """Of each row, as they are sent."""
        self._send("dispatch.activations", round(self._task.model.hidden * self._task.stack.wire_bytes))

    def compute(self) -> None:
        """Own experts on the rows that came."""
        task, rows_of = self._task, self._task.rows_of(self._task.own)
        hidden, wide = task.model.hidden, task.stack.wire_bytes
        task.launch(task.uneven, lambda rank: [
            ("experts.select", ops.cached(ops.copy(sum(rows_of(rank)) * hidden, wide)))
        ])  # fmt: skip
        task.launch_experts(task.own, lambda _: 0)

    def combine(self) -> None:
        """Every row back, and the weighted sum of each token's."""
        hidden = self._task.model.hidden
        self._send("combine.rows", 2 * hidden, back=True)
        self._task.npu.launch(ops.cached(ops.passes(2.0 * self._copies * hidden, 2.0 * self._tokens * hidden)),
                              "finalize.sum")  # fmt: skip

    def _send(self, name: str, row_bytes: int, back: bool = False) -> None:
        """Every rank's rows to where their experts are, or back; with drawn routing as uneven as what arrives."""
        task, group = self._task, self._group
        via, algorithm = task.via, task.moving.algorithm
        if not task.uneven and not task.mesh.shared_places:
            group.all_to_all(name, self._copies * row_bytes // group.size, via, algorithm)
            return

        @cache
        def of_group(number: int) -> Collective:
            sizes = task.routed(task.own, number).sizes(row_bytes)
            return Collective("all_to_all", group.name, via, sizes=tuple(zip(*sizes, strict=True)) if back else sizes,
                              algorithm=algorithm)  # fmt: skip

        task.npu.launch_by_rank(lambda rank: of_group(rank // task.mesh.ranks), name)
