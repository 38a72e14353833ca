"""A whole run as a few iterations of it, and what follows for the run.

All requests start together. Every step prefills a chunk of prompts on every rank, mixed with the decode of those
before, until all prompts are in; then all requests decode; they leave as they came, a chunk's worth at a time. A step's
cost changes slowly with how many decode and how long their caches are, so a few steps of each phase, each in the middle
of the stretch that it stands for, are simulated one after the other, and the run is the sum of their durations times
the steps that they stand for (the midpoint rule).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simulator.parallel.gathered_weights import GATHER
from workloads.flow_mla_memory import fitting, items, requests

if TYPE_CHECKING:
    from workloads.flow_mla import Case

CAPTURED = (1, 2, 4)  # small batch sizes for which graphs are captured; beyond, multiples of 8
LAST = "head.sample"


@dataclass(frozen=True)
class Iteration:
    """One step of every rank. prompts: lengths prefilled; decoding: requests with `cached` tokens each; steps: of the
    run that it stands for; labelled: layers of its tasks are told apart."""

    phase: str
    prompts: tuple[int, ...]
    decoding: int
    cached: int
    steps: float
    labelled: bool = False

    def padded(self, case: Case) -> int:
        """Decoding tokens in a captured graph, which has a size of its own; a step with prompts is not captured, nor is
        one with more tokens than the largest graph. Data parallel ranks each fill up their own (SGLang 0.4.10; before,
        to the sum of all)."""
        if self.prompts or not case.knobs.pad_to_captured or self.decoding > case.knobs.captured:
            return self.decoding
        size = next((size for size in CAPTURED if size >= self.decoding), -(-self.decoding // 8) * 8)
        return min(size, case.knobs.captured)


def iterations_of(case: Case) -> list[Iteration]:
    """The iterations that are simulated; the last one of full decode is labelled."""
    steps = _steps(case)
    shown = max(number for number, step in enumerate(steps) if step.phase == "decode")
    return [replace(step, labelled=number == shown) for number, step in enumerate(steps)]


def _steps(case: Case) -> list[Iteration]:
    b, held = case.batch, requests(case)
    if b.cached_tokens:  # only this step, again and again
        return [Iteration("decode", (), held, b.cached_tokens, 1.0) for _ in range(b.samples)]
    if b.chunk_tokens % b.prompt_tokens:
        right = f"a multiple of batch.prompt_tokens, {b.prompt_tokens}"
        raise ValueError(f"batch.chunk_tokens is {b.chunk_tokens}: it must be {right}")
    each = b.chunk_tokens // b.prompt_tokens
    filling = min(-(-held // each), b.output_tokens - 1)
    full = b.output_tokens - filling
    prompts = (b.prompt_tokens,) * min(each, held)
    steps = [
        Iteration("prefill", prompts, round(held * middle), b.prompt_tokens + round(filling * middle / 2), filling / 2)
        for middle in (0.25, 0.75)
    ]
    steps += [
        Iteration("decode", (), held, b.prompt_tokens + filling // 2 + round(full * (place + 0.5) / b.samples),
                  full / b.samples)
        for place in range(b.samples)
    ]  # fmt: skip
    last = b.prompt_tokens + b.output_tokens - filling // 4
    steps.append(Iteration("drain", (), max(held // 2, 1), last, float(filling)))
    return steps


def durations_s(columns: Mapping[str, Any]) -> list[float]:
    """Of every simulated iteration: from the end of the one before to its own."""
    import numpy as np

    of_one = (columns["name"] == LAST) & (columns["rank"] == columns["rank"].min())
    lengths: list[float] = (np.diff(np.sort(columns["end_ps"][of_one]), prepend=0) / 1e12).tolist()
    return lengths


def readings(case: Case, columns: Mapping[str, Any]) -> dict[str, float]:
    """The run's throughput, iteration times by phase, memory, and how long attention waits for gathered weights."""
    steps, each_s = iterations_of(case), durations_s(columns)
    unsharded = replace(case, knobs=case.knobs.model_copy(update={"sharded": ()}))
    held, groups = requests(case), 1 if case.knobs.attention == "tp" else case.ranks
    phases = {name: [(step.steps, s) for step, s in zip(steps, each_s, strict=True) if step.phase == name]
              for name in ("prefill", "decode", "drain")}
    decode_s = _mean(phases["decode"])
    run_s = sum(steps * s for each in phases.values() for steps, s in each)
    run_s = decode_s * case.batch.output_tokens if case.batch.cached_tokens else run_s
    return {
        "tpot_ms": decode_s * 1e3,
        "iteration_ms": decode_s * 1e3,
        **({"prefill_iteration_ms": _mean(phases["prefill"]) * 1e3} if phases["prefill"] else {}),
        "run_s": run_s,
        "throughput_tok_s_per_card": held * groups * case.batch.output_tokens / run_s / case.cards,
        "requests": held * groups,
        "requests_per_card": held * groups / case.cards,
        "fitting_requests_unsharded": max(fitting(unsharded), 0) * groups,
        "free_gib_per_card": (case.usable_bytes - sum(size for _, _, size in items(case, held))) / 2**30,
        **({"prefetch_stall_ms": stall_s(columns) * 1e3} if len(steps) > 1 or not case.knobs.sharded else {}),
    }


def stall_s(columns: Mapping[str, Any]) -> float:
    """How long one iteration's attention waits for gathered weights alone, in the mean of all but the first, for which
    nothing was gathered ahead."""
    own = columns["rank"] == columns["rank"].min()
    fields = ("name", "stream", "task", "after", "issued_ps", "end_ps")
    rows = list(zip(*(columns[field][own].tolist() for field in fields), strict=True))
    gathered = {task: end for name, _, task, _, _, end in rows if name == GATHER}
    first_end = min(end for name, *_, end in rows if name == LAST)
    iterations = sum(name == LAST for name, *_ in rows)
    free = total = 0  # when the compute stream's last task ended
    for _, stream, _, after, issued, end in rows:
        if stream != "compute":
            continue
        waited = [gathered[task] for task in after if task in gathered]
        if waited and end > first_end:
            total += max(max(waited) - max(free, issued), 0)
        free = end
    return total / 1e12 / max(iterations - 1, 1)


def _mean(weighed: list[tuple[float, float]]) -> float:
    return sum(steps * s for steps, s in weighed) / sum(steps for steps, _ in weighed) if weighed else 0.0
