"""All2All of token copies that their sender has sorted by expert, with their scales as an exchange of its own.

As operators of Ascend's serving stack: a copy of each token for each of its experts in their order, counts, then rows
and scales, which need not wait for each other; every result comes back and is summed where its token is.
"""

from __future__ import annotations

from simulator.model import ops
from simulator.parallel.border import Form
from simulator.parallel.exchange.all_to_all import check_whole
from simulator.parallel.exchange.task import Exchange, ExpertTask


class SortedRows(Exchange):
    """Rows to the ranks of their experts."""

    needs: Form = "own"
    gives: Form = "own"
    by_row = False  # what sorts and sums is of this way

    def __init__(self, task: ExpertTask) -> None:
        check_whole(task, "sorted_rows")
        self._task, self._group = task, task.npu.group("ep")
        self._tokens, self._copies = max(task.own), max(task.own) * task.experts.per_token

    def dispatch(self) -> None:
        """All of it in one stream."""
        self.announce()
        if self._task.stack.scale_bytes:
            self.scales()
        self.activations()

    def announce(self) -> None:
        """Copies in the order of their experts, and how many there are."""
        task, npu, hidden = self._task, self._task.npu, self._task.model.hidden
        npu.launch(ops.cached(ops.copy(4 * self._copies, 4.0)), "gate.sort")  # four passes of a radix sort
        npu.launch(ops.cached(ops.passes(self._tokens * hidden, self._copies * hidden)), "gate.copies")
        size = 4 * task.experts.routed // self._group.size
        self._group.all_to_all("dispatch.counts", size, task.via, task.of_rows)

    def scales(self) -> None:
        """Of each row."""
        self._send("dispatch.scales", round(self._task.stack.scale_bytes))

    def activations(self) -> None:
        """Of each row, as they are sent."""
        self._send("dispatch.activations", round(self._task.model.hidden * self._task.stack.wire_bytes))

    def compute(self) -> None:
        """Own experts on the rows that came."""
        task, routed = self._task, self._task.routed(self._task.own)
        hidden, wide = task.model.hidden, task.stack.wire_bytes
        task.launch(not routed.even, lambda place: [
            ("experts.select", ops.cached(ops.copy(sum(routed.rows[place]) * hidden, wide)))
        ])  # fmt: skip
        task.launch_experts(0, routed.rows)

    def combine(self) -> None:
        """Every row back, and the weighted sum of each token's."""
        hidden = self._task.model.hidden
        self._send("combine.rows", 2 * hidden, back=True)
        self._task.npu.launch(ops.cached(ops.passes(2.0 * self._copies * hidden, 2.0 * self._tokens * hidden)),
                              "finalize.sum")  # fmt: skip

    def _send(self, name: str, row_bytes: int, back: bool = False) -> None:
        """Every rank's rows to where their experts are, or back; with drawn routing as uneven as what arrives."""
        task, group = self._task, self._group
        via, algorithm = task.via, task.of_rows
        routed = task.routed(task.own)
        if routed.even and not task.mesh.shared_places:
            group.all_to_all(name, self._copies * row_bytes // group.size, via, algorithm)
            return

        sizes = routed.sizes(row_bytes)
        table = tuple(zip(*sizes, strict=True)) if back else sizes
        group.all_to_all_uneven(name, table, via, algorithm)
