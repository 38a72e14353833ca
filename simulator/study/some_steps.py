"""Of a run of requests that all start together a few steps are simulated, and their time stands for that of all.

Every step prefills a chunk of prompts on every rank, mixed with the decode of those before, until all prompts are in;
then all requests decode; they leave as they came, a chunk's worth at a time. A step's cost changes slowly with how many
decode and how long their caches are, so a few steps of each phase, each in the middle of the stretch that it stands
for, are simulated one after the other, and the run is the sum of their durations times the steps that they stand for
(the midpoint rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from simulator import np
from simulator.units import PS_PER_S


@dataclass(frozen=True)
class Step:
    """One step of every rank. prompts: lengths prefilled; decoding: requests with `cached` tokens each; steps: of the
    run that it stands for; labelled: layers of its tasks are told apart, as in the last one of full decode."""

    phase: Literal["prefill", "decode", "drain"]
    prompts: tuple[int, ...]
    decoding: int
    cached: int
    steps: float
    labelled: bool = False


def alike_steps(requests: int, cached: int, samples: int) -> list[Step]:
    """One step of full decode, again and again."""
    return _labelled([Step("decode", (), requests, cached, 1.0)] * samples)


def steps_of_run(requests: int, prompt: int, output: int, chunk: int, samples: int) -> list[Step]:
    """Of a whole run: two while prompts come in, `samples` of full decode, one while requests leave. requests: of every
    rank, of so many prompt and output tokens each; chunk: prompt tokens of a step."""
    if chunk % prompt:
        raise ValueError(f"batch.chunk_tokens is {chunk}: it must be a multiple of batch.prompt_tokens, {prompt}")
    each = chunk // prompt
    filling = min(-(-requests // each), output - 1)
    full = output - filling
    prompts = (prompt,) * min(each, requests)
    steps = [
        Step("prefill", prompts, round(requests * middle), prompt + round(filling * middle / 2), filling / 2)
        for middle in (0.25, 0.75)
    ]
    steps += [
        Step("decode", (), requests, prompt + filling // 2 + round(full * (place + 0.5) / samples), full / samples)
        for place in range(samples)
    ]
    last = prompt + output - filling // 4
    return _labelled([*steps, Step("drain", (), max(requests // 2, 1), last, float(filling))])


def _labelled(steps: Sequence[Step]) -> list[Step]:
    shown = max(number for number, step in enumerate(steps) if step.phase == "decode")
    return [replace(step, labelled=number == shown) for number, step in enumerate(steps)]


def durations_s(columns: Mapping[str, Any], last: str) -> list[float]:
    """Of every simulated step: from the end of the one before to its own, which is the end of its task `last`."""
    of_one = (columns["name"] == last) & (columns["rank"] == columns["rank"].min())
    lengths: list[float] = (np.diff(np.sort(columns["end_ps"][of_one]), prepend=0) / PS_PER_S).tolist()
    return lengths


def run_seconds(steps: Sequence[Step], each_s: Sequence[float]) -> float:
    """Of all steps of the run."""
    return sum(step.steps * s for step, s in zip(steps, each_s, strict=True))


def mean_seconds(steps: Sequence[Step], each_s: Sequence[float], phase: str) -> float:
    """Of a step of a phase; 0 where the run has none."""
    there = [(step, s) for step, s in zip(steps, each_s, strict=True) if step.phase == phase]
    return run_seconds(*zip(*there, strict=True)) / sum(step.steps for step, _ in there) if there else 0.0
