"""FlowMLA's published runs as a few steps of them (`simulator.study.some_steps`), and what follows for the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.parallel.gathered_weights import GATHER
from simulator.study.readings import stalled_ps
from simulator.study.some_steps import Step, alike_steps, durations_s, mean_seconds, run_seconds, steps_of_run
from simulator.units import PS_PER_S
from workloads.flow_mla_memory import fitting, items, requests

if TYPE_CHECKING:
    from workloads.flow_mla import Case

LAST = "head.sample"


def iterations_of(case: Case) -> list[Step]:
    """The iterations that are simulated: of the whole run, or of decode with one length of the cache."""
    b, held = case.batch, requests(case)
    if b.cached_tokens:
        return alike_steps(held, b.cached_tokens, b.samples)
    return steps_of_run(held, b.prompt_tokens, b.output_tokens, b.chunk_tokens, b.samples)


def readings(case: Case, columns: Mapping[str, Any]) -> dict[str, float]:
    """The run's throughput, iteration times by phase, memory, and how long attention waits for gathered weights."""
    steps, each_s = iterations_of(case), durations_s(columns, LAST)
    unsharded = replace(case, knobs=case.knobs.model_copy(update={"sharded": ()}))
    held, groups = requests(case), 1 if case.knobs.attention == "tp" else case.ranks
    decode_s, prefill_s = (mean_seconds(steps, each_s, phase) for phase in ("decode", "prefill"))
    run_s = decode_s * case.batch.output_tokens if case.batch.cached_tokens else run_seconds(steps, each_s)
    return {
        "tpot_ms": decode_s * 1e3,
        "iteration_ms": decode_s * 1e3,
        **({"prefill_iteration_ms": prefill_s * 1e3} if prefill_s else {}),
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
    ends = columns["end_ps"][(columns["name"] == LAST) & (columns["rank"] == columns["rank"].min())]
    return stalled_ps(columns, "compute", GATHER, int(ends.min())) / PS_PER_S / max(len(ends) - 1, 1)
