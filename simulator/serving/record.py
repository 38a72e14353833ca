"""What a service did, as columns: when each request passed which point, and every step of every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator import np
from simulator.serving.experts import Moved
from simulator.serving.requests import Requests
from simulator.units import PS_PER_S

DONE, REFUSED, UNFINISHED, LOST = 0, 1, 2, 3
NEVER = -1  # the time of what did not happen

TIMES = ("arrival", "routed", "admitted", "prefilled", "joined", "first_token", "last_token")
WAITS = ("front", "queue", "load", "prefill", "transfer", "decode", "preempted")
STEPS = ("engine", "start_ps", "duration_ps", "decoding", "cached_tokens", "prefill_tokens", "waiting", "used_blocks",
         "most_tokens")
OF_EXPERTS = ("balancedness",)  # of steps, where experts change over time
ORDER = (("arrival", "routed"), ("routed", "admitted"), ("admitted", "prefilled"), ("prefilled", "joined"),
         ("prefilled", "first_token"), ("first_token", "last_token"), ("joined", "last_token"))  # fmt: skip


@dataclass(eq=False)
class Struck:
    """What a fault did, once. fault: as it is written; what: was struck; noticed_ps: by the router; over_ps: when it
    was gone, and an engine served again (NEVER, of both: not in the run). rerouted: requests that went to another
    engine, or to the same one when it was back; recomputed_tokens: cached on the engine, and computed again; lost:
    requests that were not tried again, or wait for ever."""

    fault: str
    what: str
    struck_ps: int
    noticed_ps: int = NEVER
    over_ps: int = NEVER
    rerouted: int = 0
    recomputed_tokens: int = 0
    lost: int = 0


@dataclass(frozen=True, eq=False)
class Lower:
    """Of what lies below HBM."""

    load_ps: np.Array
    """That each request waited, once scheduled, for blocks to come into HBM before its prompt was computed."""
    tokens: dict[str, np.Array]
    """Of `cached_tokens` those that came from a tier, host or pool."""
    about: dict[str, dict[str, float]]
    """By tier, of all groups: size_gib; and in tokens its room, and what was read, written and evicted."""


@dataclass(frozen=True, eq=False)
class Served:
    """Columns with one entry a request, and `steps` with one a step. Raises ValueError where they do not fit together.

    A token is there when the step that makes it has ended; a request decodes in every step of its engine that decodes,
    from its first token (or from `joined`) to its last, but while it is preempted.
    """

    requests: Requests
    times: dict[str, np.Array]
    """int64 ps, NEVER where it did not happen. arrival: sent by the user; routed: left the API servers, at an engine;
    admitted: first scheduled; prefilled: its prompt was computed (together with decode: first_token); joined: its KV is
    at the decode engine; first_token; last_token."""
    prefill_engine: np.Array
    """Its place in `engines`; -1: none."""
    decode_engine: np.Array
    cached_tokens: np.Array
    """Of its prompt, found in a cache."""
    preemptions: np.Array
    preempted_ps: np.Array
    """From preemption until it decodes again, all times together."""
    emitted: np.Array
    """Output tokens so far."""
    status: np.Array
    """DONE, REFUSED (longer than memory), UNFINISHED (the run was stopped) or LOST (its engine was, and it was tried
    no more, or waited for ever)."""
    steps: Mapping[str, np.Array]
    """By start. engine: its place in `engines`; start_ps, duration_ps; decoding: requests, of all groups;
    cached_tokens: that they have, of all groups; prefill_tokens; waiting: requests in its queue; used_blocks;
    most_tokens: of the data-parallel group that has most, requests that decode and new tokens of prompts; where experts
    change over time balancedness: mean load of the places of experts over the largest, as it is expected (NaN: not of
    this engine)."""
    engines: list[str]
    """Names: "engine 0", "prefill 0", "decode 1"."""
    gpus: int
    """Of the whole service."""
    groups: list[int] = field(default_factory=list)
    """Data-parallel groups of each engine; none where nothing is said of them."""
    about_steps: dict[str, Any] = field(default_factory=dict)
    """How the steps' times were found. simulated, known: steps that were simulated, now or in a run before (from disk),
    at nodes and in audits; interpolated, exact, audited: steps of this run by how they got their time; relative errors:
    audit_error_mean, audit_error_worst; correction: the factor on interpolated times."""
    interrupted: bool = False
    """The run was stopped: what is here is a part."""
    until: str = ""
    """"steady": it was to go on until its steady state is known well, and ended when it was, or with all requests."""
    saturated: dict[str, float] | None = None
    """rate_per_s: requests offered; stable_per_s: that could be served; None: it keeps up."""
    moved: tuple[Moved, ...] = ()
    """Rearrangements of experts."""
    lower: Lower | None = None
    """None: there is nothing below HBM."""
    struck: tuple[Struck, ...] = ()
    """What faults did, in the order of time."""
    again_ps: np.Array = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """Of requests whose engine was lost after their first token: the request, from when on, and until it decoded again
    (NEVER: it did not)."""
    stranded: np.Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """Requests whose engine was lost, ascending."""
    waiting_for: tuple[str, ...] = ()
    """Who waits for whom, for ever."""

    def __post_init__(self) -> None:
        for name in ("prefill_engine", "decode_engine", "cached_tokens", "preemptions", "preempted_ps", "emitted"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))
        object.__setattr__(self, "status", np.asarray(self.status, dtype=np.int8))
        _check_shapes(self)
        _check_requests(self)
        _check_steps(self)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def done(self) -> np.Array:
        """Which requests have all their tokens."""
        return self.status == DONE

    @property
    def start_ps(self) -> int:
        """When the first request was sent; 0 if none was."""
        sent = self.times["arrival"][self.times["arrival"] != NEVER]
        return int(sent.min()) if len(sent) else 0

    @property
    def end_ps(self) -> int:
        """When the last thing happened, to a request or in a step."""
        ends = self.steps["start_ps"] + self.steps["duration_ps"]
        return int(max(*(self.times[name].max() for name in TIMES), ends.max(initial=0), self.start_ps))

    def cached_by_tier(self) -> dict[str, np.Array]:
        """`cached_tokens` by where they lay, HBM first; empty where nothing lies below HBM."""
        if self.lower is None:
            return {}
        return {"hbm": self.cached_tokens - sum(self.lower.tokens.values()), **self.lower.tokens}

    def waits(self) -> dict[str, np.Array]:
        """What each request waited for, in seconds, by the names of WAITS (load only where something lies below HBM);
        NaN where that has not ended. Those of a request that is done add up to its time from `arrival` to `last_token`.

        front: API servers; queue: at the engine until first scheduled; load: blocks from below HBM; prefill; transfer:
        KV to the decode engine; decode: steps that gave its tokens; preempted: until it decoded again.
        """
        times = self.times
        ready = np.maximum(times["joined"], times["prefilled"])
        edges = (("arrival", "routed"), ("routed", "admitted"), ("admitted", "prefilled"))
        waits = {name: _between(times[one], times[other]) for name, (one, other) in
                 zip(("front", "queue", "prefill"), edges, strict=True)}  # fmt: skip
        waits["transfer"] = _between(times["prefilled"], ready)
        waits["decode"] = _between(ready, times["last_token"]) - self.preempted_ps / PS_PER_S
        waits["preempted"] = np.where(times["admitted"] == NEVER, np.nan, self.preempted_ps / PS_PER_S)
        if self.lower is not None:
            waits["load"] = np.where(times["admitted"] == NEVER, np.nan, self.lower.load_ps / PS_PER_S)
            waits["prefill"] = waits["prefill"] - self.lower.load_ps / PS_PER_S
        return {name: waits[name] for name in WAITS if name in waits}


def _between(start_ps: np.Array, end_ps: np.Array) -> np.Array:
    """Seconds; NaN where either did not happen."""
    return np.where((start_ps == NEVER) | (end_ps == NEVER), np.nan, (end_ps - start_ps) / PS_PER_S)


def _check_shapes(served: Served) -> None:
    count = len(served)
    columns = {f"times[{name!r}]": served.times.get(name) for name in TIMES}
    columns |= {name: getattr(served, name) for name in ("prefill_engine", "decode_engine", "cached_tokens",
                                                         "preemptions", "preempted_ps", "emitted", "status")}
    for name, column in columns.items():
        _check_shape(name, column, count, "requests")
    steps = len(served.steps["start_ps"]) if "start_ps" in served.steps else 0
    for name in (*STEPS, *(one for one in OF_EXPERTS if one in served.steps)):  # one at a time: they are made anew
        _check_shape(f"steps[{name!r}]", served.steps.get(name), steps, "steps")
    for there, names in ((served.times, TIMES), (served.steps, (*STEPS, *OF_EXPERTS))):
        if other := sorted(set(there) - set(names)):
            raise ValueError(f"unknown column {other[0]!r}; there are {', '.join(names)}")


def _check_shape(name: str, column: np.Array | None, length: int, what: str) -> None:
    if column is None:
        raise ValueError(f"{name} is missing")
    if column.shape != (length,):
        raise ValueError(f"{name} has the shape {column.shape} for {length} {what}")


def _check_requests(served: Served) -> None:
    times, done = served.times, served.done
    for first, then in ORDER:
        known = (times[first] != NEVER) & (times[then] != NEVER)
        _refuse(known & (times[then] < times[first]), f"{then} comes before {first}")
    for name in ("arrival", "routed", "admitted", "prefilled", "first_token", "last_token"):
        _refuse(done & (times[name] == NEVER), f"it is done without {name}")
    _refuse(done & (served.emitted != served.requests.output_tokens), "it is done without all its tokens")
    elsewhere = np.isin(np.arange(len(served)), served.stranded)  # the last token can come with a prompt
    _refuse(done & (served.decode_engine < 0) & (served.emitted > 1) & ~elsewhere, "it is done without an engine")
    for engine in (served.prefill_engine, served.decode_engine):
        _refuse((engine < -1) | (engine >= len(served.engines)), f"its engine is none of {len(served.engines)}")
    ready = np.maximum(times["joined"], times["prefilled"])
    _refuse(done & (served.preempted_ps > times["last_token"] - ready), "it was preempted for longer than it decoded")


def _check_steps(served: Served) -> None:
    steps = served.steps
    engine, start, duration = steps["engine"], steps["start_ps"], steps["duration_ps"]
    _refuse((engine < 0) | (engine >= len(served.engines)), f"its engine is none of {len(served.engines)}", "step")
    _refuse(duration < 0, "it lasts less than nothing", "step")
    _refuse(np.concatenate(([False], start[1:] < start[:-1]))[:len(start)], "it starts before the one before", "step")
    del duration
    order = np.argsort(engine, kind="stable")
    same, start = np.diff(engine[order]) == 0, start[order]
    late = np.flatnonzero(same & (start[1:] < (start + steps["duration_ps"][order])[:-1])) + 1
    wrong = np.zeros(len(order), dtype=bool)
    wrong[order[late]] = True
    _refuse(wrong, "it starts before its engine ended the last", "step")


def _refuse(wrong: np.Array, why: str, what: str = "request") -> None:
    if wrong.any():
        raise ValueError(f"{what} {int(np.flatnonzero(wrong)[0])}: {why}")
