"""The software stacks by name, and what every one of them can say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model.linear_attention import GatedDelta
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Dense, Experts, Latent, Model
from simulator.stack import cann, cann_decode, pplx, sglang, sglang_2025, trtllm, trtllm_min_latency, vllm

Kernels = list[tuple[str, Work]]


class Stack(Protocol):
    """Kernels of the pieces of a transformer on one rank, in launch order; `shards` ranks split a module's weights.

    Where a kernel names its weights (`Work.weights`), those of a later micro-batch may find them in L2.

    gathered_bytes: of a value that is gathered for attention or a dense block; wire_bytes: of one that goes to experts.
    scale_bytes: of a token's scale where it is dispatched by itself (0: with the token). gathers_at_once: one call
    gathers tokens, scales and the experts that they chose. packed: hidden states were quantised before they were
    gathered. by_row: every row that an expert gave comes back by itself, not in the sum of its token.
    norm_in_all_reduce: residual add and norm are part of the AllReduce before them. best: of a shard's logits, where
    these are gathered instead of all (none: all are); candidates: what is sampled from, over all rows.
    fuses_shared: where every rank has a slice of every expert, the shared one is a choice more of every token, and has
    no kernels of its own. shared_beside: captured graphs of up to so many tokens run it on a stream of its own beside
    router and routed experts. engines, reducing_engines: what drives collectives, and AllReduce, by preference;
    algorithm: of the first. operators: calls of framework operators that go with an eager launch.
    """

    @property
    def name(self) -> str: ...
    @property
    def gathered_bytes(self) -> float: ...
    @property
    def wire_bytes(self) -> float: ...
    @property
    def scale_bytes(self) -> float: ...
    @property
    def gathers_at_once(self) -> bool: ...
    @property
    def norm_in_all_reduce(self) -> bool: ...
    @property
    def fuses_shared(self) -> bool: ...
    @property
    def shared_beside(self) -> int: ...
    @property
    def engines(self) -> tuple[str, ...]: ...
    @property
    def reducing_engines(self) -> tuple[str, ...]: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def operators(self) -> float: ...
    def embed(self, model: Model, tokens: int, shards: int) -> Kernels: ...
    def norm(self, model: Model, tokens: int, block: str) -> Kernels: ...
    def pack(self, model: Model, tokens: int, block: str) -> Kernels: ...
    def inputs(self, model: Model, attention: Attention, tokens: int, tp: int, packed: bool) -> Kernels: ...
    def latents(self, attention: Latent) -> list[tuple[str, int]]: ...
    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels: ...
    def merge(self, tokens: int, width: int, parts: int) -> Kernels: ...
    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels: ...
    def dense(self, model: Model, dense: Dense, tokens: int, shards: int, packed: bool) -> Kernels: ...
    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels: ...
    def to_rows(self, model: Model, experts: Experts, tokens: int) -> Kernels: ...
    def split_sizes(self, experts: Experts) -> Kernels: ...
    def shared(self, model: Model, experts: Experts, tokens: int, shards: int, packed: bool) -> Kernels: ...
    def experts(
        self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int
    ) -> Kernels: ...
    def finalize(self, model: Model, experts: Experts, tokens: int, by_row: bool) -> Kernels: ...
    def head(self, model: Model, rows: int, shards: int) -> Kernels: ...
    def best(self, model: Model, rows: int, shards: int) -> Kernels: ...
    def sample(self, model: Model, rows: int, candidates: int) -> Kernels: ...
    def project(self, model: Model, tokens: int) -> Kernels: ...
    def cores(self, count: int) -> dict[str, int]: ...


def _always(stack: Stack, model: Model, phase: str, dtypes: Collection[str]) -> Stack:
    """The same for every model, phase and chip."""
    return stack


def _on_ascend(make: Callable[[Model, str], Stack], model: Model, phase: str, dtypes: Collection[str]) -> Stack:
    if any(isinstance(layer.attention, GatedDelta) for layer in model.layers):
        raise InputError(f"{model.name} has linear attention, of which the kernels of CANN here know nothing: "
                         "vllm, sglang and trtllm do")
    return make(model, phase)


STACKS: dict[str, Callable[[Model, str, Collection[str]], Stack]] = {
    "vllm": vllm.on_chip,
    "sglang": sglang.on_chip,
    "trtllm": trtllm.on_chip,
    sglang_2025.STACK.name: partial(_always, sglang_2025.STACK),
    pplx.STACK.name: pplx.for_latents,
    "trtllm_1_3": partial(_always, trtllm_min_latency.STACK),
    "trtllm_2025": partial(_always, trtllm_min_latency.STACK),
    "cann_decode": partial(_on_ascend, cann_decode.decoding),
    "cann_2025": partial(_on_ascend, cann.deployed),
    "cann_recipes": partial(_on_ascend, cann.recipes),
}
"""By the beginning of a generation's name: what runs a model in a phase ("decode", "prefill", "mixed") on a chip whose
cores multiply these data types."""


def labelled(kernels: Kernels, layer: int) -> Kernels:
    """These kernels, with the weights that they name as those of a layer."""
    return [(name, _labelled(work, layer)) for name, work in kernels]


def _labelled(work: Work, layer: int) -> Work:
    if not work.weights and not work.parts:
        return work
    named = f"layer{layer}.{work.weights}" if work.weights else ""
    return replace(work, weights=named, parts=tuple(_labelled(part, layer) for part in work.parts))


def stack_of(generation: str, model: Model, phase: str, dtypes: Collection[str] = ()) -> Stack:
    """The stack of a software generation, whose name begins with the stack's (the longest that does), as it runs a
    model in a phase on a chip whose cores multiply these data types; InputError says which there are, or why it
    cannot."""
    found = stacks_of(generation)
    if not found:
        raise InputError(f"kernels '{generation}': no stack of that name is known; there are {', '.join(STACKS)}")
    stack = STACKS[max(found, key=len)](model, phase, dtypes)
    sparse = any(isinstance(one.attention, Latent) and one.attention.indexer for one in model.layers)
    if sparse and not getattr(stack, "sparse_heads", 0):
        raise InputError(f"kernels '{generation}': no kernels of sparse attention are known of it, which {model.name} "
                         "has: vllm has them, on GPUs with FP8")
    return stack


def stacks_of(generation: str) -> list[str]:
    """The stacks whose names a software generation's begins with; none where it is of no stack of transformers."""
    return [name for name in STACKS if generation == name or generation.startswith(f"{name}_")]
