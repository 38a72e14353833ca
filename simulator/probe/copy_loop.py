"""A copy on some of a GPU's SMs, written in Triton: thread blocks that go over a buffer again and again.

Without `from __future__ import annotations`, because Triton reads the types of its arguments.
"""

import triton
import triton.language as tl

BLOCK = 8192  # elements of four bytes that a thread block copies at a time
WARPS = 32


@triton.jit
def _copy(source, target, elements, rounds, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    offsets = tl.arange(0, BLOCK)
    for _ in range(rounds):
        for start in range(tl.program_id(0) * BLOCK, elements, tl.num_programs(0) * BLOCK):
            at = start + offsets
            inside = at < elements
            tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


def copy(source: object, target: object, elements: int, blocks: int, rounds: int) -> None:
    """Copies FP32 tensors on the current stream."""
    _copy[(blocks,)](source, target, elements, rounds, BLOCK=BLOCK, num_warps=WARPS)
