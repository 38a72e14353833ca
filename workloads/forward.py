"""A forward pass of one rank through its layers: the verbs that schedules are written in.

A verb puts one piece of one micro-batch into the current stream: the kernels that the stack makes of it on this rank's
shard, and the collective that a border between two placements needs. Between pieces the ranks of a tensor-parallel
group hold either all their tokens, or (sequence parallelism, FlashComm) a share of them each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from simulator.die.kernels import Work
from simulator.model.micro_batch import MicroBatch, parted
from simulator.model.transformer import Attention, Dense, Experts, Layer, Model
from simulator.parallel.border import Engines, Form, cross
from simulator.parallel.exchange.task import Exchange, ExchangeSettings, ExpertTask
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
    part of an AllReduce.
    """

    batch: MicroBatch
    of_groups: tuple[int, ...]
    form: Form = "all"
    after: Event | None = None
    normed: bool = False
    exchange: Exchange | None = None
    layer: int = -1
    block: str = "embedding"
    batches: tuple[MicroBatch, ...] = ()


class Forward:
    """One pass of some micro-batches through `layers`, which are labelled with `numbers`.

    residual_split: how tokens are held between pieces (see above). labelled: whether micro-batches are, too.
    ahead: what is launched when a layer's last collective is about to (`prefetch`). following: the layer after the
    present one, with its number.
    """

    ahead: Callable[[Tokens], None] | None = None
    following: tuple[int, Layer] | None = None

    def __init__(self, npu: Rank, model: Model, mesh: Mesh, stack: Stack, engines: Engines, exchanges: ExchangeSettings,
                 residual_split: bool, labelled: bool, numbers: Sequence[int], layers: Sequence[Layer]) -> None:
        self.npu, self.model, self.mesh, self.stack, self.engines = npu, model, mesh, stack, engines
        self._exchanges, self._labelled = exchanges, labelled
        self._residual: Form = "own" if residual_split else "all"
        self._layers = list(zip(numbers, layers, strict=True))
        self._number, self._layer = -1, layers[0]
        self._by_group: dict[tuple[int, Attention], tuple[Kernels, list[Kernels]]] = {}

    # --- where pieces go ---------------------------------------------------------------------------------------------

    def layers(self) -> Iterator[Layer]:
        """Layer after layer; what is launched is labelled with it."""
        for place, (number, layer) in enumerate(self._layers):
            self._number, self._layer = number, layer
            self.following = self._layers[place + 1] if place + 1 < len(self._layers) else None
            with self.npu.scope(layer=number):
                yield layer

    def is_dense(self, layer: Layer) -> bool:
        """Whether its feed-forward is dense."""
        return isinstance(layer.feed_forward, Dense)

    def beside(self, verb: Callable[[Tokens], None], tokens: Tokens) -> None:
        """A piece in the communication stream, after all that is in the current one so far."""
        npu, before, launched = self.npu, self.npu.record(), len(self.npu.program.items)
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
        """Pieces in a stream of their own after an event, and the event of their end; nothing waits for it by itself."""
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
            self._norm(tokens, "attention")
            self._cross(tokens, "attention.gather", "all", self._gather_bytes())
            self._attend(attention, tokens)
            if mesh.cp > 1:
                self._merge(attention, tokens)
            self._project_back(attention, tokens)

    def _attend(self, attention: Attention, tokens: Tokens) -> None:
        """Kernels of the own heads; where one recording serves groups of uneven lengths, what differs goes by rank."""
        mesh = self.mesh
        make = partial(self.stack.attend, self.model, attention, tp=mesh.tp, cp=mesh.cp)
        if len(set(tokens.batches)) < 2:
            self.launch(make(tokens.batch))
            return
        key = tokens.batch.number, attention
        if key not in self._by_group:
            self._by_group[key] = _in_common([make(batch) for batch in tokens.batches])
        common, rest = self._by_group[key]
        number, groups = self._number, len(rest)
        own = cache(lambda group: labelled(rest[group], number))
        self.launch(common)
        self.npu.launch_all_by_rank(lambda rank: own(rank // mesh.tensor % groups))

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
        """The output projection, by the ranks that split it."""
        split, tensor, count = self.mesh.split("o_proj"), self.mesh.tensor, tokens.batch.tokens
        width = 2.0 * attention.heads * value_dim(attention)
        if split == tensor:
            self.launch(self.stack.output(self.model, attention, count, tensor))
            tokens.form = "partial" if tensor > 1 else "all"
        elif split == 1:
            tokens.form = "heads"
            self._cross(tokens, "attention.heads_to_tokens", "own", width)
            self.launch(self.stack.output(self.model, attention, self._held(tokens), 1))
        else:
            group = self.npu.group("o_proj")
            cross(group, "attention.tokens_to_heads", "own", "heads", count * split, width, self.engines)
            self.launch(self.stack.output(self.model, attention, count * split, split))
            cross(group, "attention.reduce_scatter", "partial", "own", count * split, self._row_bytes, self.engines)

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
            self._norm(tokens, "dense")
            self._split("dense", tokens, lambda count, shards: self.stack.dense(self.model, ffn, count, shards))
            tokens.block = "ffn"

    def route(self, tokens: Tokens) -> None:
        """Norm, router and top-k."""
        self.norm_experts(tokens)
        self.choose(tokens)

    def norm_experts(self, tokens: Tokens) -> None:
        """The norm before router and experts, and tokens in the form that their exchange needs."""
        with self._of(tokens):
            self._norm(tokens, "gate")
            tokens.exchange = self._exchange(tokens)
            tokens.layer, tokens.block = self._number, "ffn"
            self._cross(tokens, "gate.gather", tokens.exchange.needs, self._gather_bytes())

    def choose(self, tokens: Tokens, ranks: int = 1) -> None:
        """Router and top-k of own tokens, or of those of so many ranks."""
        with self._of(tokens):
            self.launch(self.stack.route(self.model, self._experts, ranks * self._held(tokens)))

    def shared(self, tokens: Tokens) -> None:
        """The shared expert on what the router had; it waits for no exchange, unless it has ranks of its own."""
        if self.mesh.shared_places:
            return
        with self.npu.scope(micro_batch=self._label(tokens)):
            form = tokens.form
            experts = self._experts
            self._split("shared", tokens, lambda count, shards: self.stack.shared(self.model, experts, count, shards))
            tokens.form = form

    def dispatch(self, tokens: Tokens) -> None:
        """Tokens to their experts."""
        with self._of(tokens):
            _exchange_of(tokens).dispatch()

    def experts(self, tokens: Tokens) -> None:
        """The local experts; where sums are partial, the shared expert's are added before they are summed up."""
        with self._of(tokens):
            exchange = _exchange_of(tokens)
            exchange.compute()
            if exchange.gives == "partial":
                self.launch(self.stack.finalize(self.model, self._experts, tokens.batch.tokens))
                tokens.form = "partial" if self.mesh.tensor > 1 else "all"

    def combine(self, tokens: Tokens) -> None:
        """Results back to their tokens."""
        with self._of(tokens):
            exchange = _exchange_of(tokens)
            if self.ahead and exchange.gives == "own":
                self.ahead(tokens)
            exchange.combine()
            if exchange.gives == "partial":
                self._reduce(tokens)
                tokens.exchange = None

    def finalize(self, tokens: Tokens) -> None:
        """Results summed where their tokens are, with the shared expert's; nothing where that is done."""
        if tokens.exchange is None:
            return
        with self.npu.scope(layer=tokens.layer), self._of(tokens):
            if not self.mesh.shared_places:
                self.launch(self.stack.finalize(self.model, self._experts, self._held(tokens)))
            self._reduce(tokens)
            tokens.exchange = None

    def _exchange(self, tokens: Tokens) -> Exchange:
        return EXCHANGES[self._exchanges.name](self.task(tokens, self._experts, self._number))

    def task(self, tokens: Tokens, experts: Experts, layer: int) -> ExpertTask:
        """What an exchange of these experts has to know."""
        return ExpertTask(self.npu, self.stack, self.model, experts, self.mesh, self.engines, self._exchanges, layer,
                          tokens.batch.number, tokens.of_groups)  # fmt: skip

    @property
    def _experts(self) -> Experts:
        ffn = self._layer.feed_forward
        assert isinstance(ffn, Experts)
        return ffn

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

    def _split(self, module: str, tokens: Tokens, kernels: Callable[[int, int], Any]) -> None:
        """A feed-forward by the ranks that split it: a tensor-parallel group, each alone, or neighbours with others."""
        split, tensor = self.mesh.split(module), self.mesh.tensor
        if split == tensor:
            self._cross(tokens, f"{module}.gather", "all", self._gather_bytes())
            self.launch(kernels(tokens.batch.tokens, tensor))
            tokens.form = "partial" if tensor > 1 else "all"
        elif split == 1:
            self._cross(tokens, f"{module}.own", "own", self._row_bytes)
            self.launch(kernels(self._held(tokens), 1))
        else:
            group, together = self.npu.group(module), max(tokens.of_groups) * split
            if launched := kernels(together, split):
                cross(group, f"{module}.gather", "own", "all", together, self._gather_bytes(), self.engines)
                self.launch(launched)
                cross(group, f"{module}.reduce_scatter", "partial", "own", together, self._row_bytes, self.engines)

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
        cross(self.npu.group("tensor"), name, tokens.form, needs, tokens.batch.tokens, row_bytes, self.engines)
        tokens.form = needs

    def launch(self, kernels: Sequence[tuple[str, Work]]) -> None:
        """Kernels one after the other; weights that the stack gives a name are known to L2 by layer and name."""
        for name, work in labelled(list(kernels), self._number):
            self.npu.launch(work, name)

    @contextmanager
    def _of(self, tokens: Tokens) -> Iterator[None]:
        """A piece of a micro-batch: labelled with it, and after what it waits for."""
        self.wait(tokens)
        with self.npu.scope(micro_batch=self._label(tokens)):
            yield

    def _label(self, tokens: Tokens) -> int:
        return tokens.batch.number if self._labelled else -1

    def wait(self, tokens: Tokens) -> None:
        """What follows in the current stream comes after what the micro-batch has behind it."""
        if tokens.after is not None:
            self.npu.wait(tokens.after)
            tokens.after = None


def tokens_of(groups: Sequence[MicroBatch], parts: int, own: int = 0, together: int = 0) -> list[Tokens]:
    """The micro-batches of one data-parallel group (`own`), with what all of them have.

    together: how many groups exchange tokens, where there are several such (0: all do).
    """
    cut = list(zip(*(parted(one, parts) for one in groups), strict=True))
    return [Tokens(each[own], tuple(one.tokens for one in each[: together or None]), batches=each if alike(each) else ())
            for each in cut]  # fmt: skip


def alike(groups: Sequence[MicroBatch]) -> bool:
    """Whether groups differ in nothing but the lengths of contexts, so that one recording serves them all."""
    return len({(one.tokens, one.sampled, bool(one.decodes), bool(one.prompts)) for one in groups}) == 1


_SUMS: dict[tuple[Form, Form], str] = {("partial", "all"): "all_reduce", ("partial", "own"): "reduce_scatter"}


def _in_common(each: Sequence[Kernels]) -> tuple[Kernels, list[Kernels]]:
    """The kernels at the beginning that all have, and the rest of each."""
    shared = 0
    while shared < len(each[0]) and len({kernels[shared] for kernels in each}) == 1:
        shared += 1
    return each[0][:shared], [kernels[shared:] for kernels in each]


def _exchange_of(tokens: Tokens) -> Exchange:
    assert tokens.exchange is not None, "a layer is routed first"
    return tokens.exchange
