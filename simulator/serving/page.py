"""The page of a service: what users felt, what they waited for, and what engines did over time; of several, a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator import np
from simulator.np import Array
from simulator.observe.page.charts import Line, Panel, Part, panels, stacked
from simulator.observe.page.document import Page
from simulator.observe.page.html import Chart, Section, chart, element, escaped, folded, joined, paragraph, shown, table
from simulator.observe.page.many_page import Point, curve_section, differing, told_apart
from simulator.observe.page.palette import SERIES
from simulator.observe.tables import Titled, number
from simulator.paths import installed_version
from simulator.serving.harm import harm_tables
from simulator.serving.kept_file import RATES
from simulator.serving.kept_result import KeptService
from simulator.serving.over_time import LEVELS, level
from simulator.serving.show import BESIDE, SHOWN, WAITED_FOR, steps_lines
from simulator.units import PS_PER_S

BINS, MOST_POINTS = 300, 6000
STATISTICS = ("avg", "p50", "p90", "p95", "p99", "max")


def service_page(services: Sequence[KeptService]) -> Page:
    """One service section by section, or several side by side."""
    if len(services) > 1:
        return _several(services)
    service = services[0]
    config = service.export["input_config"]
    facts = element("ul", *(element("li", escaped(fact)) for fact in facts_of(service)), class_="facts")
    sections = [_latencies(service), *_harm(service), _distribution(service), _waits(service), _requests(service),
                _levels(service), _steps(service), _settings(config)]
    return Page(f"{service.name}: {config.get('title', '')}".removesuffix(": "), facts, sections, installed_version())


def facts_of(service: KeptService) -> list[str]:
    """Lines below the title: how much was served, and what to beware of."""
    braid, export = service.export["braid"], service.export
    counts = braid["requests"]
    lines = [f"{counts['requests']:,} requests: " + ", ".join(
        f"{counts[kind]:,} {kind}" for kind in ("done", "refused", "unfinished", "lost")
        if counts.get(kind) or kind == "done"),
        f"{braid['gpus']} GPUs; seed {export['input_config'].get('seed', 0)}{_version(export)}",
        "all: " + _rates(export)]
    if "steady_state_metrics" in export:
        lines.append(f"steady: {_rates(service.steady)}, {braid['steady_state']['why']}")
    else:
        lines.append(f"no steady state: {braid['steady_state']['why']}")
    if export.get("was_cancelled"):
        lines.append("INTERRUPTED: this is of the part that was simulated")
    if braid.get("saturated"):
        rate, stable = (braid["saturated"][name] for name in ("rate_per_s", "stable_per_s"))
        lines.append(f"SATURATED: {number(rate)} requests/s are offered, about {number(stable)} can be served; the "
                     "queue grows, and times depend on the length of the run")
    return lines


def _version(export: Mapping[str, Any]) -> str:
    version = export["input_config"].get("version")
    return f"; Braid {version}" if version else ""


def _rates(metrics: Mapping[str, Any]) -> str:
    found = [f"{number(float(metrics[name]['avg']))} {unit}" for name, unit in RATES.items() if name in metrics]
    return ", ".join(found) or "nothing ended"


def _latencies(service: KeptService) -> Section:
    """Percentiles, of all requests and of the steady state."""
    parts = []
    sides = ("all requests", service.export), ("steady state", service.export.get("steady_state_metrics"))
    for name, metrics in sides:
        if not metrics:
            continue
        rows = [(f"{metric}, {metrics[metric]['unit']}", BESIDE.get(metric, ""),
                 *(number(float(metrics[metric][one])) for one in STATISTICS)) for metric in SHOWN if metric in metrics]
        headings = ("<metric", "<also called", *(f">{one}" for one in STATISTICS))
        parts.append(table(Titled(name, headings, rows)))
    promised = service.export["braid"].get("goodput") or {}
    if promised:
        said = ", ".join(f"{name} {value:g}" for name, value in promised.items())
        parts.append(paragraph(f"promised: {said}; {_good(service)}"))
    return Section("latency", "Latency", joined(parts))


def _harm(service: KeptService) -> list[Section]:
    """What faults did; nothing where none struck."""
    braid = service.export["braid"]
    if "faults" not in braid:
        return []
    harm = {name: braid[name] for name in ("faults", "against", "waiting_for")}
    return [Section("faults", "What faults did", joined([table(one) for one in harm_tables(harm)]))]


def _good(service: KeptService) -> str:
    metrics = service.steady
    if "good_request_fraction" not in metrics:
        return "goodput is not known"
    return f"{float(metrics['good_request_fraction']['avg']):.1%} of requests keep it"


def _distribution(service: KeptService) -> Section:
    """How many requests had less than each time."""
    wanted = {"time to first token (TTFT)": "time_to_first_token_ms", "time of a token after it (TPOT)":
              "inter_token_latency_ms", "until the last token (E2EL)": "request_latency_ms"}
    share = np.linspace(0.0, 1.0, 201)
    lines: list[tuple[str, list[float]]] = []
    for name, column in wanted.items():
        values = service.requests[column]
        values = values[~np.isnan(values)]
        if len(values):
            lines.append((name, [_four(one) for one in np.quantile(values, share).tolist()]))
    if not lines:
        return Section("spread", "How latency is spread", paragraph("No request ended."))
    traces = []
    layout: dict[str, Any] = {"showlegend": False, "annotations": [], "shapes": [], "grid":
                              {"rows": len(lines), "columns": 1, "pattern": "independent", "ygap": 0.42}}
    percent = [round(100 * one, 1) for one in share.tolist()]
    for place, (name, quantiles) in enumerate(lines):
        end = str(place + 1) if place else ""
        traces.append({"type": "scatter", "mode": "lines", "x": quantiles, "y": percent,
                       "xaxis": f"x{end}", "yaxis": f"y{end}", "name": shown(name),
                       "line": {"color": SERIES[place], "width": 2},
                       "hovertemplate": "%{y:.1f}% of requests below %{x:,.4~g} ms<extra></extra>"})
        layout[f"xaxis{end}"] = {"title": {"text": f"{shown(name)}, ms"}, "rangemode": "tozero"}
        layout[f"yaxis{end}"] = {"title": {"text": "% of requests"}, "range": [0, 101]}
    made = Chart("share of requests below each latency", traces, layout, 60 + 190 * len(lines))
    return Section("spread", "How latency is spread", chart(made))


def _four(value: float) -> float:
    return float(f"{value:.5g}")


def _waits(service: KeptService) -> Section:
    """What a mean request waited for, one after the other."""
    sides = [("all requests", service.export["braid"]["whole"]["waits"])]
    if waits := service.export["braid"]["steady_state"].get("waits"):
        sides.append(("steady state", waits))
    names = [name for name in WAITED_FOR if any(name in waits for _, waits in sides)]
    parts = [Part(f"{name} ({WAITED_FOR[name]})", [1e3 * waits.get(name, {}).get("mean_s", 0.0) for _, waits in sides],
                  SERIES[place % len(SERIES)]) for place, name in enumerate(names)]
    parts = [part for part in parts if any(part.values)]
    rows = [(side, name, WAITED_FOR[name], waits[name]["mean_s"] * 1e3, waits[name]["p99_s"] * 1e3,
             f"{waits[name]['share']:.1%}") for side, waits in sides for name in names if name in waits]
    values = Titled("", ("<of", "<wait", "<for", ">mean, ms", ">p99, ms", ">share of E2EL"), rows)
    if not parts:
        return Section("waits", "What requests waited for", paragraph("No request ended."))
    made = stacked("what a mean request waited for, in ms", [side for side, _ in sides], parts, "ms", "ms")
    return Section("waits", "What requests waited for", joined([chart(made), table(values)]))


def _requests(service: KeptService) -> Section:
    """Latencies of requests by when they were sent."""
    requests = service.requests
    every = max(1, -(-len(requests["arrival_s"]) // MOST_POINTS))
    sent = requests["arrival_s"][::every]
    wanted = [("TTFT", "time_to_first_token_ms"), ("TPOT", "inter_token_latency_ms")]
    traces = []
    layout: dict[str, Any] = {"showlegend": False, "xaxis": {"title": {"text": "sent, s"}, "anchor": "y2"}}
    for place, (name, column) in enumerate(wanted):
        end = str(place + 1) if place else ""
        values = requests[column][::every]
        there = ~np.isnan(values)
        traces.append({"type": "scatter", "mode": "markers", "name": name, "yaxis": f"y{end}",
                       "x": [_four(one) for one in sent[there].tolist()],
                       "y": [_four(one) for one in values[there].tolist()],
                       "marker": {"size": 4, "opacity": 0.6, "color": SERIES[place]},
                       "hovertemplate": f"{name} %{{y:,.4~g}} ms, sent at %{{x:.5~g}} s<extra></extra>"})
        layout[f"yaxis{end}"] = {"domain": [0.54 - 0.54 * place, 1 - 0.54 * place], "title": {"text": f"{name}, ms"},
                                 "rangemode": "tozero"}
    said = f"Every {every}th request is drawn." if every > 1 else "Every request is drawn."
    label = "time to first token and time per output token of each request, by when it was sent"
    made = Chart(label, traces, layout, 420)
    return Section("requests", "Requests over time", joined([chart(made), paragraph(said)]))


def _levels(service: KeptService) -> Section:
    """Requests in flight, the queue, what decodes, what KV cache holds: means over time."""
    over_time = service.export["braid"]["over_time"]
    at = over_time["start_s"]
    names = [name for name in over_time if name != "start_s"]
    lines = [_step_line(name, [_four(one) for one in at], np.array(over_time[name]), place)
             for place, name in enumerate(names)]
    titles = [Panel(f"{name.replace('_', ' ')}: {LEVELS[name]}" if name in LEVELS else name.replace("_", " "), "")
              for name in names]
    made = panels("requests in flight, queue, decoding requests and KV cache over time", "s", titles, lines, each=110)
    return Section("levels", "Queue, batch and KV cache over time", chart(made))


def _steps(service: KeptService) -> Section:
    """How long steps took, and what was in them."""
    steps = service.steps
    if not len(steps["start_s"]):
        return Section("steps", "Steps", paragraph("No step ran."))
    begin, end = steps["start_s"], steps["start_s"] + steps["duration_s"]
    edges = np.linspace(0.0, float(end.max()), BINS + 1)
    at = [_four(one) for one in edges[:-1].tolist()]

    def mean(value: Array) -> Array:
        return level(begin * PS_PER_S, end * PS_PER_S, value)(edges * PS_PER_S)

    busy = mean(np.ones(len(begin)))
    length = np.divide(mean(steps["duration_s"] * 1e3), busy, out=np.zeros(BINS), where=busy > 1e-9)
    kinds = [("length of the step at work, ms", length), ("engines at work", busy),
             ("prompt tokens a second", mean(steps["prefill_tokens"] / np.maximum(steps["duration_s"], 1e-12))),
             ("requests waiting at engines", mean(steps["waiting"]))]
    lines = [_step_line(name, at, values, place) for place, (name, values) in enumerate(kinds)]
    made = panels("steps over time", "s", [Panel(name, "") for name, _ in kinds], lines, each=110)
    engines = set(steps["engine"].tolist())
    about = service.export["braid"].get("steps") or {}
    said = [f"{len(begin):,} steps of {len(engines)} engine{'s' * (len(engines) != 1)}.", *_lines(about)]
    return Section("steps", "Steps", joined([chart(made), *map(paragraph, said)]))


def _step_line(name: str, at: Sequence[float], values: Array, place: int) -> Line:
    colour = SERIES[place % len(SERIES)]
    return Line(name, at, [_four(one) for one in values.tolist()], colour, place, steps=True, fill=True)


def _lines(about: Mapping[str, Any]) -> list[str]:
    return [*steps_lines(about)] if about else []


def _settings(config: Mapping[str, Any]) -> Section:
    settings = config.get("settings")
    flat = {**config, **(settings if isinstance(settings, dict) else {})}
    rows = [(key, "none" if value is None else str(value)) for key, value in flat.items()
            if not isinstance(value, dict)]
    settings_table = table(Titled("", ("<setting", "~value"), rows))
    return Section("provenance", "How it was run", folded(f"all settings ({len(rows)})", settings_table))


def _several(services: Sequence[KeptService]) -> Page:
    """Metrics side by side, and throughput over latency."""
    given = [service.export["input_config"].get("settings") or {} for service in services]
    found = differing([service.name for service in services], given)
    names = [f"{place + 1} {service.name}" for place, service in enumerate(services)]
    title = f"{len(services)} services side by side"
    if found is not None:
        title, names = f"{services[0].name}: {len(services)} values of {found[0]}", told_apart(found[1])
    wanted = [*RATES, *(name for name in SHOWN if name not in RATES)]
    rows: list[tuple[str, ...]] = []
    for metric in wanted:
        blocks = [service.steady.get(metric) for service in services]
        unit = next((str(one.get("unit", "")) for one in blocks if one), None)
        if unit is not None:
            rows.append((f"{metric}, {unit}", *("-" if one is None else number(float(one["avg"])) for one in blocks)))
    headings = ("<metric", *(f">{one}" for one in names))
    values = table(Titled("means, of the steady state where there is one", headings, rows))
    facts = element("ul", *(element("li", escaped(f"{name}: {_rates(service.steady)}"))
                            for name, service in zip(names, services, strict=True)), class_="facts")
    sections = [Section("latency", "Side by side", values), *_curve(names, services)]
    return Page(title, facts, sections, installed_version())


def _curve(names: Sequence[str], services: Sequence[KeptService]) -> list[Section]:
    latency, rate = "inter_token_latency", "output_token_throughput_per_gpu"
    points = [Point(name, float(service.steady[latency]["avg"]), float(service.steady[rate]["avg"]))
              for name, service in zip(names, services, strict=True)
              if latency in service.steady and rate in service.steady]
    return [curve_section(f"{latency}, ms (TPOT)", f"{rate}, tok/s/GPU", points)] if len(points) > 1 else []
