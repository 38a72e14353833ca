"""No exchange: every rank of a group has all its tokens, computes its experts' share, and an AllReduce sums up.

Tensor-parallel experts (ep=1), whole experts on each rank (ep = ranks), or both. The AllReduce is the border behind it.
"""

from __future__ import annotations

from simulator.errors import InputError
from simulator.parallel.border import Form
from simulator.parallel.exchange.task import ExpertTask, check_places


class AllReduce:
    """Nothing moves before the experts; partial sums behind them."""

    needs: Form = "all"
    gives: Form = "partial"

    def __init__(self, task: ExpertTask) -> None:
        if task.mesh.dp > 1:
            raise InputError(f"exchange all_reduce: dp={task.mesh.dp} groups have tokens of their own; all_gather, "
                             "all_to_all or put_collect bring them to their experts")
        check_places(task, "all_reduce", whole=False)
        self._task = task

    def dispatch(self) -> None:
        """Every rank has them already."""

    def compute(self) -> None:
        """Local experts on their rows of all tokens."""
        task = self._task
        task.launch_experts(task.tokens, lambda _: task.tokens[0])

    def combine(self) -> None:
        """Left to the border."""
