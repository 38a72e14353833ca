"""A pipeline, forward only: micro-batches through stages of neighbouring layers, as many at a time as there are stages.

    stage 0  a | b | . | a' | b'       a token that the last stage samples goes back to the first one
    stage 1    | a | b | .  | a' | b'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.model.micro_batch import MicroBatch
from simulator.parallel.border import cross
from simulator.parallel.forward import Forward
from simulator.parallel.tokens import Tokens, tokens_of


@dataclass(frozen=True)
class Stage:
    """A stage on one rank. number: of it. step: the pass through its layers. residual_split: between pieces, and so
    between stages, a rank has a share of the tokens; else it gathers those of its tensor-parallel group."""

    number: int
    step: Forward
    residual_split: bool

    @property
    def last(self) -> int:
        """Number of the last stage."""
        return self.step.mesh.pp - 1

    def run(self, groups: Sequence[MicroBatch], group: int, parts: int, rounds: int, order: Callable[..., None],
            behind: Callable[[Sequence[Tokens]], None]) -> None:
        """All that is on its way, round after round. parts: micro-batches that `order` takes; behind: what follows the
        head."""
        step, first, last = self.step, self.number == 0, self.number == self.last
        for turn in range(rounds):
            for together in in_flight(groups, group, parts, step.mesh.pp):
                if not first:
                    self._receive_hidden(together)
                else:
                    if turn:
                        self._message("pipeline.sampled", self.last, _sampled_bytes(together), sends=False)
                    for one in together:
                        step.embed(one)
                order(step, *together)
                for one in together:
                    (step.head if last else step.finalize)(one)
                if not last:
                    self._message("pipeline.hidden", self.number + 1, self._share_bytes(together), sends=True)
                    continue
                behind(together)
                if turn < rounds - 1:
                    self._message("pipeline.sampled", 0, _sampled_bytes(together), sends=True)

    def _receive_hidden(self, together: Sequence[Tokens]) -> None:
        """This rank's share of the hidden states from its counterpart, then those of its tensor-parallel group."""
        if not self.step.attends:
            return
        self._message("pipeline.hidden", self.number - 1, self._share_bytes(together), sends=False)
        if self.residual_split:
            for one in together:
                one.form = "own"
            return
        count, row_bytes = sum(one.batch.tokens for one in together), 2.0 * self.step.model.hidden
        cross(self.step.npu.group("tensor"), "pipeline.gather", "own", "all", count, row_bytes, self.step.engines)

    def _share_bytes(self, together: Sequence[Tokens]) -> int:
        hidden, ranks = self.step.model.hidden, self.step.mesh.tensor
        return sum(2 * hidden * -(-one.batch.tokens // ranks) for one in together)

    def _message(self, name: str, peer: int, size_bytes: int, sends: bool) -> None:
        """To or from a counterpart that has tokens too: sends go beside what follows, which waits for a receipt."""
        if not self.step.attends:
            return
        npu = self.step.npu
        pipe, before = npu.group("pipe"), npu.record()
        with npu.stream("send" if sends else "receive"):
            if sends:
                npu.wait(before)
            moved = (pipe.send if sends else pipe.recv)(name, peer, size_bytes, self.step.engines.engine)
        if not sends:
            npu.wait(moved)


def in_flight(groups: Sequence[MicroBatch], group: int, parts: int, stages: int) -> list[list[Tokens]]:
    """What is on its way through a pipeline: one a stage, each in `parts` micro-batches, as far as every data-parallel
    group has requests, or prompt tokens, for them."""
    least = min(len(one.decodes) or sum(new for new, _ in one.prompts) for one in groups)
    cut = tokens_of(groups, parts * max(min(stages, least // parts), 1), group)
    return [cut[first : first + parts] for first in range(0, len(cut), parts)]


def _sampled_bytes(together: Sequence[Tokens]) -> int:
    return 8 * sum(one.batch.sampled for one in together)
