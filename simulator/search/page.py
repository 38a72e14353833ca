"""The page of a search: the front of rates, the best deployments with their commands, and what was left out and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.observe.page.document import Page
from simulator.observe.page.html import (
    Chart,
    Html,
    Section,
    chart,
    element,
    escaped,
    folded,
    joined,
    paragraph,
    shown,
    table,
)
from simulator.observe.page.palette import SERIES
from simulator.observe.tables import Titled, number
from simulator.paths import installed_version
from simulator.search.cost import cost_of
from simulator.search.deployment import Ask, Engine, Found
from simulator.search.emit import flags, framework_of, steps
from simulator.spec.load import load_machine

MOST_POINTS = 4000  # that are drawn besides the front
FAINT = 0.3


def search_page(asked: Ask, points: Sequence[Found], front: Sequence[Found], top: Sequence[Found],
                refused: Mapping[str, int], dropped: int, notes: Sequence[str],
                dollars_per_gpu_hour: float | None = None) -> Page:
    """points: all that were seen; front: those that no other beats in both rates; top: the best, in order; refused: how
    many deployments by reason; dropped: whose roofline cannot reach the front; dollars_per_gpu_hour: if one is
    given."""
    title = f"{asked.model} on {asked.machine}: what to deploy"
    head = element("ul", *(element("li", escaped(fact)) for fact in _facts(asked, points, refused, dropped)),
                   class_="facts")  # fmt: skip
    sections = [_front(points, front, top), _top(asked, top, dollars_per_gpu_hour), *_commands(asked, top),
                *_left_out(refused, dropped)]
    if notes:
        sections.append(Section("notes", "Notes", joined(map(paragraph, notes))))
    return Page(title, head, sections, installed_version())


def _facts(asked: Ask, points: Sequence[Found], refused: Mapping[str, int], dropped: int) -> list[str]:
    prefix = f", of which {asked.prefix_share:.0%} is cached" if asked.prefix_share else ""
    gpus = str(asked.least_gpus) if asked.least_gpus == asked.most_gpus else f"{asked.least_gpus} to {asked.most_gpus}"
    return [f"{gpus} GPUs; {asked.input_tokens:,} tokens in{prefix}, {asked.output_tokens:,} out",
            f"TTFT of {asked.ttft_ms:g} ms and TPOT of {asked.tpot_ms:g} ms at most",
            f"{len(points):,} points seen; {sum(refused.values()):,} deployments refused, {dropped:,} dropped by their "
            f"roofline; Braid {installed_version()}"]


def _engines(engine: Engine | None, count: int) -> str | None:
    return f"{count} x {engine.mesh}" if engine else None


def _settings(found: Found) -> str:
    """Of the engines that decode, and of those that prefill, without the part of the step that each is of."""
    engines, prefill = found.deployment
    words = [", ".join([*(f"{key.rpartition('.')[2]}={text}" for key, text in one.settings), f"tokens={one.tokens}"])
             for one in (engines, prefill) if one]
    return "; prefill: ".join(words)


def _words(found: Found) -> list[str]:
    """A deployment line by line."""
    engines, before = found.deployment.engines, found.deployment.prefill
    settings = [f"{found.count} x {engines.words}"]
    return [*([f"{found.prefill_count} x {before.words} prefill"] if before else []), *settings,
            f"{found.requests:,} requests each; TTFT {number(found.ttft_ms)} ms, TPOT {number(found.tpot_ms)} ms",
            f"{found.gpus} GPUs; stopped by {found.stopped_by}"]


def _group(found: Found) -> str:
    """What points of one colour have in common: the kernels, and whether roles are apart."""
    engines, before = found.deployment.engines, found.deployment.prefill
    stacks = dict.fromkeys([before.stack if before else engines.stack, engines.stack])
    return f"{' + '.join(stacks)}, roles {'apart' if before else 'together'}"


def _front(points: Sequence[Found], front: Sequence[Found], top: Sequence[Found]) -> Section:
    """Rates of all points, with the front as a line."""
    if not points:
        return Section("front", "The front", paragraph("No deployment keeps the limits."))
    every = -(-len(points) // MOST_POINTS)
    layout = {"xaxis": {"title": {"text": "tok/s/user"}, "rangemode": "tozero"}, "showlegend": True,
              "yaxis": {"title": {"text": "tok/s/GPU"}, "rangemode": "tozero"}, "hovermode": "closest"}
    said = "Up and to the right is better: on the line lie those that no other beats in both rates."
    said += f" One point in {every} is drawn, and all of the front." if every > 1 else ""
    traces = _traces(points[::every], sorted(front, key=lambda one: one.tok_s_per_user), top)
    made = Chart("output tokens a second of a GPU over those of a user, with the front", traces, layout, 520)
    return Section("front", "The front", joined([chart(made), paragraph(said)]))


def _traces(points: Sequence[Found], front: Sequence[Found], top: Sequence[Found]) -> list[Mapping[str, Any]]:
    """Points faint, the line, those on it in full colour, and rings with numbers around the best."""
    groups = list(dict.fromkeys(map(_group, [*front, *points, *top])))
    colours = {group: SERIES[place % len(SERIES)] for place, group in enumerate(groups)}

    def markers(of: Sequence[Found], group: str, size: int, opacity: float) -> dict[str, Any]:
        some = [one for one in of if _group(one) == group]
        return {"type": "scatter", "mode": "markers", "name": shown(group), "legendgroup": shown(group),
                **_places(some), "marker": {"size": size, "opacity": opacity, "color": colours[group]},
                "text": ["<br>".join(map(shown, _words(one))) for one in some], "showlegend": opacity == 1,
                "hovertemplate": "%{text}<br>%{y:,.4~g} tok/s/GPU, %{x:,.4~g} tok/s/user<extra></extra>"}

    line = {"type": "scatter", "mode": "lines", "name": "front", "role": "roof", "hoverinfo": "skip",
            **_places(front), "line": {"width": 2}}
    rings = {"type": "scatter", "mode": "markers+text", "name": "best", **_places(top), "showlegend": False,
             "marker": {"size": 16, "symbol": "circle-open", "line": {"width": 2},
                        "color": [colours[_group(one)] for one in top]},
             "text": [f"<b>{place + 1}</b>" for place in range(len(top))], "textposition": "top right",
             "hoverinfo": "skip", "cliponaxis": False}  # fmt: skip
    return [*(markers(points, group, 6, FAINT) for group in groups), line,
            *(markers(front, group, 9, 1) for group in groups), rings]


def _places(points: Sequence[Found]) -> dict[str, Any]:
    """Of no points, a place that is not drawn: the legend shows what has one."""
    return {"x": [_four(one.tok_s_per_user) for one in points] or [None],
            "y": [_four(one.tok_s_per_gpu) for one in points] or [None]}


def _four(value: float) -> float:
    return float(f"{value:.4g}")


def _top(asked: Ask, top: Sequence[Found], price: float | None) -> Section:
    """The best in numbers: columns that none of them has a number in are left out."""
    machine = load_machine(asked.machine)
    costs = [cost_of(one, machine, price) for one in top]
    columns: dict[str, Sequence[str | float | None]] = {
        "<": [str(place + 1) for place in range(len(top))],
        "<engines": [_engines(one.deployment.engines, one.count) for one in top],
        "<prefill": [_engines(one.deployment.prefill, one.prefill_count) for one in top],
        "<stack": [one.deployment.engines.stack for one in top],
        "~settings": [_settings(one) for one in top],
        ">requests": [f"{one.requests:,}" for one in top],
        ">TTFT, ms": [one.ttft_ms for one in top], ">p99": [one.ttft_p99_ms or None for one in top],
        ">TPOT, ms": [one.tpot_ms for one in top], ">p99 ": [one.tpot_p99_ms or None for one in top],
        ">tok/s/GPU": [one.tok_s_per_gpu for one in top], ">tok/s/user": [one.tok_s_per_user for one in top],
        ">$/M tokens": [one.dollars for one in costs], ">J/token": [one.joules for one in costs],
        ">GPUs": [str(one.gpus) for one in top], "<stopped by": [one.stopped_by for one in top]}  # fmt: skip
    there = {heading: cells for heading, cells in columns.items() if any(cell is not None for cell in cells)}
    values = Titled("the best deployments", [*there], [*zip(*there.values(), strict=True)],
                    "requests are of one engine that decodes; dollars and joules of output tokens")
    none = paragraph(f"None keeps TTFT {asked.ttft_ms:g} ms and TPOT {asked.tpot_ms:g} ms.")
    return Section("best", "The best", table(values) if top else none)


def _commands(asked: Ask, top: Sequence[Found]) -> list[Section]:
    """How each is launched, and how its steps are simulated."""
    parts: list[Html] = [paragraph("A click selects a text whole.", "quiet")] if top else []
    for place, one in enumerate(top):
        parts.append(element("h3", escaped(f"{place + 1}: {one.words}")))
        framework = framework_of(one.deployment.engines.stack)
        if framework is not None:
            parts.append(folded(f"launched with {framework}", _text(flags(one, asked, framework))))
        parts.append(folded("its steps, simulated", _text(steps(one, asked))))
    return [Section("commands", "Commands", joined(parts))] if parts else []


def _text(lines: Sequence[str]) -> Html:
    return element("pre", escaped("\n".join(lines)), tabindex="0")


def _left_out(refused: Mapping[str, int], dropped: int) -> list[Section]:
    """How many were not looked at, by reason, the most frequent first."""
    counts = {**refused, **({"its roofline cannot reach the front": dropped} if dropped else {})}
    rows = [(reason, f"{count:,}") for reason, count in sorted(counts.items(), key=lambda pair: -pair[1]) if count]
    if not rows:
        return []
    return [Section("refused", "What was left out", table(Titled("", ("~reason", ">deployments"), rows)))]
