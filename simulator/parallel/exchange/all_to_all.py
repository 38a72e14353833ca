"""All2All with counts: each token goes once to every expert that it chose, and each result comes back by itself.

Counts are exchanged first, so that receivers know what comes; then tokens with their scales, in what the stack sends;
results come back in BF16 and are summed where the token came from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from simulator.parallel.border import Form
from simulator.parallel.exchange.task import ExpertTask, check_places
from simulator.program.task import Collective, SizeTable


class AllToAll:
    """Rows to the ranks of their experts."""

    needs: Form = "own"
    gives: Form = "own"

    def __init__(self, task: ExpertTask) -> None:
        check_places(task, "all_to_all", whole=True)
        self._task = task
        self._group = task.npu.group("ep")
        self._routed = task.routed(task.own)
        self._via = task.via

    def dispatch(self) -> None:
        """Counts of every expert, then its rows."""
        task, slots = self._task, len(self._routed.rows[0])
        self._group.all_to_all("dispatch.counts", 4 * slots, self._via)
        self._exchange("dispatch.tokens", task.model.hidden * task.stack.wire_bytes)

    def compute(self) -> None:
        """Local experts on the rows that came."""
        self._task.launch_experts(self._task.own, lambda rows: rows)

    def combine(self) -> None:
        """Every row back, BF16."""
        self._exchange("combine.tokens", 2.0 * self._task.model.hidden, back=True)

    def _exchange(self, name: str, row_bytes: float, back: bool = False) -> None:
        sizes = self._routed.sizes(row_bytes)
        if self._routed.even and not self._task.mesh.shared_places:
            self._group.all_to_all(name, sizes[0][0], self._via)
            return
        table: Callable[[], SizeTable] = cache(lambda: tuple(zip(*sizes, strict=True)) if back else sizes)
        self._task.npu.launch(Collective("all_to_all", self._group.name, self._via, sizes=table()), name)

