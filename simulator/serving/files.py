"""Results of a service as files: requests and steps as Parquet, metrics as AIPerf's JSON, a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator import np
from simulator.np import Array
from simulator.observe.arrow import write_parquet
from simulator.observe.files import whole_file
from simulator.serving.harm import harm_of
from simulator.serving.outcome import Outcome, Part
from simulator.serving.over_time import BALANCEDNESS
from simulator.serving.record import NEVER, TIMES
from simulator.serving.trace import write_trace
from simulator.study.expected import plain
from simulator.units import PS_PER_S

SCHEMA_VERSION = "1.1"
"""Of AIPerf's JSON, the first with count and sum (ai-dynamo/aiperf, docs/reference/json-export-schema.md)."""

FILES = ("profile_export_aiperf.json", "requests.parquet", "steps.parquet", "trace.json.gz")
STEPS_PER_GROUP = 1 << 20  # rows of a group in steps.parquet
STATUS = ("done", "refused", "unfinished", "lost")

REQUESTS: dict[str, tuple[str, str]] = {
    "request": ("int64", "number of the request, by the order of the trace"),
    "status": ("text", "done, refused (longer than memory), unfinished (the run was stopped), lost (with its engine)"),
    "input_tokens": ("int64", "tokens of its prompt"),
    "output_tokens": ("int64", "tokens that it wants"),
    "emitted_tokens": ("int64", "tokens that it got"),
    "cached_tokens": ("int64", "tokens of its prompt that were found in a cache"),
    "priority": ("int64", "0 first"),
    "prefill_engine": ("text", "engine that computed its prompt; empty: none"),
    "decode_engine": ("text", "engine that gave its tokens; empty: none"),
    "arrival_s": ("float64", "sent by the user (s); NaN, here and below: did not happen"),
    "routed_s": ("float64", "left the API servers, at an engine (s)"),
    "admitted_s": ("float64", "first scheduled (s)"),
    "prefilled_s": ("float64", "its prompt was computed (s)"),
    "joined_s": ("float64", "its KV was at the decode engine (s)"),
    "first_token_s": ("float64", "its first token was there (s)"),
    "last_token_s": ("float64", "its last token was there (s)"),
    "front_s": ("float64", "time at the API servers (s)"),
    "queue_s": ("float64", "time at an engine until first scheduled (s)"),
    "prefill_s": ("float64", "time until its prompt was computed (s)"),
    "transfer_s": ("float64", "time until its KV was at the decode engine (s)"),
    "decode_s": ("float64", "time from then to its last token, without preempted_s (s)"),
    "preempted_s": ("float64", "time from preemption until it decoded again (s)"),
    "preemptions": ("int64", "times that it was preempted"),
    "time_to_first_token_ms": ("float64", "from arrival to first token (ms)"),
    "time_to_second_token_ms": ("float64", "from its first token, or chunk of tokens, to the next (ms)"),
    "inter_token_latency_ms": ("float64", "mean time of a token after the first (ms)"),
    "time_between_tokens_ms": ("float64", "mean of its longest 10% of gaps between tokens (ms)"),
    "request_latency_ms": ("float64", "from arrival to last token (ms)"),
}
LOWER = {
    "cached_hbm_tokens": ("int64", "tokens of its prompt that were found in HBM"),
    "cached_host_tokens": ("int64", "and in host memory"),
    "cached_pool_tokens": ("int64", "and in the shared pool"),
    "load_s": ("float64", "time, once scheduled, until these had come into HBM (s)"),
}
"""Where something lies below HBM."""
GOOD = {"good": ("bool", "keeps all that was promised")}
STEP_COLUMNS: dict[str, tuple[str, str]] = {
    "engine": ("text", "engine whose step it is"),
    "start_s": ("float64", "begins (s)"),
    "duration_s": ("float64", "lasts (s)"),
    "decoding": ("int32", "requests that decode in it, of all groups"),
    "cached_tokens": ("int64", "tokens that these have cached, of all groups"),
    "prefill_tokens": ("int32", "prompt tokens that it computes"),
    "waiting": ("int32", "requests that wait at its engine"),
    "used_blocks": ("int64", "blocks of KV cache that running requests hold"),
    "most_tokens": ("int32", "requests that decode and prompt tokens, of the data-parallel group that has most"),
}
OF_STEPS = {"balancedness": ("float64", "mean load of the places of experts over the largest; NaN: not of its engine")}
"""Where experts change over time."""


def write_files(found: Outcome, folder: Path, config: Mapping[str, Any] | None = None,
                tell: Callable[[float], None] = lambda share: None) -> None:  # fmt: skip
    """Writes FILES into a folder. config: how the run was made, as `input_config` of the JSON and the
    metadata of the others have it. tell: told now and then the share of the rows that is written. OSError where
    one cannot be written; none is left half written."""
    with whole_file(folder / FILES[0]) as part:
        text = json.dumps(plain(profile_export(found, config)), indent=2, allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")
    write_parquet([request_columns(found)], folder / FILES[1], described(found), config)
    write_parquet(_told(step_groups(found), found, tell), folder / FILES[2], _of_steps(found), config)
    write_trace(found.served, folder / FILES[3], run=config)


def profile_export(found: Outcome, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """As AIPerf's profile_export_aiperf.json: a metric's block by its tag; beside them, by names that AIPerf does not
    have, what requests waited for and the steady state."""
    served, steady = found.served, found.steady
    made: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **found.whole.metrics, "input_config": dict(config or {}),
                            "was_cancelled": served.interrupted, "error_summary": _errors(found)}  # fmt: skip
    if steady is not None:
        made["steady_state_metrics"] = steady.metrics
    window: dict[str, Any] = {"why": found.window.why}
    if steady is not None:
        window |= {"means_95": {name: {"avg": one.mean, "half_width": one.half_width, "known": one.known}
                                for name, one in found.estimates.items()}} if served.until else {}
        window |= {"start_s": steady.start_ps / PS_PER_S, "end_s": steady.end_ps / PS_PER_S}
    made["braid"] = {
        "requests": found.counts, "gpus": served.gpus, "goodput": dict(found.promised), "whole": _part(found.whole),
        "steady_state": window | (_part(steady) if steady is not None else {}),
        "over_time": {name: column.tolist() for name, column in found.over_time.items()},
        "steps": dict(served.about_steps), "saturated": served.saturated}  # fmt: skip
    if BALANCEDNESS in served.steps:
        made["braid"]["rearrangements"] = [one._asdict() for one in served.moved]
    made["braid"] |= harm_of(found)
    if served.lower is not None:
        made["braid"]["cache"] = served.lower.about
    return made


def _part(part: Part) -> dict[str, Any]:
    found = {"waits": part.waits, "means_over_time": part.means}
    return found | ({"priorities": part.priorities} if part.priorities else {})


def _errors(found: Outcome) -> list[dict[str, Any]]:
    kinds = (("refused", "longer than memory"), ("unfinished", "the run was stopped"),
             ("lost", "its engine was lost, and it was tried no more, or waited for ever"))  # fmt: skip
    return [{"error_details": {"type": kind, "message": why}, "count": found.counts[kind]}
            for kind, why in kinds if found.counts.get(kind)]  # fmt: skip


def request_columns(found: Outcome) -> dict[str, Array]:
    """Columns of REQUESTS, of LOWER where something lies below HBM, and of GOOD where something was promised."""
    served, requests = found.served, found.served.requests
    columns = {"request": np.arange(len(served)), "status": _named(served.status, STATUS),
               "emitted_tokens": served.emitted}  # fmt: skip
    columns |= {name: getattr(requests, name) for name in ("input_tokens", "output_tokens", "priority")}
    columns |= {name: getattr(served, name) for name in ("cached_tokens", "preemptions")}
    for name in ("prefill_engine", "decode_engine"):
        columns[name] = _named(getattr(served, name), [*served.engines, ""])
    times = {name: served.times[name] for name in TIMES}
    columns |= {f"{name}_s": np.where(at == NEVER, np.nan, at / PS_PER_S) for name, at in times.items()}
    columns |= {f"{name}_s": wait for name, wait in served.waits().items()}
    columns |= {f"{name}_ms": values for name, values in found.records.items() if f"{name}_ms" in REQUESTS}
    columns |= {f"cached_{tier}_tokens": tokens for tier, tokens in served.cached_by_tier().items()}
    return _typed(columns | {"good": found.good}, described(found))


def described(found: Outcome) -> dict[str, tuple[str, str]]:
    """Columns that there are of requests, and what they mean."""
    here = {f"cached_{tier}_tokens" for tier in found.served.cached_by_tier()} | {"load_s"}
    lower = {name: text for name, text in LOWER.items() if name in here} if found.served.lower is not None else {}
    return REQUESTS | lower | (GOOD if found.good.size else {})


def step_groups(found: Outcome) -> Iterator[dict[str, Array]]:
    """Columns of STEP_COLUMNS, and of OF_STEPS where they are there, in groups of rows."""
    steps, described = found.served.steps, _of_steps(found)
    whole = {name: steps[name] for name in steps}
    for low in range(0, max(len(whole["engine"]), 1), STEPS_PER_GROUP):
        some = {name: column[low : low + STEPS_PER_GROUP] for name, column in whole.items()}
        some |= {f"{name}_s": some[f"{name}_ps"] / PS_PER_S for name in ("start", "duration")}
        yield _typed(some | {"engine": _named(some["engine"], found.served.engines)}, described)


def _told(groups: Iterator[dict[str, Array]], found: Outcome,
          tell: Callable[[float], None]) -> Iterator[dict[str, Array]]:  # fmt: skip
    """The same groups of steps; told of the rows that were written, those of requests among them."""
    done, whole = len(found.served), len(found.served) + len(found.served.steps["engine"])
    for group in groups:
        tell(done / whole)
        yield group
        done += len(group["engine"])
    tell(done / whole)


def _of_steps(found: Outcome) -> dict[str, tuple[str, str]]:
    return STEP_COLUMNS | {name: column for name, column in OF_STEPS.items() if name in found.served.steps}


def _named(places: Array, names: Any) -> Array:
    """Names by their places; -1: the last one."""
    return np.array([*names], dtype=object)[places]


def _typed(columns: Mapping[str, Array], described: Mapping[str, tuple[str, str]]) -> dict[str, Array]:
    return {name: columns[name].astype(object if kind == "text" else kind) for name, (kind, _) in described.items()}
