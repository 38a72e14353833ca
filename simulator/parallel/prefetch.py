"""Prefetch: what the next layer's attention reads comes into L2 while results are on their way back from experts.

A DMA queue has a stream of its own. It brings the blocks that the stack names, in the order of their use, as far as a
budget goes; the collective beside it leaves HBM idle. A pass with `prefetching` does so whatever its schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from simulator.die.kernels import Work
from simulator.parallel.forward import Forward
from simulator.parallel.tokens import Tokens
from simulator.stack.stacks import Kernels, labelled

STREAM = "prefetch"
PIECE_BYTES = 16e6  # what HBM brings in 10 us


def prefetching(step: Forward, budget_bytes: float, rate_bytes_per_s: float = 0.0) -> Forward:
    """The same pass, with so many bytes a layer at most. rate_bytes_per_s: a ceiling (0: none)."""
    if budget_bytes:
        step.ahead = lambda tokens: prefetch(step, tokens, budget_bytes, rate_bytes_per_s)
    return step


def prefetch(step: Forward, tokens: Tokens, budget_bytes: float, rate_bytes_per_s: float) -> None:
    """For the layer after the present one, if there is one; the first micro-batch brings it for the others, too."""
    if step.following is None or tokens.batch.number > 0:
        return
    npu, left = step.npu, budget_bytes
    now = npu.record()
    with npu.stream(STREAM):
        npu.wait(now)
        for name, block_bytes in blocks(_attention(step, tokens)):
            size = min(block_bytes, left)
            if size:
                npu.prefetch(name, size, rate_bytes_per_s, pieces=ceil(size / PIECE_BYTES))
            left -= size


def blocks(kernels: Kernels) -> Iterator[tuple[str, float]]:
    """What kernels look for in L2, in the order of its use: names and bytes."""
    return ((work.weights, _weight_bytes(work)) for _, work in kernels if work.weights)


def _attention(step: Forward, tokens: Tokens) -> Kernels:
    """The kernels of the following layer's attention."""
    assert step.following is not None
    number, layer = step.following
    stack, model, mesh, attention = step.stack, step.model, step.mesh, layer.attention
    count = tokens.batch.tokens
    return labelled([*stack.inputs(model, attention, count, mesh.tp, False),
                     *stack.attend(model, attention, tokens.batch, mesh.tp, mesh.cp),
                     *stack.output(model, attention, count, mesh.split("o_proj"))], number)


def _weight_bytes(work: Work) -> float:
    return work.weight_bytes + sum(map(_weight_bytes, work.parts))
