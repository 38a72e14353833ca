"""What each step of TensorRT-LLM at minimum latency is made of: small kernels, and AllReduce with what follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.die.kernels import Work
from simulator.model import ops
from simulator.program.rank import Rank

if TYPE_CHECKING:
    from workloads.trt_min_latency import Case


def vector(tokens: int, width: int) -> Work:
    """An element-wise kernel of the library on a few rows."""
    return small(ops.copy(tokens * width))


def framework(tokens: int, width: int = 1) -> Work:
    """One of PyTorch's own."""
    return of_family(vector(tokens, width), "framework")


def small(work: Work) -> Work:
    """Activations of a few tokens stay in L2."""
    return ops.cached(work)


def of_family(work: Work, family: str) -> Work:
    """The same work by another kernel."""
    return replace(work, family=family)


def fuses_all_reduce(case: Case) -> bool:
    """Add, norm and quantise are inside the one-shot kernel."""
    return bool(case.knobs.fused_all_reduce) and case.knobs.engine == "one_shot"


def all_reduce(npu: Rank, case: Case, tokens: int, block: str) -> None:
    """Sum over all ranks, add, norm (and quantise), in one kernel or two."""
    exchange(npu, case, tokens, block)
    if not fuses_all_reduce(case):
        npu.launch(vector(tokens, 2 * case.shapes.hidden), f"{block}.add_norm")


def exchange(npu: Rank, case: Case, tokens: int, block: str) -> None:
    """The sum alone."""
    engine = case.knobs.engine
    algorithm = "one_shot" if engine == "one_shot" else "direct"
    npu.group("tp").all_reduce(f"{block}.all_reduce", 2 * tokens * case.shapes.hidden, engine, algorithm)


def quantise(npu: Rank, case: Case, tokens: int, block: str) -> None:
    """To NVFP4, in a kernel of its own unless the AllReduce has done it."""
    if not fuses_all_reduce(case):
        npu.launch(vector(tokens, case.shapes.hidden), f"{block}.quantise")
