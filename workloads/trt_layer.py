"""One layer of TensorRT-LLM at minimum latency as a figure: streams beside the main one where they were published.

    main      Fuse_A | q norm  | UQ_QR, UK | core, UV, O | AllReduce, norm | router, top-k | experts | AllReduce, norm
    norms            | kv norm |
    cache                      | RoPE, cache
    shared                                                                 | shared expert         |
    prefetch                                                                                         | next Fuse_A
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.model import choices
from simulator.model.transformer import Attention, Dense, Experts, Latent, Layer, Model
from simulator.program.rank import Event, Rank
from simulator.stack.gpu import Kernels
from simulator.stack.trtllm_min_latency import MinLatency, core, grouped_norms, up, vector

if TYPE_CHECKING:
    from workloads.trt_min_latency import Case

CACHE, NORMS, SHARED, PREFETCH = "cache", "norms", "shared", "prefetch"


@dataclass(frozen=True)
class Pass:
    """One pass of a rank through layers with so many tokens of the one request."""

    npu: Rank
    case: Case
    model: Model
    stack: MinLatency
    tokens: int

    def launch(self, kernels: Kernels) -> Event:
        """One after the other in the current stream; the event is the end of them."""
        for name, work in kernels:
            self.npu.launch(work, name)
        return self.npu.record()

    def beside(self, stream: str, after: Event, kernels: Kernels) -> Event:
        """In another stream, after an event."""
        with self.npu.stream(stream):
            self.npu.wait(after)
            return self.launch(kernels)

    def layer(self, layer: Layer, number: int, last: bool) -> None:
        """Attention, then the dense FFN or the experts; each half ends with an AllReduce and the next norm."""
        ranks, ffn = self.case.ranks, layer.feed_forward
        self.attend(_latent(layer.attention), number)
        self.all_reduce("attention")
        if isinstance(ffn, Dense):
            self.launch(self.stack.dense(self.model, ffn, self.tokens, ranks, packed=False))
        else:
            self.feed_forward(ffn, number)
        if self.case.knobs.fuse_a_kernel and not last:
            self.prefetch(number + 1)
        self.all_reduce("ffn")

    def attend(self, a: Latent, number: int) -> None:
        """Absorbed latent attention of this rank's heads; RoPE and the cache beside the query's products, or behind."""
        npu, stack, tokens, ranks = self.npu, self.stack, self.tokens, self.case.ranks
        beside = self.case.knobs.cache_beside
        self.launch(stack.fuse_a(self.model, a, tokens, f"layer{number}.fuse_a"))
        normed, rope_cache = self.norms(a), stack.rope_cache(a, tokens)
        if beside:
            cached = self.beside(CACHE, normed, rope_cache)
        else:
            npu.wait(normed)
        self.launch(up(a, tokens, ranks))
        if beside:
            npu.wait(cached)
        else:
            self.launch(rope_cache)
        self.launch(core(a, ((tokens, self.case.batch.cached_tokens),), ranks))
        self.launch(stack.output(self.model, a, tokens, ranks))

    def norms(self, a: Latent) -> Event:
        """The query's norm on the current stream, the key/value's before it, beside it or with it: the end of that."""
        query, key = ([(f"attention.{name}.norm", vector(self.tokens, width))]
                      for name, width in (("q_a", a.q_lora), ("kv_a", a.kv_lora)))  # fmt: skip
        if self.case.knobs.norms == "grouped":
            return self.launch(grouped_norms(a, self.tokens))
        if self.case.knobs.norms == "in_order":
            return self.launch([*key, *query])
        normed = self.beside(NORMS, self.npu.record(), key)
        self.launch(query)
        return normed

    def feed_forward(self, ffn: Experts, number: int) -> None:
        """Router and routed experts, the shared expert beside or between them."""
        npu, stack, model, beside = self.npu, self.stack, self.model, self.case.knobs.shared_beside
        tokens, layout = self.tokens, self.case.layout
        shared, normed = stack.shared(model, ffn, tokens, self.case.ranks, packed=False), npu.record()
        if beside:
            done = self.beside(SHARED, normed, shared)
        self.launch([*stack.route(model, ffn, tokens), *([] if beside else shared)])
        self.launch(stack.experts(model, ffn, tokens, self.local_rows(ffn, number), layout.tensor_parallel))
        if beside:
            npu.wait(done)
        self.launch(stack.finalize(model, ffn, tokens, by_row=False))

    def local_rows(self, ffn: Experts, number: int) -> tuple[int, ...]:
        """Rows of each local expert; of two copies of an expert every other active one is used."""
        npu, case, skew, kept = self.npu, self.case, self.case.routing.skew, (ffn.groups, ffn.groups_per_token)
        rows = choices.even_rows(self.tokens, ffn.routed, ffn.per_token) if skew is None else choices.power_law_rows(
            self.tokens, ffn.routed, ffn.per_token, skew, (case.seed, number), *kept)
        group, copy = npu.coordinate("place"), npu.coordinate("block")
        assert isinstance(group, int)
        own = choices.blocks_of(rows, case.layout.expert_parallel)[group]
        if not case.knobs.smart_router:
            return own
        turns = [sum(map(bool, own[: place + 1])) - 1 for place in range(len(own))]
        return tuple(count if turn % 2 == copy else 0 for count, turn in zip(own, turns, strict=True))

    def prefetch(self, following: int) -> None:
        """Fuse_A's weights while the AllReduce before it runs, as its prologue does."""
        latent, before = _latent(self.model.layers[0].attention), self.npu.record()
        (_, work), = self.stack.fuse_a(self.model, latent, 1, f"layer{following}.fuse_a")
        with self.npu.stream(PREFETCH):
            self.npu.wait(before)
            self.npu.prefetch(work.weights, work.weight_bytes)

    def all_reduce(self, block: str) -> None:
        """Sum over all ranks, add, norm (and quantise), in one kernel or two."""
        self.sum(block)
        if not self.stack.quantised:
            self.launch([(f"{block}.add_norm", vector(self.tokens, 2 * self.model.hidden))])

    def sum(self, block: str) -> None:
        """The sum alone."""
        engine, size = self.case.knobs.engine, 2 * self.tokens * self.model.hidden
        algorithm = "one_shot" if engine == "one_shot" else "direct"
        self.npu.group("tensor").all_reduce(f"{block}.all_reduce", size, engine, algorithm)


def _latent(attention: Attention) -> Latent:
    assert isinstance(attention, Latent), "checked with the groups"
    return attention
