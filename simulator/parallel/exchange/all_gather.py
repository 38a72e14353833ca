"""AllGather of all tokens of a block of experts before the experts, ReduceScatter of their partial sums behind them.

Every rank computes its experts (or its columns of them) on their rows of all tokens, padded to the fullest rank's.
"""

from __future__ import annotations

from simulator.parallel.border import Form, cross
from simulator.parallel.exchange.task import Exchange, ExpertTask, check_no_shared_places


class AllGather(Exchange):
    """All tokens to all ranks."""

    needs: Form = "own"
    gives: Form = "own"
    by_row = False

    def __init__(self, task: ExpertTask) -> None:
        check_no_shared_places(task, "all_gather")
        self._task = task
        self._group = task.npu.group("block")
        self._tokens = max(task.own) * self._group.size

    def dispatch(self) -> None:
        """Tokens and their scales, then the experts that they chose and their weights; or all of it in one call."""
        if self._task.stack.gathers_at_once:
            self._gather("tokens", self._token_bytes + self._task.stack.scale_bytes + self._choice_bytes)
            return
        self.activations()
        if self._task.stack.scale_bytes:
            self.scales()
        self.choices()

    def activations(self) -> None:
        """Hidden states, as they are sent."""
        self._gather("activations", self._token_bytes)

    def scales(self) -> None:
        """Those that they were quantised with."""
        self._gather("scales", self._task.stack.scale_bytes)

    def choices(self) -> None:
        """The experts of each token and their weights."""
        self._gather("choices", self._choice_bytes)

    @property
    def _token_bytes(self) -> float:
        return self._task.model.hidden * self._task.stack.wire_bytes

    @property
    def _choice_bytes(self) -> float:
        return 8.0 * self._task.experts.per_token

    def _gather(self, what: str, row_bytes: float) -> None:
        cross(self._group, f"dispatch.{what}", "own", "all", self._tokens, row_bytes, self._task.moving)

    def compute(self) -> None:
        """Local experts on their rows of all tokens."""
        task = self._task
        task.launch_experts(self._tokens, task.routed(task.own).rows)

    def combine(self) -> None:
        """Sums of own tokens, BF16."""
        task = self._task
        cross(self._group, "combine.sums", "partial", "own", self._tokens, 2.0 * task.model.hidden, task.moving)
