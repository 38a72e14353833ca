"""The page of several runs, as a sweep writes them: their metrics over what was changed, and what is best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulator.observe.page.charts import Line, Panel, Part, panels, stacked
from simulator.observe.page.document import Page, Tell
from simulator.observe.page.html import Chart, Section, chart, element, escaped, folded, joined, paragraph, shown, table
from simulator.observe.page.palette import ACCOUNT, SERIES
from simulator.observe.page.sides import ordered
from simulator.observe.page.summary import Words
from simulator.observe.recorded import Recorded
from simulator.observe.tables import Titled, number
from simulator.units import parse, to_si

SHOWN = ("latency_ms", "ttft_ms", "iteration_ms", "tpot_ms", "throughput_tok_s", "throughput_tok_s_per_card",
         "exposed_comm_ms", "hidden_comm_ms", "waiting_comm_ms", "compute_stretch", "mfu", "mbu")
LATENCIES = ("tpot_ms", "iteration_ms", "ttft_ms", "latency_ms", "latency_us")
RATES = ("throughput_tok_s_per_card", "throughput_tok_s")


class Point(NamedTuple):
    """A result on a plane: latency (less is better) and rate (more is better)."""

    name: str
    latency: float
    rate: float


def changed(runs: Sequence[Recorded]) -> tuple[str, list[str]]:
    """(what differs between runs, its value in each): settings that were changed and the seed, else settings, else the
    scenario."""
    names = [run.name for run in runs]
    for given in ([{**run.about["changes"], "seed": run.about["seed"]} for run in runs],
                  [run.about["settings"] for run in runs]):
        if found := differing(names, given):
            return found
    return "scenario", names


def differing(names: Sequence[str], given: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]] | None:
    """(the settings that differ, their values in each); None where none does, or what was run has several names."""
    keys = [key for key in ordered(*given) if len({str(one.get(key, "")) for one in given}) > 1]
    if not keys or len(set(names)) > 1:
        return None
    return ", ".join(keys), [", ".join(str(one.get(key, "as it is")) for key in keys) for one in given]


def told_apart(names: Sequence[str]) -> list[str]:
    """Names, with their place behind those that there are several of: bars of one name would be drawn as one."""
    return [f"{name} ({place + 1})" if names.count(name) > 1 else name for place, name in enumerate(names)]


def size_of(text: str) -> float | None:
    """What a value is as a number in SI; None: it is none."""
    try:
        return to_si(*parse(text))
    except ValueError:
        return None


def in_order(runs: Sequence[Recorded]) -> tuple[str, list[tuple[str, Recorded]]]:
    """(what differs, [(its value, told apart, run)]), ascending where all values are numbers."""
    key, values = changed(runs)
    sizes = [size_of(value) for value in values]
    pairs = list(zip(values, runs, strict=True))
    known = [size for size in sizes if size is not None]
    if len(known) == len(pairs):
        order = sorted(range(len(pairs)), key=lambda place: known[place])
        pairs = [pairs[place] for place in order]
    return key, list(zip(told_apart([value for value, _ in pairs]), (run for _, run in pairs), strict=True))


def front(points: Sequence[Point]) -> list[Point]:
    """Those that no other is better than in latency and in rate (the Pareto front), by latency."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda one: (one.latency, -one.rate)):
        if not kept or point.rate > kept[-1].rate:
            kept.append(point)
    return kept


def many_page(runs: Sequence[Recorded], words: Words, tell: Tell = lambda share: None) -> Page:
    """Metrics, where the time went, latency and throughput, memory: each over the runs."""
    key, pairs = in_order(runs)
    names = ordered(run.name for _, run in pairs)
    title = f"{', '.join(names)}: {len(pairs)} values of {key}"
    if key == "scenario":
        title = f"{len(pairs)} scenarios side by side"
    for place, run in enumerate(runs):
        tell(place / len(runs))
        _ = run.measured
    first = pairs[0][1].about
    facts = [f"{first['machine']}; {first['model']}; Braid {first['version']}",
             f"{key}: {'; '.join(value for value, _ in pairs)}"]
    sections = [_metrics(key, pairs, words), *_curve(pairs), _times(pairs), _memory(pairs)]
    head = element("ul", *(element("li", escaped(fact)) for fact in facts), class_="facts")
    return Page(title, head, sections, str(first["version"]))


def _metrics(key: str, pairs: Sequence[tuple[str, Recorded]], words: Words) -> Section:
    """Charts of the headline metrics, and a table of all."""
    there = [name for name in SHOWN if sum(run.metrics.get(name) is not None for _, run in pairs) > 1]
    places = [shown(value) for value, _ in pairs]
    lines = [Line(name, places, [run.metrics.get(name) for _, run in pairs], SERIES[place % len(SERIES)], place)
             for place, name in enumerate(there)]
    titles = [Panel(f"{name}: {words.meaning(name)}".removesuffix(": "), "") for name in there]
    made = panels(f"metrics over {key}", key, titles, lines, each=128, names=True)
    names = [name for name in ordered(*(run.metrics for _, run in pairs)) if not name.startswith(("block_", "sent_"))]
    rows = [(name, *(_number(run.metrics.get(name)) for _, run in pairs)) for name in names]
    values = Titled("", ("<metric", *(f">{value}" for value, _ in pairs)), rows)
    body = joined([chart(made), folded("all metrics as a table", table(values, wide=True))])
    return Section("metrics", f"Metrics over {key}", body)


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)


def points_of(pairs: Sequence[tuple[str, Recorded]]) -> tuple[str, str, list[Point]]:
    """(latency metric, rate metric, a point for each run that has both); the first of each that two runs have."""

    def best(names: Sequence[str]) -> str:
        return next((name for name in names if sum(bool(run.metrics.get(name)) for _, run in pairs) > 1), "")

    latency, rate = best(LATENCIES), best(RATES)
    both = [(value, run.metrics.get(latency), run.metrics.get(rate)) for value, run in pairs]
    return latency, rate, [Point(value, x, y) for value, x, y in both if x and y and math.isfinite(x * y)]


def _curve(pairs: Sequence[tuple[str, Recorded]]) -> list[Section]:
    latency, rate, points = points_of(pairs)
    if len(points) < 2:
        return []
    return [curve_section(latency, rate, points)]


def curve_section(latency: str, rate: str, points: Sequence[Point]) -> Section:
    """Throughput over latency, and which results no other one beats in both."""
    best = front(points)
    said = (f"Up and to the left is better. On the line lie those that no other result beats in both "
            f"(the Pareto front): {', '.join(point.name for point in best)}.")
    rows = [(one.name, number(one.latency), number(one.rate), "yes" if one in best else "") for one in points]
    values = Titled("", ("<result", f">{latency}", f">{rate}", "<on the front"), rows)
    body = joined([chart(curve_chart(latency, rate, points)), paragraph(said), folded("as a table", table(values))])
    return Section("curve", "Throughput over latency", body)


def curve_chart(latency: str, rate: str, points: Sequence[Point]) -> Chart:
    """Every result a point with its name, the front a line."""
    best = front(points)
    said = "%{text}: %{y:,.5~g} at %{x:,.4~g}<extra></extra>"
    traces: list[Mapping[str, Any]] = [
        {"type": "scatter", "mode": "lines", "name": "Pareto front", "x": [one.latency for one in best],
         "y": [one.rate for one in best], "line": {"color": SERIES[1], "width": 2.5}, "hoverinfo": "skip"},
        {"type": "scatter", "mode": "markers+text", "name": "results", "x": [one.latency for one in points],
         "y": [one.rate for one in points], "text": [shown(one.name) for one in points], "textposition": "top left",
         "cliponaxis": False,
         "marker": {"size": 11, "color": [SERIES[1] if one in best else SERIES[0] for one in points]},
         "hovertemplate": said}]
    layout = {"xaxis": {"title": {"text": shown(latency)}, "rangemode": "tozero"},
              "yaxis": {"title": {"text": shown(rate)}, "rangemode": "tozero"}, "showlegend": True}
    return Chart(f"{rate} over {latency}, with the Pareto front", traces, layout, 420)


def _times(pairs: Sequence[tuple[str, Recorded]]) -> Section:
    """Where the time of each run went, and each kind of communication."""
    accounts = [run.measured.account_ps for _, run in pairs]
    parts = [Part(heading, [one.get(heading, 0.0) / 1e9 for one in accounts], ACCOUNT.get(heading, "#888888"))
             for heading in ordered(*accounts) if any(one.get(heading) for one in accounts)]
    account = stacked("where the time of each run went, in ms", [value for value, _ in pairs], parts, "ms", "ms")
    said = ("Every instant of an average rank, counted once under the first heading that applies: compute, "
            "communication beside no compute, other work, waiting, the host.")
    all_of_it = [run.measured.all_communication for _, run in pairs]
    some = [Part("exposed", [one.exposed_ps / 1e9 for one in all_of_it], SERIES[1]),
            Part("hidden", [one.hidden_ps / 1e9 for one in all_of_it], SERIES[1], hatched=True),
            Part("waiting", [one.waiting_ps / 1e9 for one in all_of_it], ACCOUNT["waiting for peers or cores"])]
    communication = stacked("communication of each run, exposed and hidden, in ms", [value for value, _ in pairs],
                            [part for part in some if any(part.values)] or some[:1], "ms of communication", "ms")
    return Section("kinds", "Where the time went", joined([chart(account), paragraph(said), chart(communication)]))


def _memory(pairs: Sequence[tuple[str, Recorded]]) -> Section:
    """What the fullest rank of each run keeps, by category."""
    by_category: list[dict[str, float]] = []
    for _, run in pairs:
        sizes: dict[str, float] = {}
        for category, _, size in run.memory.items:
            sizes[category] = sizes.get(category, 0.0) + size / 2**30
        by_category.append(sizes)
    parts = [Part(category, [one.get(category, 0.0) for one in by_category], SERIES[place % len(SERIES)])
             for place, category in enumerate(ordered(*by_category))]
    usable = {run.memory.usable_bytes / 2**30 for _, run in pairs}
    wanted = {"usable": min(usable)} if len(usable) == 1 else {}
    made = stacked("memory of the fullest rank of each run, in GiB", [value for value, _ in pairs], parts, "GiB", "GiB",
                   wanted)
    return Section("memory", "Memory of the fullest rank", chart(made))
