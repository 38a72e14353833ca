"""What every piece of a layer is put together from: streams and labels, kernels, borders between placements.

Between pieces the ranks of a tensor-parallel group hold either all their tokens, or (sequence parallelism, FlashComm) a
share of them each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Protocol, Self

from simulator.die.kernels import Work
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Dense, Layer, Model
from simulator.parallel.border import Engines, Form, cross
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.mesh import Mesh
from simulator.parallel.tokens import Tokens
from simulator.program.rank import Event, Rank
from simulator.stack.stacks import Kernels, Stack, labelled

COMM = "comm"


class Technique(Protocol):
    """What is done beside some kernels of a pass. name: of the kernel, or "attention" before the whole of it."""

    def before(self, name: str) -> None:
        """The kernel is the next one of the current stream."""

    def after(self, name: str) -> None:
        """It is the last one that was launched."""


class Pieces:
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
        self._by_batch: dict[tuple[int, Attention], dict[MicroBatch, Kernels]] = {}

    def layers(self) -> Iterator[Layer]:
        """Layer after layer; what is launched is labelled with it."""
        for place, (number, layer) in enumerate(self._layers):
            self._number, self._layer = number, layer
            self.following = self._layers[place + 1] if place + 1 < len(self._layers) else None
            with self.npu.scope(layer=number if "layer" in self._labels else None):
                yield layer

    def across(self, mesh: Mesh) -> Self:
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
        """Pieces of a micro-batch in a stream of their own, after what it has behind it; nothing where this rank has no
        part of them."""
        launched = len(self.npu.program.items)
        with self.npu.stream(stream):
            yield
            if len(self.npu.program.items) > launched:
                tokens.after = self.npu.record()

    def aside(self, stream: str, after: Event, *pieces: Callable[[], object]) -> Event:
        """Pieces in a stream of their own after an event, and the event of their end, for which nothing waits yet."""
        with self.npu.stream(stream):
            self.npu.wait(after)
            for piece in pieces:
                piece()
            return self.npu.record()

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
        return float(self.stack.gathered_bytes * self.model.hidden)

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


_SUMS: dict[tuple[Form, Form], str] = {("partial", "all"): "all_reduce", ("partial", "own"): "reduce_scatter"}
