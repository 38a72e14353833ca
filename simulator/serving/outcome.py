"""What a service gave its users: AIPerf's metrics, goodput, what requests waited for; of all, and of the steady state.

Names, units and meanings of metrics are AIPerf's (ai-dynamo/aiperf, docs/metrics-reference.md): a metric of requests is
spread over those that are done, one of the run is a single number. inter_token_latency is the mean of a request after
its first token (vLLM: TPOT); inter_chunk_latency is every gap (vLLM: ITL). time_between_tokens is Mooncake's TBT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulator import np
from simulator.serving.goodput import keeps
from simulator.serving.over_time import Level, levels
from simulator.serving.record import DONE, LOST, REFUSED, UNFINISHED, Served
from simulator.serving.spread import Block, single, spread
from simulator.serving.steady import Window, steady_window
from simulator.serving.tokens import Chunks, chunks_of, gaps_spread, longest_gaps_ms, tokens_between
from simulator.serving.until import Estimate, estimates
from simulator.units import PS_PER_S

PS_PER_MS = 10**9
UNITS = {
    "time_to_first_token": "ms", "time_to_second_token": "ms", "inter_token_latency": "ms", "time_between_tokens": "ms",
    "request_latency": "ms", "output_token_throughput_per_user": "tokens/sec/user", "input_sequence_length": "tokens",
    "output_sequence_length": "tokens",
}  # fmt: skip
"""Metrics of requests."""
PIECES = 60  # of the whole time, in `Outcome.over_time`


@dataclass(frozen=True)
class Part:
    """Of some requests and some time."""

    start_ps: int
    end_ps: int
    metrics: dict[str, Block]
    """By AIPerf's names; a metric without any value is left out."""
    waits: dict[str, dict[str, float]]
    """By the names of WAITS: mean_s, p99_s, and share of the time from arrival to last token."""
    means: dict[str, float]
    """Means over time, by the names of over_time.LEVELS."""
    priorities: dict[int, dict[str, Block]] = field(default_factory=dict)
    """Metrics of requests by priority, where there is more than one."""


@dataclass(frozen=True)
class Outcome:
    """Of a run. steady: requests sent while it was steady, and rates of that time; None where `window` says why."""

    served: Served
    records: Mapping[str, np.Array]
    """Metrics of each request, by the names of UNITS; NaN where it has none."""
    counts: dict[str, int]
    """requests, done, refused, unfinished; lost, where any was."""
    promised: Mapping[str, float]
    whole: Part
    window: Window
    steady: Part | None
    over_time: dict[str, np.Array]
    """start_s, and means over time in PIECES equal pieces, by the names of over_time.LEVELS."""
    estimates: dict[str, Estimate] = field(default_factory=dict)
    """Means of the steady state with their 95% intervals, by AIPerf's names, of a run until it is known well."""
    good: np.Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Which requests keep what was promised; empty where nothing was."""
    without: Outcome | None = None
    """Where faults struck it, the same run without them."""


def hit_ratio(tier: str) -> str:
    """Metric of what one tier of the cache held of prompts: hbm, host, pool."""
    return f"prefix_cache_hit_ratio_{tier}"


def outcome(served: Served, promised: Mapping[str, float] | None = None, concurrency: int | None = None,
            tell: Callable[[float], None] = lambda share: None, without: Outcome | None = None) -> Outcome:  # fmt: skip
    """All of it. promised: as goodput.promises gives them; concurrency: of a closed loop, None where requests came in
    time; tell: told how far it is; without: of the same run without faults."""
    tell(0.0)
    chunks = chunks_of(served)
    tell(0.1)
    records = records_of(served, chunks)
    good = keeps(records, promised) & served.done if promised else np.zeros(0, dtype=bool)
    tell(0.3)
    window = steady_window(served, concurrency)
    names = {"done": DONE, "refused": REFUSED, "unfinished": UNFINISHED}
    counts = {"requests": len(served)} | {name: int((served.status == code).sum()) for name, code in names.items()}
    counts |= {"lost": lost} if (lost := int((served.status == LOST).sum())) else {}
    over_time = levels(served)

    def part(of: Window) -> Part:
        return _part(served, records, chunks, good, of, over_time)

    all_of_it = Window(served.start_ps, served.end_ps + 1, "all")
    edges = np.linspace(all_of_it.start_ps, all_of_it.end_ps, PIECES + 1)
    whole = part(all_of_it)
    tell(0.6)
    steady = part(window) if window.found else None
    tell(0.85)
    return Outcome(served, records, counts, promised or {}, whole, window, steady,
                   {"start_s": edges[:-1] / PS_PER_S, **{name: one(edges) for name, one in over_time.items()}},
                   estimates(served, window) if served.until and window.found else {}, good,
                   without)  # fmt: skip


def records_of(served: Served, chunks: Chunks) -> dict[str, np.Array]:
    """Metrics of each request that is done, by the names of UNITS; NaN for others, and where one has none: a single
    token has no second."""
    done, times, tokens = served.done, served.times, served.emitted
    latency = (times["last_token"] - times["arrival"]) / PS_PER_MS
    first = (times["first_token"] - times["arrival"]) / PS_PER_MS
    several = np.where(tokens > 1, tokens - 1, np.nan)
    each = (latency - first) / several
    found = {"time_to_first_token": first, "time_to_second_token": chunks.first_gap_ps / PS_PER_MS,
             "inter_token_latency": each, "time_between_tokens": longest_gaps_ms(served, chunks),
             "request_latency": latency,
             "output_token_throughput_per_user": np.divide(1e3, each, out=np.full(len(each), np.nan), where=each > 0),
             "input_sequence_length": served.requests.input_tokens,
             "output_sequence_length": tokens}  # fmt: skip
    return {name: np.where(done, found[name], np.nan) for name in UNITS}


def _part(served: Served, records: Mapping[str, np.Array], chunks: Chunks, good: np.Array, window: Window,
          over_time: Mapping[str, Level]) -> Part:  # fmt: skip
    """Requests sent in a window say how long things took; what ended and came in it says the rates."""
    sent = served.done & window.holds(served.times["arrival"])
    metrics = _spreads(records, sent)
    if (gaps := gaps_spread(chunks, sent)) is not None:
        metrics["inter_chunk_latency"] = gaps
    metrics |= _totals(served, good, window, sent) | _rates(served, chunks, good, window) | _balance(served, window)
    edges = np.array([window.start_ps, window.end_ps])
    means = {name: float(one(edges)[0]) for name, one in over_time.items()}
    several, priority = np.unique(served.requests.priority), served.requests.priority
    by_priority = {int(one): _spreads(records, sent & (priority == one)) for one in several if len(several) > 1}
    return Part(window.start_ps, window.end_ps, metrics, _waits(served, sent), means, by_priority)


def _spreads(records: Mapping[str, np.Array], whom: np.Array) -> dict[str, Block]:
    return {name: spread(unit, records[name][whom]) for name, unit in UNITS.items()
            if not np.isnan(records[name][whom]).all()}  # fmt: skip


def _totals(served: Served, good: np.Array, window: Window, sent: np.Array) -> dict[str, Block]:
    """Of the requests that were sent in it."""
    failed = (served.status == REFUSED) | (served.status == LOST)
    refused = int((failed & window.holds(served.times["arrival"])).sum())
    done, inputs = int(sent.sum()), int(served.requests.input_tokens[sent].sum())
    found = {"request_count": single("requests", done), "error_request_count": single("requests", refused),
             "total_isl": single("tokens", inputs),
             "total_osl": single("tokens", int(served.emitted[sent].sum()))}  # fmt: skip
    if done:
        found["prefix_cache_hit_ratio"] = single("ratio", served.cached_tokens[sent].sum() / inputs)
        found |= {hit_ratio(tier): single("ratio", tokens[sent].sum() / inputs)
                  for tier, tokens in served.cached_by_tier().items()}  # fmt: skip
    if good.size and done + refused:
        found["good_request_count"] = single("requests", int(good[sent].sum()))
        found["good_request_fraction"] = single("ratio", good[sent].sum() / (done + refused))
    return found


def _rates(served: Served, chunks: Chunks, good: np.Array, window: Window) -> dict[str, Block]:
    """Of what ended and came in it, none where it lasts no time."""
    seconds = (min(window.end_ps, served.end_ps) - window.start_ps) / PS_PER_S
    if seconds <= 0:
        return {}
    ended = served.done & window.holds(served.times["last_token"])
    tokens = tokens_between(served, chunks, window.start_ps, window.end_ps) / seconds
    found = {"benchmark_duration": single("sec", seconds),
             "request_throughput": single("requests/sec", ended.sum() / seconds),
             "output_token_throughput": single("tokens/sec", tokens),
             "output_token_throughput_per_gpu": single("tokens/sec/gpu", tokens / served.gpus)}  # fmt: skip
    if good.size:
        found["goodput"] = single("requests/sec", good[ended].sum() / seconds)
    return found


def _balance(served: Served, window: Window) -> dict[str, Block]:
    """Tokens that a data-parallel group has in a step, on average, over those of the group that has most:
    TensorRT-LLM's balance ratio, of the steps that begin in it. None where no engine has several groups."""
    steps = served.steps
    if max(served.groups, default=1) < 2:
        return {}
    groups = np.array(served.groups, dtype=np.int64)[steps["engine"]]
    if not (several := (groups > 1) & (steps["most_tokens"] > 0) & window.holds(steps["start_ps"])).any():
        return {}
    ratios = (steps["decoding"] + steps["prefill_tokens"]) / groups / np.maximum(steps["most_tokens"], 1)
    return {"attention_dp_balance_ratio": spread("ratio", ratios[several])}


def _waits(served: Served, whom: np.Array) -> dict[str, dict[str, float]]:
    if not whom.any():
        return {}
    waits = {name: column[whom] for name, column in served.waits().items()}
    total = sum(float(column.sum()) for column in waits.values())
    return {name: {"mean_s": float(waits[name].mean()), "p99_s": float(np.percentile(waits[name], 99)),
                   "share": float(waits[name].sum()) / total if total else 0.0} for name in waits}  # fmt: skip
