"""Forward passes where attention and routed experts are on ranks of their own (`apart` ranks of a mesh).

All record the same schedule. A verb of which a rank has no part launches nothing there, and leaves what the micro-batch
waits for as it is; in dispatch and combine the two meet. all_to_all has a table of what each sends to each; with
put_collect those who send go on at once; deepep_ll posts a write a row. Neighbours that split each expert get equal
shares of its rows, gather them, and scatter the sums.

Worked example, decode of Qwen3-30B-A3B on 8 H200, 3072 requests of 1024 tokens, dp=6, ep=2, apart=2, all_to_all: one
micro-batch takes 54.7 ms, as attention, experts and the way between them follow each other. Two in `ping_pong` take
35.6 ms; three 37.8 ms, since each of them reads the weights of all experts again.
"""

from __future__ import annotations

from simulator.parallel.forward import Forward
from simulator.parallel.mesh import Mesh
from simulator.parallel.tokens import Tokens
from simulator.program.rank import Rank


def pass_of(npu: Rank, mesh: Mesh) -> type[Forward]:
    """The kind of pass of this rank."""
    return {"attention": AttentionPass, "experts": ExpertPass}[str(npu.coordinate("role"))] if mesh.apart else Forward


class AttentionPass(Forward):
    """Everything but the routed experts."""

    def experts(self, tokens: Tokens) -> None:
        """Elsewhere."""


class ExpertPass(Forward):
    """Nothing but the routed experts."""

    attends = False

    def attend(self, tokens: Tokens) -> None:
        """Elsewhere, as all that follows but dispatch, experts and combine."""

    def reduce(self, tokens: Tokens) -> None:
        """Elsewhere."""

    def dense(self, tokens: Tokens) -> None:
        """Elsewhere."""

    def norm_experts(self, tokens: Tokens) -> None:
        """Elsewhere; the exchange of this layer is the same."""
        self._enter(tokens)

    def choose(self, tokens: Tokens, ranks: int = 1) -> None:
        """Elsewhere."""

    def shared(self, tokens: Tokens) -> None:
        """Elsewhere."""

    def shared_beside(self, tokens: Tokens) -> None:
        """Elsewhere."""

    def combine(self, tokens: Tokens) -> None:
        """Results to their tokens; nothing comes here."""
        with self._of(tokens):
            tokens.routed.combine()

    def finalize(self, tokens: Tokens) -> None:
        """Elsewhere."""

    def embed(self, tokens: Tokens) -> None:
        """Elsewhere."""

    def head(self, tokens: Tokens) -> None:
        """Elsewhere."""

    def project(self, tokens: Tokens) -> None:
        """Elsewhere."""
