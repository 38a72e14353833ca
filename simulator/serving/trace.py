"""A service as Chrome JSON for Perfetto: a process per engine with its steps, and its requests as async slices.

A request is a slice over each engine that it uses, with what it waits for inside: front, queue, load and prefill over
the engine of its prompt, transfer and decode over that of its tokens (one slice where both are the same). Counters say
what decodes, waits and is held. A long run is written in part, and the trace's metadata says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from os import PathLike
from typing import Any

from simulator import np
from simulator.observe.events import FIRST_PID, PS_PER_NS, Sample, meta, sampled, us, write_events
from simulator.serving.record import NEVER, Served
from simulator.units import PS_PER_S

MOST_REQUESTS = 2000
COUNTERS = {"running requests": "decoding", "waiting requests": "waiting", "used blocks": "used_blocks"}
EDGES = ("arrival", "routed", "admitted", "loaded", "prefilled", "joined", "last_token")
PHASES = ("front", "queue", "load", "prefill", "transfer", "decode")  # between each two of EDGES
BEFORE = 4  # phases at the engine of the prompt


def write_trace(served: Served, path: str | PathLike[str], window_s: tuple[float, float] | None = None,
                most_requests: int = MOST_REQUESTS, run: Mapping[str, Any] | None = None) -> int:  # fmt: skip
    """Writes `path` (.json or .json.gz) and returns the number of steps in it.

    window_s: requests sent and steps begun from the one time to before the other; None: all. Of these requests the
    first `most_requests` are written, and no step that begins after they have all ended. run: how it was made, as the
    metadata says it. OSError where it cannot be written.
    """
    sent = served.times["arrival"]
    low, high = (0, served.end_ps + 1) if window_s is None else (round(one * PS_PER_S) for one in window_s)
    chosen = np.flatnonzero((sent >= low) & (sent < high))
    chosen = chosen[np.argsort(sent[chosen], kind="stable")]
    left_out = len(chosen) - most_requests
    if left_out > 0:
        chosen = chosen[:most_requests]
        ends = served.times["last_token"][chosen]
        high = min(high, int(np.where(ends == NEVER, sent[chosen], ends).max()))
    begun = (served.steps["start_ps"] >= low) & (served.steps["start_ps"] < high)
    steps = {name: column[begun] for name, column in served.steps.items()}
    whole = len(chosen) == len(served) and bool(begun.all())
    about = {"window_s": [low / PS_PER_S, high / PS_PER_S], "requests": len(chosen), "requests_of_run": len(served),
             "steps": int(begun.sum()), "steps_of_run": len(begun), "whole": whole}  # fmt: skip
    write_events(chain(_tracks(served), _slices(steps), _requests(served, chosen), sampled(_samples(steps))), path,
                 otherData=about | ({"run": dict(run)} if run else {}))  # fmt: skip
    return int(begun.sum())


def _tracks(served: Served) -> Iterator[str]:
    for engine, name in enumerate(served.engines):
        yield meta("process_name", engine, 0, name)
        yield meta("process_sort_index", engine, 0, engine)
        yield meta("thread_name", engine, 1, "steps")


def _slices(steps: dict[str, np.Array]) -> Iterator[str]:
    start = steps["start_ps"] // PS_PER_NS
    lasts = (steps["start_ps"] + steps["duration_ps"]) // PS_PER_NS - start
    columns = (steps["engine"], start, lasts, steps["prefill_tokens"], steps["decoding"], steps["cached_tokens"])
    for engine, at, long, prefill, decoding, cached in zip(*(one.tolist() for one in columns), strict=True):
        yield (f'{{"ph":"X","pid":{FIRST_PID + engine},"tid":1,"name":"{step_name(prefill, decoding)}","cat":"step",'
               f'"ts":{us(at)},"dur":{us(long)},"args":{{"prefill_tokens":{prefill},"decoding":{decoding},'
               f'"cached_tokens":{cached}}}}}')  # fmt: skip


def step_name(prefill_tokens: int, decoding: int) -> str:
    """What a step is called: "decode 64", "prefill 8192", "prefill 8192 + decode 64"."""
    parts = [f"{what} {count}" for what, count in (("prefill", prefill_tokens), ("decode", decoding)) if count]
    return " + ".join(parts) or "empty"


def _requests(served: Served, chosen: np.Array) -> Iterator[str]:
    admitted, load_ps = served.times["admitted"], 0 if served.lower is None else served.lower.load_ps
    known = served.times | {"loaded": np.where(admitted == NEVER, NEVER, admitted + load_ps),
                            "joined": np.maximum(served.times["joined"], served.times["prefilled"])}  # fmt: skip
    times = np.stack([known[name][chosen] for name in EDGES], axis=1)
    edges = np.where(times == NEVER, NEVER, times // PS_PER_NS).tolist()
    engines = np.stack([served.prefill_engine[chosen], served.decode_engine[chosen]], axis=1).tolist()
    tokens = np.stack([served.requests.input_tokens[chosen], served.emitted[chosen]], axis=1).tolist()
    for number, at, (prefill, decode), (inputs, outputs) in zip(chosen.tolist(), edges, engines, tokens, strict=True):
        happened = next((place for place, one in enumerate(at) if one == NEVER), len(at)) - 1
        args = f'{{"request":{number},"input_tokens":{inputs},"output_tokens":{outputs}}}'
        split = BEFORE if decode != prefill else len(PHASES)
        for engine, low, high in ((prefill, 0, min(split, happened)), (decode, split, happened)):
            if low < high and engine >= 0:
                yield from _request(number, engine, at, range(low, high), args)


def _request(number: int, engine: int, edges: list[int], phases: range, args: str) -> Iterator[str]:
    """One async slice with its phases inside, those that last no time left out."""
    head = f'"cat":"request","id2":{{"local":"request-{number}"}},"pid":{FIRST_PID + engine}'
    yield f'{{"ph":"b",{head},"name":"request","ts":{us(edges[phases.start])},"args":{args}}}'
    for phase in phases:
        if edges[phase + 1] > edges[phase]:
            yield f'{{"ph":"b",{head},"name":"{PHASES[phase]}","ts":{us(edges[phase])}}}'
            yield f'{{"ph":"e",{head},"name":"{PHASES[phase]}","ts":{us(edges[phase + 1])}}}'
    yield f'{{"ph":"e",{head},"name":"request","ts":{us(edges[phases.stop])}}}'


def _samples(steps: dict[str, np.Array]) -> Iterator[Sample]:
    """Counters where they change."""
    for engine in np.unique(steps["engine"]).tolist():
        mine = steps["engine"] == engine
        for name, column in COUNTERS.items():
            start, value = steps["start_ps"][mine], steps[column][mine]
            changed = np.flatnonzero(np.diff(value, prepend=-1))
            for at, level in zip(start[changed].tolist(), value[changed].tolist(), strict=True):
                yield Sample(name, engine, at, level)
