"""All2All with counts: each token goes once to every expert that it chose, and each result comes back by itself.

Counts are exchanged first, so that receivers know what comes; then tokens with their scales, in what the stack sends;
results come back in BF16 and are summed where the token came from.
"""

from __future__ import annotations

from simulator.errors import InputError
from simulator.parallel.border import Form
from simulator.parallel.exchange.task import Exchange, ExpertTask
from simulator.program.task import Collective, SizeTable


class AllToAll(Exchange):
    """Rows to the ranks of their experts."""

    needs: Form = "own"
    gives: Form = "own"
    by_row = True
    apart = True

    def __init__(self, task: ExpertTask) -> None:
        check_whole(task, "all_to_all")
        self._task = task
        self._group = task.npu.group("ep")
        self._routed = task.routed(task.own)
        self._via = task.via

    def dispatch(self) -> None:
        """Counts of every expert, then (once the host has read their sums, where it does) its rows, and their scales
        where they go by themselves."""
        task, stack, slots = self._task, self._task.stack, len(self._routed.rows[0])
        if task.mesh.apart:
            self._uneven("dispatch.counts", ((4 * slots,) * task.mesh.ep,) * task.mesh.attending)
        else:
            self._group.all_to_all("dispatch.counts", 4 * slots, self._via, task.of_rows)
        if task.settings.host_reads:
            for name, work in stack.split_sizes(task.experts):
                task.npu.launch(work, name)
            task.npu.host_wait(task.npu.record(), reads=task.settings.host_reads)
        self._exchange("dispatch.tokens", task.model.hidden * stack.wire_bytes)
        if stack.scale_bytes:
            self._exchange("dispatch.scales", stack.scale_bytes)

    def compute(self) -> None:
        """Local experts on the rows that came."""
        self._task.launch_experts(0, self._routed.rows)

    def combine(self) -> None:
        """Every row back, BF16."""
        self._exchange("combine.tokens", 2.0 * self._task.model.hidden, back=True)

    def _exchange(self, name: str, row_bytes: float, back: bool = False) -> None:
        sizes, mesh = self._routed.sizes(row_bytes), self._task.mesh
        if self._routed.even and not (mesh.shared_places or mesh.apart):
            self._group.all_to_all(name, sizes[0][0], self._via, self._task.of_rows)
            return
        self._uneven(name, sizes, back)

    def _uneven(self, name: str, sizes: SizeTable, back: bool = False) -> None:
        """From every source to every place, or back."""
        table = self._task.table(sizes)
        table = tuple(zip(*table, strict=True)) if back else table
        self._task.npu.launch(
            Collective("all_to_all", self._group.name, self._via, sizes=table, algorithm=self._task.of_rows), name)


def check_whole(task: ExpertTask, name: str) -> None:
    """InputError where experts are split: rows are exchanged between ranks with whole ones."""
    if task.mesh.expert_tensor > 1 and not task.mesh.apart:
        raise InputError(f"exchange {name}: ep={task.mesh.ep} leaves {task.mesh.expert_tensor} ranks to split each "
                         f"expert; with ep={task.mesh.block} all have whole ones (all_gather and all_reduce take both)")
