"""What is measured, in order: kernels alone, launches, two streams side by side, and what goes between GPUs.

Sizes follow from the device: buffers that L2 cannot hold or can, as many thread blocks as it has SMs. The streams of a
pair last about as long as each other, so that each is beside the other nearly all of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil
from statistics import median
from typing import NamedTuple

from simulator.errors import InputError
from simulator.paths import did_you_mean
from simulator.probe.device import LAUNCHES, About, Device, Exchange
from simulator.probe.kernel import Kernel
from simulator.probe.record import Row

SECTIONS = ("gemm", "attention", "copy", "launches", "streams", "collectives", "peers")
REPEATS, QUICK_REPEATS = 7, 5
STREAM_S, MOST_KERNELS = 3e-3, 24  # how long each stream of a pair lasts, and kernels in it at most
MEMORY_SHARE = 0.2  # of the device's memory that one kernel's operands may take
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WEIGHTS = ((1024, 4096), (4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096), (8192, 8192), (2048, 7168),
           (7168, 2048))  # fmt: skip
QUICK_ROWS, QUICK_WEIGHTS = (1, 32, 128, 512, 2048, 8192), ((1024, 4096), (4096, 4096), (8192, 8192))
HEADS = ((32, 8, 128), (64, 8, 128), (32, 32, 128), (8, 1, 128))
PROMPTS = ((1, 128), (1, 512), (1, 1024), (1, 2048), (1, 4096), (1, 16384), (4, 512), (4, 2048), (16, 1024))
QUICK_PROMPTS = ((1, 256), (1, 1024), (1, 4096), (4, 2048))
LOOP_SHARES = (1 / 33, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # of all SMs


@dataclass(frozen=True)
class Measurement:
    """One row of the record. take: makes it, without section and key; Unmeasurable says why it cannot be."""

    section: str
    key: str
    take: Callable[[Device], Row]


class Pair(NamedTuple):
    """Two streams, each of one kernel again and again; the first is launched ahead."""

    title: str
    ahead: Kernel
    beside: Kernel


def plan(about: About, quick: bool = False, only: Sequence[str] = ()) -> list[Measurement]:
    """All measurements of this device, or those of some sections; InputError for a section that does not exist."""
    for name in only:
        if name not in SECTIONS:
            raise InputError(f"--only {name}: no such section{did_you_mean(name, SECTIONS)}; "
                             f"there are {', '.join(SECTIONS)}")  # fmt: skip
    repeats = QUICK_REPEATS if quick else REPEATS
    most = MEMORY_SHARE * about.memory_bytes
    alone = [*products(about, quick), *attentions(quick), *copies(about, quick)]
    measurements = [Measurement(section, str(kernel), _alone(kernel, repeats)) for section, kernel in alone
                    if kernel.operand_bytes <= most]  # fmt: skip
    measurements += [Measurement("launches", f"launch {what}", _launch(what, repeats)) for what in LAUNCHES]
    measurements += [Measurement("streams", _key(pair), _pair(pair, repeats)) for pair in pairs(about, quick)]
    if about.gpus > 1:
        measurements += [*_collectives(about, quick, repeats), *_peers(about, quick, repeats)]
    return [one for one in measurements if not only or one.section in only]


def products(about: About, quick: bool) -> Iterator[tuple[str, Kernel]]:
    """Matrix products of decode and prefill sizes in every data type that the device multiplies."""
    shapes = product(QUICK_WEIGHTS if quick else WEIGHTS, QUICK_ROWS if quick else ROWS)
    for (n, k), m in shapes:
        for dtype in about.dtypes:
            yield "gemm", Kernel(f"gemm_{dtype}", (m, n, k))


def attentions(quick: bool) -> Iterator[tuple[str, Kernel]]:
    """Decode by requests and cached tokens, prompts by their length, with heads that share keys as in common models."""
    heads = HEADS[:2] if quick else HEADS
    batches, keys = ((1, 16, 64), (512, 4096)) if quick else ((1, 4, 16, 64, 128), (128, 1024, 4096, 16384))
    for each, batch, cached in product(heads, batches, keys):
        yield "attention", Kernel("generation_attention", (batch, cached, *each))
    for each, (batch, tokens) in product(heads, QUICK_PROMPTS if quick else PROMPTS):
        yield "attention", Kernel("context_attention", (batch, tokens, *each))


def copies(about: About, quick: bool) -> Iterator[tuple[str, Kernel]]:
    """Copies by the driver and element by element, from small to far larger than L2; loops on some of the SMs, through
    HBM and inside L2."""
    sizes = (2**20, 2**24, 2**28) if quick else tuple(2**power for power in range(16, 31, 2))
    for size, family in product(sizes, ("elementwise", "device_copy")):
        yield "copy", Kernel(family, (size,))
    for share in LOOP_SHARES[1::2] if quick else LOOP_SHARES:
        yield "copy", through_hbm(about, share)
        yield "copy", inside_l2(about, share)


def through_hbm(about: About, share: float) -> Kernel:
    """A loop on this share of the SMs from one buffer to another, four times L2 or more together."""
    return Kernel("copy_loop", (_power_of_two(max(4.0 * about.l2_bytes, 2.0**26)), _blocks(about, share), 1))


def inside_l2(about: About, share: float) -> Kernel:
    """A loop on this share of the SMs over buffers that L2 holds, often enough to last."""
    buffer = _power_of_two(about.l2_bytes / 4.0)
    return Kernel("copy_loop", (buffer, _blocks(about, share), ceil(2**28 * max(share, 0.05) / buffer)))


def _blocks(about: About, share: float) -> int:
    return max(round(share * about.sms), 1)


def _power_of_two(size: float) -> int:
    return int(2 ** max(round(size).bit_length() - 1, 12))


def pairs(about: About, quick: bool) -> list[Pair]:
    """Two streams that share HBM, L2 or SMs, in several proportions."""
    dense, decode = Kernel("gemm_bf16", (4096, 4096, 4096)), Kernel("gemm_bf16", (64, 8192, 8192))
    small = Kernel("gemm_bf16", (1024, 1024, 4096))
    cached, prompt = (Kernel("generation_attention", (64, 4096, 32, 8, 128)),
                      Kernel("context_attention", (1, 4096, 32, 8, 128)))  # fmt: skip
    pointwise, driver = (Kernel(family, (through_hbm(about, 1.0)["buffer_bytes"],))
                         for family in ("elementwise", "device_copy"))  # fmt: skip
    few, some, half = (through_hbm(about, share) for share in (1 / 16, 1 / 4, 1 / 2))
    found = [
        Pair("copy loop on a quarter of the SMs beside a compute-bound GEMM", some, dense),
        Pair("copy loop on a quarter of the SMs beside a GEMM that streams weights", some, decode),
        Pair("copy loop on a quarter of the SMs beside decode attention", some, cached),
        Pair("two copy loops on half of the SMs each", half, half),
        Pair("two compute-bound GEMMs", dense, dense),
        Pair("elementwise kernel beside a compute-bound GEMM", pointwise, dense),
    ]
    if quick:
        return found
    return [
        *found,
        Pair("copy loop on a sixteenth of the SMs beside a compute-bound GEMM", few, dense),
        Pair("copy loop on half of the SMs beside a compute-bound GEMM", half, dense),
        Pair("copy loop on a sixteenth of the SMs beside a GEMM that streams weights", few, decode),
        Pair("copy loop on half of the SMs beside a GEMM that streams weights", half, decode),
        Pair("copy loop inside L2 on a quarter of the SMs beside a compute-bound GEMM", inside_l2(about, 1 / 4), dense),
        Pair("copy loop inside L2 on a quarter of the SMs beside one through HBM", inside_l2(about, 1 / 4), some),
        Pair("copy loop on a sixteenth of the SMs beside decode attention", few, cached),
        Pair("copy loop on half of the SMs beside decode attention", half, cached),
        Pair("copy loop on a quarter of the SMs beside attention of a prompt", some, prompt),
        Pair("copy loops on a sixteenth and on half of the SMs", few, half),
        Pair("GEMM that streams weights beside a compute-bound GEMM", decode, dense),
        Pair("two GEMMs of few tiles", small, small),
        Pair("decode attention beside a compute-bound GEMM", cached, dense),
        Pair("driver's copy beside a compute-bound GEMM", driver, dense),
        Pair("driver's copy beside decode attention", driver, cached),
        Pair("two copies by the driver", driver, driver),
        Pair("two elementwise kernels", pointwise, pointwise),
    ]


def _key(pair: Pair) -> str:
    return f"{pair.ahead} | {pair.beside}"


def _alone(kernel: Kernel, repeats: int) -> Callable[[Device], Row]:
    return lambda device: {"kernel": kernel.as_object(), "seconds": device.kernel_s(kernel, repeats)}


def _launch(what: str, repeats: int) -> Callable[[Device], Row]:
    return lambda device: {"what": what, "seconds": device.launch_s(what, repeats)}


def _pair(pair: Pair, repeats: int) -> Callable[[Device], Row]:
    """Each stream by itself and both together, turn by turn, so that clocks are the same."""

    def take(device: Device) -> Row:
        tries = device.timelines([[[kernel] * 3] for kernel in pair[1:]], 1)
        last_s = [median(end - start for start, end in timelines[0][0][1:]) for timelines in tries]
        spans_s = [min(max(round(STREAM_S / one_s), 1), MOST_KERNELS) * one_s for one_s in last_s]
        counts = [max(round(min(spans_s) / one_s), 1) for one_s in last_s]
        streams = [[kernel] * count for kernel, count in zip(pair[1:], counts, strict=True)]
        ahead, beside, together = device.timelines([streams[:1], streams[1:], streams], repeats)
        return {"title": pair.title, "streams": [[one.as_object() for one in stream] for stream in streams],
                "alone": [[timeline[0] for timeline in each] for each in (ahead, beside)], "together": together}

    return take


def _collectives(about: About, quick: bool, repeats: int) -> Iterator[Measurement]:
    """NCCL between 2, 4, 8, ... GPUs, from 256 B to 1 GiB."""
    sizes = tuple(2**power for power in range(8, 31, 4 if quick else 2))
    for ranks in sorted({min(2**power, about.gpus) for power in range(1, 7)}):
        wanted = [Exchange(kind, ranks, size) for kind in KINDS for size in sizes]

        def take(device: Device, wanted: list[Exchange] = wanted, ranks: int = ranks) -> Row:
            times = device.exchanges_s(wanted, repeats)
            return {"ranks": ranks, "results": [{"kind": one.kind, "size_bytes": one.size_bytes, "seconds": seconds}
                                                for one, seconds in zip(wanted, times, strict=True)]}  # fmt: skip

        yield Measurement("collectives", f"NCCL between {ranks} GPUs", take)


def _peers(about: About, quick: bool, repeats: int) -> Iterator[Measurement]:
    """Copies from the first GPU to the others."""
    for target, size in product(range(1, about.gpus), (2**28,) if quick else (2**12, 2**20, 2**28)):

        def take(device: Device, target: int = target, size: int = size) -> Row:
            return {"source": 0, "target": target, "size_bytes": size,
                    "seconds": device.peer_copy_s(0, target, size, repeats)}  # fmt: skip

        yield Measurement("peers", f"copy of {size} B from GPU 0 to GPU {target}", take)
