"""AllGather of all tokens of a stage before the experts, ReduceScatter of their partial sums behind them.

Every rank computes its experts (or its columns of them) on their rows of all tokens, padded to the fullest rank's.
"""

from __future__ import annotations

from simulator.parallel.border import Form, cross
from simulator.parallel.exchange.task import ExpertTask, check_places
from simulator.program.rank import Event


class AllGather:
    """All tokens to all ranks."""

    needs: Form = "own"
    gives: Form = "own"

    def __init__(self, task: ExpertTask) -> None:
        check_places(task, "all_gather", whole=False)
        self._task = task
        self._group = task.npu.group("stage")
        self._tokens = max(task.own) * self._group.size

    def dispatch(self) -> None:
        """Tokens with the scales that they were quantised with, then the experts that they chose and their weights."""
        self.activations()
        if self._task.stack.wire_bytes < 2.0:
            self.scales()
        self.choices()

    def activations(self) -> Event | None:
        """Hidden states, as they are sent."""
        return self._gather("activations", self._task.model.hidden * self._task.stack.wire_bytes)

    def scales(self) -> Event | None:
        """One of each token, FP32."""
        return self._gather("scales", 4.0)

    def choices(self) -> Event | None:
        """The experts of each token and their weights."""
        return self._gather("choices", 8.0 * self._task.experts.per_token)

    def compute(self) -> None:
        """Local experts on their rows of all tokens."""
        self._task.launch_experts(self._task.own, lambda _: self._tokens)

    def combine(self) -> None:
        """Sums of own tokens, BF16."""
        task = self._task
        cross(self._group, "combine.sums", "partial", "own", self._tokens, 2.0 * task.model.hidden, task.moving)

    def _gather(self, what: str, row_bytes: float) -> Event | None:
        return cross(self._group, f"dispatch.{what}", "own", "all", self._tokens, row_bytes, self._task.moving)
