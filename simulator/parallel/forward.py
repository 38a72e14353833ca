"""A forward pass of one rank through its layers: the verbs that schedules are written in.

A verb puts one piece of one micro-batch into the current stream: the kernels that the stack makes of it on this rank's
shard, and the collective that a border between two placements needs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from simulator.model.transformer import Dense, Experts, Layer
from simulator.parallel.attention import AttentionPieces
from simulator.parallel.border import cross
from simulator.parallel.exchange.task import Exchange, ExpertTask, fused
from simulator.parallel.exchange.ways import exchange_of
from simulator.parallel.tokens import Tokens

SHARED = "shared"


class Forward(AttentionPieces):
    """One pass of some micro-batches: attention, feed-forward, and what stands before and behind the layers."""

    attends = True  # whether the rank has tokens, and not experts alone

    def attend(self, tokens: Tokens) -> None:
        """What the layer before left; then norm, projections, attention of this rank's heads, output projection."""
        self.finalize(tokens)
        super().attend(tokens)

    def feed_forward(self, tokens: Tokens, layer: Layer) -> None:
        """The whole of it in the current stream."""
        if isinstance(layer.feed_forward, Dense):
            self.dense(tokens)
            self.reduce(tokens)
            return
        self.route(tokens)
        self.dispatch(tokens)
        self.shared(tokens)
        self.experts(tokens)
        self.combine(tokens)
        self.finalize(tokens)

    def dense(self, tokens: Tokens) -> None:
        """Norm and a dense FFN, by the ranks that split it."""
        with self._of(tokens):
            ffn = self._layer.feed_forward
            assert isinstance(ffn, Dense)
            if self.mesh.split("dense") == 1:
                self._cross(tokens, "dense.own", "own", self._row_bytes)
            self._norm(tokens, "dense")
            self._split("dense", tokens, partial(self.stack.dense, self.model, ffn))
            tokens.block = "ffn"

    def route(self, tokens: Tokens) -> None:
        """Norm, router and top-k."""
        self.norm_experts(tokens)
        self.choose(tokens)

    def norm_experts(self, tokens: Tokens) -> None:
        """The norm before router and experts, and tokens in the form that their exchange needs."""
        with self._of(tokens):
            self._norm(tokens, "gate")
            self._cross(tokens, "gate.gather", self._enter(tokens).needs, self._gather_bytes())

    def _enter(self, tokens: Tokens) -> Exchange:
        """The exchange with the present layer's experts."""
        tokens.exchange = exchange_of(self.task(tokens, self._experts, self._number))
        tokens.experts, tokens.layer, tokens.block, tokens.computed = self._experts, self._number, "ffn", 0
        return tokens.exchange

    def choose(self, tokens: Tokens, ranks: int = 1) -> None:
        """Router and top-k of own tokens, or of those of so many ranks; then own tokens as they are sent."""
        with self._of(tokens):
            model, experts, held = self.model, self._experts, self._held(tokens)
            self.launch(self.stack.route(model, experts, ranks * held))
            by_row = tokens.routed.by_row
            self.launch(self.stack.to_rows(model, experts, held) if by_row else self.stack.pack(model, held, "gate"))

    def shared(self, tokens: Tokens) -> None:
        """The shared expert on what the router had; it waits for no exchange, unless it has ranks of its own."""
        if self.mesh.shared_places:
            return
        with self.npu.scope(micro_batch=self._label(tokens)):
            form = tokens.form
            self._split("shared", tokens, partial(self.stack.shared, self.model, self._unfused(self._experts)))
            if tokens.form == "partial" and tokens.routed.gives == "own":
                self._cross(tokens, "shared.reduce_scatter", "own", self._row_bytes)
            tokens.form = form
            self._add(tokens)

    def shared_beside(self, tokens: Tokens) -> None:
        """The same in a stream of its own; what adds up both waits for it."""
        tokens.beside = self.aside(SHARED, self.npu.record(), lambda: self.shared(tokens))

    def dispatch(self, tokens: Tokens) -> None:
        """Tokens to their experts."""
        with self._of(tokens):
            tokens.routed.dispatch()

    def experts(self, tokens: Tokens) -> None:
        """The local experts on the tokens that they have."""
        with self._of(tokens):
            exchange = tokens.routed
            exchange.arrive()
            exchange.compute()
            self._add(tokens)

    def _add(self, tokens: Tokens) -> None:
        """Where sums are partial, the routed and the shared expert's are added once both are there."""
        tokens.computed += 1
        exchange = tokens.routed
        if tokens.computed == 2:
            self._wait_beside(tokens)
        if tokens.computed == 2 and exchange.gives == "partial":
            self.launch(self.stack.finalize(self.model, self._unfused(self._experts), tokens.batch.tokens,
                                            exchange.by_row))

    def combine(self, tokens: Tokens) -> None:
        """Results back to their tokens."""
        with self._of(tokens):
            exchange = tokens.routed
            if self.ahead and exchange.gives == "own":
                self.ahead(tokens)
            exchange.combine()
            if exchange.gives == "partial":
                tokens.form = "partial" if self.mesh.tensor > 1 else "all"
                self._reduce(tokens)
                tokens.exchange = None

    def finalize(self, tokens: Tokens) -> None:
        """Results summed where their tokens are, with the shared expert's; nothing where that is done."""
        if tokens.exchange is None or tokens.experts is None:
            return
        with self.npu.scope(layer=tokens.layer), self._of(tokens):
            tokens.exchange.collect()
            self._wait_beside(tokens)
            by_row = tokens.exchange.by_row
            self.launch(self.stack.finalize(self.model, self._unfused(tokens.experts), self._held(tokens), by_row))
            self._reduce(tokens)
            tokens.exchange = None

    def _wait_beside(self, tokens: Tokens) -> None:
        if tokens.beside is not None:
            self.npu.wait(tokens.beside)
            tokens.beside = None

    def task(self, tokens: Tokens, experts: Experts, layer: int) -> ExpertTask:
        """What an exchange of these experts has to know."""
        return ExpertTask(self.npu, self.stack, self.model, experts, self.mesh, self.engines, self._exchanges, layer,
                          tokens.batch.number, tokens.of_groups, self._label(tokens))  # fmt: skip

    @property
    def _experts(self) -> Experts:
        ffn = self._layer.feed_forward
        assert isinstance(ffn, Experts)
        return ffn

    def _unfused(self, experts: Experts) -> Experts:
        """Without the shared expert where it is a choice more of every token."""
        chosen = self.mesh.shared_places or fused(self.stack, self.mesh)
        return replace(experts, shared_intermediate=0) if chosen else experts

    # --- before and behind the layers --------------------------------------------------------------------------------

    def embed(self, tokens: Tokens) -> None:
        """Rows of the embedding, by the ranks that split it."""
        with self._of(tokens):
            shards, tensor = self.mesh.split("embedding"), self.mesh.tensor
            together = max(tokens.of_groups) * shards if shards > tensor else tokens.batch.tokens
            self.launch(self.stack.embed(self.model, together, shards))
            if shards > tensor:  # every neighbour knows the tokens of all
                cross(self.npu.group("embedding"), "embedding.reduce_scatter", "partial", "own", together,
                      self._row_bytes, self.engines)  # fmt: skip
            tokens.form = "partial" if shards == tensor > 1 else "all"
            self._reduce(tokens)

    def head(self, tokens: Tokens) -> None:
        """Last norm, logits of the rows that are sampled, by the ranks that split the vocabulary, and the sampling."""
        self.finalize(tokens)
        with self._of(tokens):
            split, model = self.mesh.split("head"), self.model
            others = tokens.sampled if split > self.mesh.tensor else 0  # neighbours pad to the most
            rows = max(others, tokens.batch.sampled)
            self._cross(tokens, "head.gather", "all", self._row_bytes)
            if not rows:
                return
            self.launch(self.stack.norm(model, rows, "head"))
            group, together = self.npu.group("head"), rows
            if split > self.mesh.tensor:
                together = rows * split
                cross(group, "head.gather", "own", "all", together, self._row_bytes, self.engines)
            self.launch(self.stack.head(model, together, split))
            candidates = model.vocabulary * rows
            if best := self.stack.best(model, together, split) if split > 1 else []:
                candidates = split * together
                self.launch(best)
                cross(group, "head.gather_best", "heads", "all", together, 8.0 * split, self.engines)
            else:
                cross(group, "head.gather_logits", "heads", "all", together, 2.0 * model.vocabulary, self.engines)
            self.launch(self.stack.sample(model, rows, candidates))

    def project(self, tokens: Tokens) -> None:
        """Into a draft layer: the sampled tokens' embedding beside the hidden state."""
        self.embed(tokens)
        with self._of(tokens):
            self.launch(self.stack.project(self.model, tokens.batch.tokens))
