"""No exchange: every rank of a group has all its tokens, computes its experts' share, and an AllReduce sums up.

Tensor-parallel experts (ep=1), whole experts on each rank (ep = ranks), or both. The AllReduce is the border behind it.
"""

from __future__ import annotations

from simulator.errors import InputError
from simulator.parallel.border import Form
from simulator.parallel.exchange.task import Exchange, ExpertTask, check_no_shared_places


class AllReduce(Exchange):
    """Nothing moves before the experts; partial sums behind them."""

    needs: Form = "all"
    gives: Form = "partial"
    by_row = False

    def __init__(self, task: ExpertTask) -> None:
        if task.mesh.dp > 1:
            raise InputError(f"exchange all_reduce: dp={task.mesh.dp} groups have tokens of their own; all_gather, "
                             "all_to_all or put_collect bring them to their experts")
        if task.mesh.replicas > 1:
            raise InputError(f"exchange all_reduce: replicas={task.mesh.replicas} blocks would each give the whole sum")
        check_no_shared_places(task, "all_reduce")
        self._task = task

    def dispatch(self) -> None:
        """Every rank has them already."""

    def compute(self) -> None:
        """Local experts on their rows of all tokens."""
        task = self._task
        task.launch_experts(task.tokens[0], task.routed(task.tokens).rows)

    def combine(self) -> None:
        """Left to the border."""
