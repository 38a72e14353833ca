"""Speed of searching for what to deploy: CPU time of 500 feasible layouts, and what a second process gains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import perf_counter

from simulator.bench.benchmark import Measurement, timed
from simulator.search.deployment import Ask
from simulator.search.kept import Kept
from simulator.search.search import Executor, Outcome, search
from simulator.search.space import axes_of, space_of
from simulator.study.processes import processes, serial

LAYOUTS = 500
DENSE = Ask("llama_3_1_70b", "dgx_h100", 8, 8, 4096, 1024)
MIXTURE = Ask("deepseek_r1", "dgx_h200", 16, 16, 4096, 1024)
WIDER = {"precision": ("", "kv=fp8", "all=fp8", "all=fp8,kv=fp8"), "residual": ("replicated", "split")}


def layouts(model: str) -> Measurement:
    """CPU seconds for 500 layouts that fit: of "dense" with precisions and residuals, or of "mixture" in one stack."""
    ask, axes = (DENSE, WIDER) if model == "dense" else (MIXTURE, {"stack": ("sglang",)})
    cpu_s, found = timed(lambda: _searched(ask, axes, serial))
    return Measurement(cpu_s / found.feasible * LAYOUTS, cpu_s, {"feasible": found.feasible, "layouts": found.layouts,
                                                                 "dropped": found.dropped})  # fmt: skip


def two_processes() -> Measurement:
    """How many times as fast two processes are as one, by the clock, with their start: "mixture" once more."""
    axes = {"stack": ("sglang",)}
    clocks = []
    for execute in (serial, partial(processes, jobs=2)):
        begun = perf_counter()
        found = _searched(MIXTURE, axes, execute)
        clocks.append(perf_counter() - begun)
    return Measurement(clocks[0] / clocks[1], sum(clocks), {"feasible": found.feasible})


def _searched(ask: Ask, axes: Mapping[str, tuple[str, ...]], execute: Executor) -> Outcome:
    with Kept(None, print) as kept:
        return search(ask, space_of(ask, axes_of(ask, axes), axes), execute, kept)
