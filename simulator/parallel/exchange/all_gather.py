"""AllGather of all tokens of a block of experts before the experts, ReduceScatter of their partial sums behind them.

Every rank computes its experts (or its columns of them) on their rows of all tokens, padded to the fullest rank's.
"""

from __future__ import annotations

from simulator.parallel.border import Form, cross
from simulator.parallel.exchange.task import Exchange, ExpertTask


class AllGather(Exchange):
    """All tokens to all ranks."""

    needs: Form = "own"
    gives: Form = "own"
    by_row = False

    def __init__(self, task: ExpertTask) -> None:
        self._task = task
        self._group = task.npu.group("block")
        self._tokens = max(task.own) * self._group.size

    def dispatch(self) -> None:
        """Tokens and their scales, then the experts that they chose and their weights."""
        task = self._task
        row_bytes = task.model.hidden * task.stack.wire_bytes
        cross(self._group, "dispatch.activations", "own", "all", self._tokens, row_bytes, task.engines)
        scale_bytes = task.stack.scale_bytes
        if scale_bytes:
            cross(self._group, "dispatch.scales", "own", "all", self._tokens, scale_bytes, task.engines)
        cross(self._group, "dispatch.choices", "own", "all", self._tokens, 8 * task.experts.per_token, task.engines)

    def compute(self) -> None:
        """Local experts on their rows of all tokens."""
        task = self._task
        task.launch_experts(self._tokens, task.routed(task.own).rows)

    def combine(self) -> None:
        """Sums of own tokens, BF16."""
        task = self._task
        cross(self._group, "combine.sums", "partial", "own", self._tokens, 2.0 * task.model.hidden, task.engines)
