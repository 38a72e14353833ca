"""How cost grows with ranks, layers, tasks and flows: measured in steps, as a table and a picture in text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.bench.benchmark import cpu_s_of

if TYPE_CHECKING:
    from simulator.bench.benchmark import Measurement

GrowthPoint = tuple[str, int, float]  # what grows, how much of it there is, CPU seconds
WIDTH = 40


def steps() -> list[GrowthPoint]:
    """Every series in ascending order; about half a minute in all."""
    from simulator.bench import collectives, decode, flows

    def seconds(measure: Callable[[], Measurement]) -> float:
        return measure().cpu_s

    seconds(lambda: decode.run(288, "roles", 1))  # imports
    series: list[GrowthPoint] = []
    series += [("ranks, each by itself (one layer of skewed decode, 288 a group)", n,
                seconds(lambda n=n: decode.run(n, "all", 1, kinds=288))) for n in (288, 576, 1152)]  # type: ignore[misc]
    series += [("ranks by roles (preparing four collectives of all)", n,
                cpu_s_of(lambda n=n: collectives.prepared(n, 1))) for n in (1024, 4096, 16_384)]  # type: ignore[misc]
    series += [("layers (skewed decode, 288 dies)", n,
                seconds(lambda n=n: decode.run(288, "all", n, kinds=288))) for n in (2, 4, 8)]  # type: ignore[misc]
    series += [("tasks (collectives on 4,096 ranks by roles)", 4 * n,
                cpu_s_of(collectives.prepared(4096, n).run)) for n in (250, 500, 1000, 2000)]
    series += [("flows that share nothing", n,
                seconds(lambda n=n: flows.independent(n))) for n in (5000, 20_000, 80_000)]  # type: ignore[misc]
    series += [("flows all coupled, sizes all different", n * (n - 1),
                seconds(lambda n=n: flows.coupled(n))) for n in (16, 32, 64)]  # type: ignore[misc]
    return series


def growth_lines(series: list[GrowthPoint]) -> list[str]:
    """Markdown: per series a row a step, with the factor over the step before and a bar on a common scale."""
    lines = ["", "## How cost grows", "", "CPU seconds; factors are over the row before; a bar is in proportion within "
             "its series.", "", "```text"]
    for name in dict.fromkeys(name for name, _, _ in series):
        rows = [(count, cpu_s) for each, count, cpu_s in series if each == name]
        lines += [name]
        for place, (count, cpu_s) in enumerate(rows):
            before = rows[place - 1] if place else None
            factors = f"x{count / before[0]:4.1f} -> x{cpu_s / before[1]:4.1f}" if before else " " * 14
            bar = "#" * max(1, round(WIDTH * cpu_s / max(each for _, each in rows)))
            lines.append(f"{count:10,d} {cpu_s:9.3f} s  {factors}  {bar}")
        lines.append("")
    return [*lines[:-1], "```"]
