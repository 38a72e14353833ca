"""What a person reads of a service: how much it served, how long requests took, and what they waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from simulator.np import Array
from simulator.observe.tables import Titled, console, number, show
from simulator.serving.goodput import LARGER_IS_BETTER, VLLM
from simulator.serving.harm import harm_of, harm_tables
from simulator.serving.outcome import Outcome, Part, hit_ratio
from simulator.serving.over_time import BALANCEDNESS
from simulator.serving.until import WITHIN
from simulator.units import PS_PER_S

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = ("time_to_first_token", "time_to_second_token", "inter_token_latency", "inter_chunk_latency",
         "time_between_tokens", "request_latency", "output_token_throughput_per_user", "input_sequence_length",
         "output_sequence_length")  # fmt: skip
OF_PRIORITIES = ("time_to_first_token", "inter_token_latency", "request_latency")
STATISTICS = ("avg", "p50", "p90", "p99")
BESIDE = VLLM | {"time_between_tokens": "TBT (Mooncake)"}
WAITED_FOR = {
    "front": "API servers", "queue": "to be scheduled first", "load": "its blocks from below HBM",
    "prefill": "its prompt",
    "transfer": "KV to the decode engine", "decode": "its tokens", "preempted": "to decode again",
}  # fmt: skip
LEFT = " (with an engine, or for want of one)"
BARS = "▁▂▃▄▅▆▇█"


def print_outcome(found: Outcome, title: str, file: IO[str] | None = None, width: int | None = None) -> None:
    """Prints the report to a terminal, or as plain text to anything else (see observe.tables)."""
    show(console(file, width), *parts(found, title))


def parts(found: Outcome, title: str) -> list[RenderableType]:
    """The pieces of a report from top to bottom."""
    from rich.text import Text

    made: list[RenderableType] = [Text.assemble((title, "bold"), *(f"\n{line}" for line in headline(found))), ""]
    for name, part in (("all requests", found.whole), ("steady state", found.steady)):
        if part is not None:
            made += [_latencies(name, part), *([_priorities(name, part)] if part.priorities else ()),
                     *([_waits(name, part)] if part.waits else ())]  # fmt: skip
    made += harm_tables(harm_of(found))
    made.append(_over_time(found))
    if found.served.about_steps:
        made.append(Text("\n".join(steps_lines(found.served.about_steps))))
    return made


def headline(found: Outcome) -> Iterator[str]:
    """Lines below the title: what was served, how fast, and what to beware of."""
    counts, served = found.counts, found.served
    if served.interrupted:
        yield "INTERRUPTED: what follows is of the part that was simulated"
    gone = ", ".join(f"{counts[kind]:,} {kind}{why}" for kind, why in (
        ("done", ""), ("refused", " (longer than memory)"), ("unfinished", ""), ("lost", LEFT))
        if counts.get(kind) or kind == "done")
    yield f"{counts['requests']:,} request{'s' * (counts['requests'] != 1)}: {gone}"
    yield _rates("all", found.whole)
    if found.steady is None:
        yield f"no steady state: {found.window.why}"
    else:
        yield _rates("steady", found.steady)
        yield f"steady {found.window.why}"
    if served.lower is not None:
        yield from tier_lines(found)
    if served.until:
        yield _until(found)
    if found.promised:
        yield from _goodput(found)
    if BALANCEDNESS in found.over_time:
        yield _experts(found)
    if served.saturated is not None:
        rate, stable = (served.saturated[name] for name in ("rate_per_s", "stable_per_s"))
        yield f"SATURATED: {number(rate)} requests/s are offered, about {number(stable)} can be served;"
        yield "the queue grows, and times depend on the length of the run"


def _rates(name: str, part: Part) -> str:
    texts = (("benchmark_duration", "s"), ("request_throughput", "requests/s"), ("output_token_throughput", "tok/s"),
             ("output_token_throughput_per_gpu", "tok/s/GPU"))  # fmt: skip
    found = [f"{number(float(part.metrics[metric]['avg']))} {unit}" for metric, unit in texts if metric in part.metrics]
    if (hits := part.metrics.get("prefix_cache_hit_ratio")) and hits["avg"]:
        found.append(f"{hits['avg']:.1%} of prompts cached")
    return f"{name}: {', '.join(found) or 'nothing ended'}"


def tier_lines(found: Outcome) -> Iterator[str]:
    """Where prompts were found, and what moved below HBM."""
    lower = found.served.lower
    assert lower is not None
    metrics = found.whole.metrics
    parts = [f"{float(metrics[name]['avg']):.1%} {tier}" for tier in ("hbm", *lower.tokens)
             if (name := hit_ratio(tier)) in metrics]  # fmt: skip
    yield f"prompts cached: {', '.join(parts) or 'none'}"
    for tier, about in lower.about.items():
        yield (f"{tier}: {number(about['size_gib'])} GiB = {about['room_tokens']:,.0f} tokens; "
               + ", ".join(f"{about[f'{what}_tokens']:,.0f} {what}" for what in ("read", "written", "evicted")))


def _until(found: Outcome) -> str:
    """Whether the steady state is known as well as it was to be."""
    texts = [f"{BESIDE.get(name, 'tok/s')} +-{one.half_width / one.mean:.1%}"
             for name, one in found.estimates.items()]  # fmt: skip
    if texts and all(one.known for one in found.estimates.values()):
        return f"known within {WITHIN:.0%}: {', '.join(texts)} (95%, batch means)"
    why = f"{', '.join(texts)}; more requests would tell" if texts else found.window.why
    return f"NOT KNOWN within {WITHIN:.0%} after all {found.counts['requests']:,} requests: {why}"


def _goodput(found: Outcome) -> Iterator[str]:
    promised = ", ".join(f"{name} {'>=' if name in LARGER_IS_BETTER else '<='} {value:g}"
                         f"{'' if name in LARGER_IS_BETTER else ' ms'}" for name, value in found.promised.items())
    texts = []
    for name, part in (("all", found.whole), ("steady", found.steady)):
        if part is not None and "goodput" in part.metrics:
            rate, share = (float(part.metrics[metric]["avg"]) for metric in ("goodput", "good_request_fraction"))
            texts.append(f"{name} {number(rate)} requests/s ({share:.1%} good)")
    yield f"goodput: {', '.join(texts) or 'none'}"
    yield f"good: {promised}"


def _experts(found: Outcome) -> str:
    moved, part = found.served.moved, found.steady or found.whole
    size, count = sum(one.size_bytes for one in moved), sum(one.experts for one in moved)
    times = f"rearranged {len(moved):,} times, {count:,} moved, {number(size / 1e9)} GB" if moved else "not rearranged"
    return f"experts: balancedness {number(part.means[BALANCEDNESS])}, {times}"


def _latencies(name: str, part: Part) -> Titled:
    rows = [(_name(metric, str(part.metrics[metric]["unit"])), BESIDE.get(metric, ""),
             *(number(float(part.metrics[metric][one])) for one in STATISTICS))
            for metric in SHOWN if metric in part.metrics]  # fmt: skip
    headings = (f"<{name}", "<also called", *(f">{one}" for one in STATISTICS))
    return Titled("", headings, rows, _span(part))


def _priorities(name: str, part: Part) -> Titled:
    rows = [(str(priority), _name(metric, str(metrics[metric]["unit"])), f"{metrics[metric]['count']:,}",
             *(number(float(metrics[metric][one])) for one in STATISTICS))
            for priority, metrics in part.priorities.items() for metric in OF_PRIORITIES if metric in metrics]
    return Titled("", (f"<{name}, priority", "<metric", ">requests", *(f">{one}" for one in STATISTICS)), rows)


def _name(metric: str, unit: str) -> str:
    return f"{metric}, {unit.replace('tokens/sec/user', 'tok/s')}"


def _span(part: Part) -> str:
    return f"{part.start_ps / PS_PER_S:.4g} to {part.end_ps / PS_PER_S:.4g} s"


def _waits(name: str, part: Part) -> Titled:
    rows = [(wait, WAITED_FOR[wait], one["mean_s"] * 1e3, one["p99_s"] * 1e3, f"{one['share']:.1%}")
            for wait, one in part.waits.items() if one["share"] or wait != "preempted"]  # fmt: skip
    return Titled("", (f"<{name} waited", "<for", ">mean, ms", ">p99, ms", ">share of E2EL"), rows)


def _over_time(found: Outcome) -> Titled:
    means = found.steady.means if found.steady is not None else found.whole.means
    which = "mean, steady" if found.steady is not None else "mean"
    rows = [(name.replace("_", " "), bars(found.over_time[name]), number(means[name]),
             number(float(found.over_time[name].max()))) for name in found.over_time if name != "start_s"]  # fmt: skip
    return Titled("", ("<over time", f"<{_span(found.whole)}", f">{which}", ">most"), rows)


def bars(values: Array) -> str:
    """One character for each value, as high as it is of the highest; a space for nothing."""
    top = float(values.max(initial=0.0))
    return "".join(BARS[min(int(value / top * len(BARS)), len(BARS) - 1)] if value > 0 else " " for value in values)


def steps_lines(about: Mapping[str, Any]) -> Iterator[str]:
    """How the times of steps were found, and how far from simulated ones they are."""
    kinds = (("simulated", "simulated"), ("known", "known from disk"), ("interpolated", "interpolated"),
             ("audited", "audited"))  # fmt: skip
    yield "steps: " + ", ".join(f"{about[kind]:,} {text}" for kind, text in kinds if kind in about)
    if about.get("audited"):
        corrected = f"; interpolated times x{about['correction']:.4f}" if "correction" in about else ""
        yield (f"error of interpolated steps: mean {about['audit_error_mean']:+.2%}, "
               f"worst {about['audit_error_worst']:+.2%}{corrected}")  # fmt: skip
