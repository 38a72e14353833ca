"""Attention as a piece: projections, heads, output projection, by the ranks that each of them is split over."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from simulator.model.transformer import Attention, Latent
from simulator.parallel.border import cross
from simulator.parallel.pieces import Pieces
from simulator.parallel.tokens import Tokens
from simulator.stack.gpu import value_dim
from simulator.stack.stacks import labelled


class AttentionPieces(Pieces):
    """Those of a layer's attention, which `attend` puts in order."""

    def attend(self, tokens: Tokens) -> None:
        """Norm, projections, attention of this rank's heads, output projection."""
        with self._of(tokens):
            attention, mesh = self._layer.attention, self.mesh
            tokens.block = "attention"
            for technique in self._techniques:
                technique.before("attention")
            self._norm(tokens, "attention")
            self._project_in(attention, tokens)
            self._attend(attention, tokens)
            if mesh.cp > 1:
                self._merge(attention, tokens)
            self._project_back(attention, tokens)

    def _project_in(self, attention: Attention, tokens: Tokens) -> None:
        """Hidden states to queries, keys and values, or to latents. Of a share of the tokens hidden states are gathered
        before, or latents behind (`gathers_latents`)."""
        latent = isinstance(attention, Latent) and attention.q_lora > 0
        if not (latent and self._gathers_latents and tokens.form == "own"):
            packed = self._gather(tokens, "attention")
            inputs = self.stack.inputs(self.model, attention, tokens.batch.tokens, self.mesh.tp, packed)
            self.launch(inputs)
            return
        assert isinstance(attention, Latent)
        self.launch(self.stack.inputs(self.model, attention, self._held(tokens), self.mesh.tp, False))
        for name, values in self.stack.latents(attention):
            cross(self.npu.group("tensor"), name, "own", "all", tokens.batch.tokens, 2.0 * values, self.engines)
        tokens.form = "all"

    def _attend(self, attention: Attention, tokens: Tokens) -> None:
        """Kernels of the own heads, by rank where one recording serves groups of uneven contexts."""
        mesh, number, groups = self.mesh, self._number, tokens.batches
        make = partial(self.stack.attend, self.model, attention, tp=mesh.tp, cp=mesh.cp)
        if len(set(groups)) < 2:
            self.launch(make(tokens.batch))
            return
        key = tokens.batch.number, attention
        if key not in self._by_group:
            self._by_group[key] = [make(batch) for batch in groups]
        own = cache(lambda group: labelled(self._by_group[key][group], number))
        self.npu.launch_all_by_rank(lambda rank: own(rank % mesh.stage // mesh.tensor))

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
        """The output projection, by the ranks that split it: those with the same heads; with fewer, each takes heads of
        its neighbours for fewer tokens; with more, tokens of its neighbours for fewer heads."""
        split, tensor, count = self.mesh.split("o_proj"), self.mesh.tensor, tokens.batch.tokens
        width = 2.0 * attention.heads * value_dim(attention)
        group = self.npu.group("o_proj")
        if split == tensor:
            self.launch(self.stack.output(self.model, attention, count, tensor))
            tokens.form = "partial" if tensor > 1 else "all"
            return
        if split < tensor:
            tokens.form = "own"
            together = self._held(tokens) * split
            whole = together * (tensor // split)
            cross(self.npu.group("heads"), "attention.heads_to_tokens", "heads", "own", whole, width / split,
                  self.engines)  # fmt: skip
            engines = replace(self.engines, algorithm="direct")  # counterparts: one of every block of neighbours
        else:
            together, engines = count * split, self.engines
            cross(group, "attention.tokens_to_heads", "own", "heads", together, width, engines)
        self.launch(self.stack.output(self.model, attention, together, split))
        cross(group, "attention.reduce_scatter", "partial", "own", together, self._row_bytes, engines)
