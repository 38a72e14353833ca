"""A forward pass of one rank through its layers: the verbs that schedules are written in.

A verb puts one piece of one micro-batch into the current stream: the kernels that the stack makes of it on this rank's
shard, and the collective that a border between two placements needs. Between pieces the ranks of a tensor-parallel
group hold either all their tokens, or (sequence parallelism, FlashComm) a share of them each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol

from simulator.die.kernels import Work
from simulator.model.micro_batch import MicroBatch, parted
from simulator.model.transformer import Attention, Dense, Experts, Latent, Layer, Model
from simulator.parallel.border import Engines, Form, cross
from simulator.parallel.exchange.task import Exchange, ExchangeSettings, ExpertTask, fused
from simulator.parallel.exchange.ways import EXCHANGES
from simulator.parallel.mesh import Mesh
from simulator.program.rank import Event, Rank
from simulator.stack.gpu import value_dim
from simulator.stack.stacks import Kernels, Stack, labelled

COMM = "comm"


@dataclass
class Tokens:
    """The tokens of a micro-batch on their way through the layers.

    of_groups: how many every data-parallel group has. batches: of every one of them, in order, where one recording
    serves groups whose contexts differ. block: what gave their present values. form: how the tensor-parallel group
    holds them. after: what the next piece waits for beside its own stream. normed: the norm before the next piece was
    part of an AllReduce. computed: of routed and shared experts so many have been. exchange, experts, layer: of the
    layer in which they were routed last.
    """

    batch: MicroBatch
    of_groups: tuple[int, ...]
    form: Form = "all"
    after: Event | None = None
    normed: bool = False
    exchange: Exchange | None = None
    experts: Experts | None = None
    layer: int = -1
    block: str = "embedding"
    computed: int = 0
    batches: tuple[MicroBatch, ...] = ()


class Technique(Protocol):
    """What is done beside some kernels of a pass. name: of the kernel, or "attention" before the whole of it."""

    def before(self, name: str) -> None:
        """The kernel is the next one of the current stream."""

    def after(self, name: str) -> None:
        """It is the last one that was launched."""


class Forward:
    """One pass of some micro-batches through `layers`, which are labelled with `numbers`.

    residual_split: how tokens are held between pieces (see above). labels: what is labelled, of "layer", "micro_batch".
    gathers_latents: of latent attention a split residual gathers the latents, not the hidden states. ahead: what is
    launched when a layer's last collective is about to (`prefetch`). following: the layer after the present one, with
    its number.
    """

    ahead: Callable[[Tokens], None] | None = None
    following: tuple[int, Layer] | None = None

    def __init__(self, npu: Rank, model: Model, mesh: Mesh, stack: Stack, engines: Engines, exchanges: ExchangeSettings,
                 residual_split: bool, labels: Sequence[str], numbers: Sequence[int], layers: Sequence[Layer],
                 techniques: Sequence[Technique] = (), gathers_latents: bool = False) -> None:
        self.npu, self.model, self.mesh, self.stack, self.engines = npu, model, mesh, stack, engines
        self._exchanges, self._labels, self._techniques = exchanges, labels, techniques
        self._gathers_latents = gathers_latents
        self._residual: Form = "own" if residual_split else "all"
        self._layers = list(zip(numbers, layers, strict=True))
        self._number, self._layer = -1, layers[0]
        self._by_group: dict[tuple[int, Attention], list[Kernels]] = {}

    # --- where pieces go ---------------------------------------------------------------------------------------------

    def layers(self) -> Iterator[Layer]:
        """Layer after layer; what is launched is labelled with it."""
        for place, (number, layer) in enumerate(self._layers):
            self._number, self._layer = number, layer
            self.following = self._layers[place + 1] if place + 1 < len(self._layers) else None
            with self.npu.scope(layer=number if "layer" in self._labels else None):
                yield layer

    def across(self, mesh: Mesh) -> Forward:
        """The present layer on another mesh, for pieces whose ranks share tokens in another way."""
        there = copy(self)
        there.mesh = mesh
        return there

    def is_dense(self, layer: Layer) -> bool:
        """Whether its feed-forward is dense."""
        return isinstance(layer.feed_forward, Dense)

    def beside(self, verb: Callable[[Tokens], None], tokens: Tokens, after: Event | None = None) -> None:
        """A piece in the communication stream, after an event, or all that is in the current one so far."""
        npu, before, launched = self.npu, after or self.npu.record(), len(self.npu.program.items)
        with npu.stream(COMM):
            npu.wait(before)
            verb(tokens)
            if len(npu.program.items) > launched:
                tokens.after = npu.record()

    @contextmanager
    def on(self, stream: str, tokens: Tokens) -> Iterator[None]:
        """Pieces of a micro-batch in a stream of their own, after what it has behind it."""
        with self.npu.stream(stream):
            self.wait(tokens)
            yield
            tokens.after = self.npu.record()

    def aside(self, stream: str, after: Event, *pieces: Callable[[], object]) -> Event:
        """Pieces in a stream of their own after an event, and the event of their end, for which nothing waits yet."""
        with self.npu.stream(stream):
            self.npu.wait(after)
            for piece in pieces:
                piece()
            return self.npu.record()

    # --- attention ---------------------------------------------------------------------------------------------------

    def attend(self, tokens: Tokens) -> None:
        """Norm, projections, attention of this rank's heads, output projection; first what the layer before left."""
        self.finalize(tokens)
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

    def reduce(self, tokens: Tokens) -> None:
        """Partial sums to sums, in the form in which tokens are held between pieces."""
        with self._of(tokens):
            self._reduce(tokens)

    def _reduce(self, tokens: Tokens) -> None:
        if self.ahead and tokens.block == "ffn" and tokens.form == "partial":
            self.ahead(tokens)
        summed = tokens.form == "partial" and self._residual == "all"
        name = _SUMS.get((tokens.form, self._residual), "gather")
        self._cross(tokens, f"{tokens.block}.{name}", self._residual, self._row_bytes)
        tokens.normed = summed and self.stack.norm_in_all_reduce

    # --- feed-forward ------------------------------------------------------------------------------------------------

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
            tokens.exchange = EXCHANGES[self._exchanges.name](self.task(tokens, self._experts, self._number))
            tokens.experts, tokens.layer, tokens.block, tokens.computed = self._experts, self._number, "ffn", 0
            self._cross(tokens, "gate.gather", tokens.exchange.needs, self._gather_bytes())

    def choose(self, tokens: Tokens, ranks: int = 1) -> None:
        """Router and top-k of own tokens, or of those of so many ranks; then own tokens as they are sent."""
        with self._of(tokens):
            model, experts, held = self.model, self._experts, self._held(tokens)
            self.launch(self.stack.route(model, experts, ranks * held))
            by_row = _exchange_of(tokens).by_row
            self.launch(self.stack.to_rows(model, experts, held) if by_row else self.stack.pack(model, held, "gate"))

    def shared(self, tokens: Tokens) -> None:
        """The shared expert on what the router had; it waits for no exchange, unless it has ranks of its own."""
        if self.mesh.shared_places:
            return
        with self.npu.scope(micro_batch=self._label(tokens)):
            form = tokens.form
            self._split("shared", tokens, partial(self.stack.shared, self.model, self._unfused(self._experts)))
            tokens.form = form
            self._add(tokens)

    def dispatch(self, tokens: Tokens) -> None:
        """Tokens to their experts."""
        with self._of(tokens):
            _exchange_of(tokens).dispatch()

    def experts(self, tokens: Tokens) -> None:
        """The local experts on the tokens that they have."""
        with self._of(tokens):
            exchange = _exchange_of(tokens)
            exchange.arrive()
            exchange.compute()
            self._add(tokens)

    def _add(self, tokens: Tokens) -> None:
        """Where sums are partial, the routed and the shared expert's are added once both are there."""
        tokens.computed += 1
        exchange = _exchange_of(tokens)
        if tokens.computed == 2 and exchange.gives == "partial":
            self.launch(self.stack.finalize(self.model, self._unfused(self._experts), tokens.batch.tokens,
                                            exchange.by_row))

    def combine(self, tokens: Tokens) -> None:
        """Results back to their tokens."""
        with self._of(tokens):
            exchange = _exchange_of(tokens)
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
            by_row = tokens.exchange.by_row
            self.launch(self.stack.finalize(self.model, self._unfused(tokens.experts), self._held(tokens), by_row))
            self._reduce(tokens)
            tokens.exchange = None

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
            split, rows, model = self.mesh.split("head"), tokens.batch.sampled, self.model
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

    # --- parts -------------------------------------------------------------------------------------------------------

    def _split(self, module: str, tokens: Tokens, kernels: Callable[[int, int, bool], Any]) -> None:
        """A feed-forward by the ranks that split it: a tensor-parallel group, each alone, or neighbours with others."""
        split, tensor = self.mesh.split(module), self.mesh.tensor
        if split == tensor:
            packed = self._gather(tokens, module)
            self.launch(kernels(tokens.batch.tokens, tensor, packed))
            tokens.form = "partial" if tensor > 1 else "all"
        elif split == 1:
            self._cross(tokens, f"{module}.own", "own", self._row_bytes)
            self.launch(kernels(self._held(tokens), 1, False))
        else:
            group, together = self.npu.group(module), max(tokens.of_groups) * split
            if launched := kernels(together, split, True):
                self.launch(self.stack.pack(self.model, self._held(tokens), module))
                cross(group, f"{module}.gather", "own", "all", together, self._gather_bytes(), self.engines)
                self.launch(launched)
                cross(group, f"{module}.reduce_scatter", "partial", "own", together, self._row_bytes, self.engines)

    def _gather(self, tokens: Tokens, block: str) -> bool:
        """All tokens of the group on all its ranks, and whether they were quantised on the way."""
        packed = tokens.form == "own" and self.mesh.tensor > 1
        if packed:
            self.launch(self.stack.pack(self.model, self._held(tokens), block))
        self._cross(tokens, f"{block}.gather", "all", self._gather_bytes())
        return packed

    def _norm(self, tokens: Tokens, block: str) -> None:
        if not tokens.normed:
            self.launch(self.stack.norm(self.model, self._held(tokens), block))
        tokens.normed = False

    def _held(self, tokens: Tokens) -> int:
        """Tokens that this rank has in the present form."""
        count = tokens.batch.tokens
        return -(-count // self.mesh.tensor) if tokens.form == "own" else count

    @property
    def _row_bytes(self) -> float:
        """Of a token's hidden state, BF16."""
        return 2.0 * self.model.hidden

    def _gather_bytes(self) -> float:
        """Of a token's hidden state where it is quantised before it is gathered."""
        return float(self.stack.wire_bytes * self.model.hidden)

    def _cross(self, tokens: Tokens, name: str, needs: Form, row_bytes: float) -> None:
        if self.mesh.tensor > 1:
            cross(self.npu.group("tensor"), name, tokens.form, needs, tokens.batch.tokens, row_bytes, self.engines)
        tokens.form = needs

    def launch(self, kernels: Sequence[tuple[str, Work]]) -> None:
        """Kernels one after the other; weights that the stack gives a name are known to L2 by layer and name."""
        for name, work in labelled(list(kernels), self._number):
            for technique in self._techniques:
                technique.before(name)
            self.npu.launch(work, name)
            for technique in self._techniques:
                technique.after(name)

    @contextmanager
    def _of(self, tokens: Tokens) -> Iterator[None]:
        """A piece of a micro-batch: labelled with it, and after what it waits for."""
        self.wait(tokens)
        with self.npu.scope(micro_batch=self._label(tokens)):
            yield

    def _label(self, tokens: Tokens) -> int:
        return tokens.batch.number if "micro_batch" in self._labels else -1

    def wait(self, tokens: Tokens) -> None:
        """What follows in the current stream comes after what the micro-batch has behind it."""
        if tokens.after is not None:
            self.npu.wait(tokens.after)
            tokens.after = None


def tokens_of(groups: Sequence[MicroBatch], parts: int, own: int = 0) -> list[Tokens]:
    """The micro-batches of one data-parallel group (`own`), with what all of them have."""
    cut = list(zip(*(parted(one, parts) for one in groups), strict=True))
    return [Tokens(each[own], tuple(one.tokens for one in each), batches=each if alike(each) else ()) for each in cut]


def alike(groups: Sequence[MicroBatch]) -> bool:
    """Whether layers differ in nothing but what attention meets, so that one recording of them serves all groups."""
    return len({(one.tokens, bool(one.decodes), bool(one.prompts)) for one in groups}) == 1


_SUMS: dict[tuple[Form, Form], str] = {("partial", "all"): "all_reduce", ("partial", "own"): "reduce_scatter"}


def _exchange_of(tokens: Tokens) -> Exchange:
    assert tokens.exchange is not None, "a layer is routed first"
    return tokens.exchange
