"""The software stacks by name, and what every one of them can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Dense, Experts, Model
from simulator.stack import cann_decode, sglang, trtllm, vllm

Kernels = list[tuple[str, Work]]


class Stack(Protocol):
    """Kernels of the pieces of a transformer on one rank, in launch order; `shards` ranks split a module's weights.

    Where a kernel names its weights (`Work.weights`), a later micro-batch may find them in L2, or a prefetch.

    wire_bytes: of a value that is gathered or dispatched. norm_in_all_reduce: residual add and norm are part of the
    AllReduce before them. engines, reducing_engines: what drives collectives, and AllReduce, by preference; algorithm:
    of the first.
    """

    @property
    def name(self) -> str: ...
    @property
    def wire_bytes(self) -> float: ...
    @property
    def norm_in_all_reduce(self) -> bool: ...
    @property
    def engines(self) -> tuple[str, ...]: ...
    @property
    def reducing_engines(self) -> tuple[str, ...]: ...
    @property
    def algorithm(self) -> str: ...
    def embed(self, model: Model, tokens: int, shards: int) -> Kernels: ...
    def norm(self, model: Model, tokens: int, block: str) -> Kernels: ...
    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels: ...
    def merge(self, tokens: int, width: int, parts: int) -> Kernels: ...
    def output(self, model: Model, attention: Attention, tokens: int, shards: int) -> Kernels: ...
    def dense(self, model: Model, dense: Dense, tokens: int, shards: int) -> Kernels: ...
    def route(self, model: Model, experts: Experts, tokens: int) -> Kernels: ...
    def shared(self, model: Model, experts: Experts, tokens: int, shards: int) -> Kernels: ...
    def experts(
        self, model: Model, experts: Experts, tokens: int, rows: Sequence[int], shards: int
    ) -> Kernels: ...
    def finalize(self, model: Model, experts: Experts, tokens: int) -> Kernels: ...
    def head(self, model: Model, rows: int, shards: int) -> Kernels: ...
    def best(self, model: Model, rows: int, shards: int) -> Kernels: ...
    def sample(self, model: Model, rows: int, candidates: int) -> Kernels: ...
    def project(self, model: Model, tokens: int) -> Kernels: ...
    def cores(self, count: int) -> dict[str, int]: ...


STACKS: dict[str, Stack] = {one.STACK.name: one.STACK for one in (vllm, sglang, trtllm, cann_decode)}


def labelled(kernels: Kernels, layer: int) -> Kernels:
    """These kernels, with the weights that they name as those of a layer."""
    return [(name, _labelled(work, layer)) for name, work in kernels]


def _labelled(work: Work, layer: int) -> Work:
    if not work.weights and not work.parts:
        return work
    named = f"layer{layer}.{work.weights}" if work.weights else ""
    return replace(work, weights=named, parts=tuple(_labelled(part, layer) for part in work.parts))


def stack_of(generation: str) -> Stack:
    """The stack of a software generation, whose name begins with the stack's; InputError says which there are."""
    found = [stack for name, stack in STACKS.items() if generation == name or generation.startswith(f"{name}_")]
    if not found:
        raise InputError(f"kernels '{generation}': no stack of that name is known; there are {', '.join(STACKS)}")
    return found[0]
