"""Attention as a piece: projections, heads, output projection, by the ranks that each of them is split over."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from simulator.model.transformer import Attention, Latent
from simulator.parallel.border import cross
from simulator.parallel.pieces import Pieces
from simulator.parallel.tokens import Tokens
from simulator.stack.gpu import value_dim
from simulator.stack.stacks import labelled


class AttentionPieces(Pieces):
    """Those of a layer's attention, which `attend` puts in order; a figure may put them in streams one by one."""

    def attend(self, tokens: Tokens) -> None:
        """Norm, projections, attention of this rank's heads, output projection."""
        self.project_in(tokens)
        self.gather_latents(tokens)
        self.attend_heads(tokens)
        self.project_back(tokens)

    def project_in(self, tokens: Tokens) -> None:
        """Norm, and hidden states to queries, keys and values, or to latents; of a share of the tokens hidden states
        are gathered first, where latents are not (`gathers_latents`)."""
        with self._of(tokens):
            attention = self._layer.attention
            tokens.block = "attention"
            for technique in self._techniques:
                technique.before("attention")
            self._norm(tokens, "attention")
            if self._has_latents(tokens):
                self.launch(self.stack.inputs(self.model, attention, self._held(tokens), self.mesh.tp, False))
                return
            packed = self._gather(tokens, "attention")
            self.launch(self.stack.inputs(self.model, attention, tokens.batch.tokens, self.mesh.tp, packed))

    def gather_latents(self, tokens: Tokens) -> None:
        """Latents of own tokens to all ranks of the group; nothing where hidden states were gathered."""
        if not self._has_latents(tokens):
            return
        with self._of(tokens):
            attention = self._layer.attention
            assert isinstance(attention, Latent)
            for name, values in self.stack.latents(attention):
                cross(self.npu.group("tensor"), name, "own", "all", tokens.batch.tokens, 2.0 * values, self.engines)
            tokens.form = "all"

    def attend_heads(self, tokens: Tokens) -> None:
        """Attention of this rank's heads."""
        with self._of(tokens):
            attention = self._layer.attention
            self._attend(attention, tokens)
            if self.mesh.cp > 1:
                self._merge(attention, tokens)

    def project_back(self, tokens: Tokens) -> None:
        """The output projection, by the ranks that split it."""
        self.heads_to_tokens(tokens)
        with self._of(tokens):
            self._project_back(self._layer.attention, tokens)

    def heads_to_tokens(self, tokens: Tokens) -> None:
        """Where fewer ranks split the output projection than heads: each gets heads of its neighbours for fewer tokens;
        nothing where it has them."""
        split, tensor, attention = self.mesh.split("o_proj"), self.mesh.tensor, self._layer.attention
        if split >= tensor or tokens.form == "own":
            return
        with self._of(tokens):
            tokens.form = "own"
            whole, width = self._held(tokens) * tensor, 2.0 * attention.heads * value_dim(attention)
            cross(self.npu.group("heads"), "attention.heads_to_tokens", "heads", "own", whole, width / split,
                  self.engines)  # fmt: skip

    def _has_latents(self, tokens: Tokens) -> bool:
        """Whether own tokens are projected to latents before they are gathered."""
        attention = self._layer.attention
        latent = isinstance(attention, Latent) and attention.q_lora > 0
        return latent and self._gathers_latents and tokens.form == "own"

    def _attend(self, attention: Attention, tokens: Tokens) -> None:
        """Kernels of the own heads, by rank where one recording serves groups of uneven contexts."""
        mesh, number, groups = self.mesh, self._number, tokens.batches
        make = partial(self.stack.attend, self.model, attention, tp=mesh.tp, cp=mesh.cp)
        if len(set(groups)) < 2:
            self.launch(make(tokens.batch))
            return
        key = tokens.batch.number, attention
        if key not in self._by_batch:
            self._by_batch[key] = {batch: make(batch) for batch in dict.fromkeys(groups)}
        own = {batch: labelled(kernels, number) for batch, kernels in self._by_batch[key].items()}
        works = [own[batch] for batch in groups]
        self.npu.launch_all_by_rank(lambda rank: works[rank % mesh.stage // mesh.tensor])

    def _merge(self, attention: Attention, tokens: Tokens) -> None:
        """From results of all its heads, partial over own keys in decode and whole for own queries of prompts, to those
        of fewer heads for all tokens."""
        cp, heads, width = self.mesh.cp, attention.heads // self.mesh.tp, value_dim(attention)
        decoding = sum(queries for queries, _ in tokens.batch.decodes)
        prompts = sum(new for new, _ in tokens.batch.prompts)
        partial_bytes = decoding * heads * (2.0 * width + 4.0)  # BF16, and an FP32 sum of exponentials for each head
        size = partial_bytes + prompts / cp * heads * 2.0 * width
        self.npu.group("cp").all_to_all("attention.merge", round(size / cp), self.engines.engine)
        self.launch(self.stack.merge(decoding, heads // cp * width, cp))

    def _project_back(self, attention: Attention, tokens: Tokens) -> None:
        """By those with the same heads; by fewer, each for fewer tokens, of which it has all heads; by more, each takes
        tokens of its neighbours for fewer heads."""
        split, tensor, count = self.mesh.split("o_proj"), self.mesh.tensor, tokens.batch.tokens
        group = self.npu.group("o_proj")
        if split == tensor:
            self.launch(self.stack.output(self.model, attention, count, tensor))
            tokens.form = "partial" if tensor > 1 else "all"
            return
        if split < tensor:
            together = self._held(tokens) * split
            engines = replace(self.engines, algorithm="direct")  # counterparts: one of every block of neighbours
        else:
            together, engines = count * split, self.engines
            width = 2.0 * attention.heads * value_dim(attention)
            cross(group, "attention.tokens_to_heads", "own", "heads", together, width, engines)
        self.launch(self.stack.output(self.model, attention, together, split))
        cross(group, "attention.reduce_scatter", "partial", "own", together, self._row_bytes, engines)
