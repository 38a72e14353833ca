"""How cost grows with ranks, layers, tasks and flows: measured in steps, as a table and a picture in text."""

from __future__ import annotations

from simulator.bench import collectives, decode, flows
from simulator.bench.benchmark import timed

GrowthPoint = tuple[str, int, float]  # what grows, how much of it there is, CPU seconds
WIDTH = 40
SERIES = (
    ("ranks, each by itself (one layer of skewed decode, 288 a group)", {n: n for n in (288, 576, 1152)},
     lambda n: decode.run(n, "all", 1, kinds=288).cpu_s),
    ("ranks by roles (preparing four collectives of all)", {n: n for n in (1024, 4096, 16_384)},
     lambda n: timed(lambda: collectives.prepared(n, 1))[0]),
    ("layers (skewed decode, 288 dies)", {n: n for n in (2, 4, 8)},
     lambda n: decode.run(288, "all", n, kinds=288).cpu_s),
    ("tasks (collectives on 4,096 ranks by roles)", {4 * n: n for n in (250, 500, 1000, 2000)},
     lambda n: timed(collectives.prepared(4096, n).run)[0]),
    ("flows that share nothing", {n: n for n in (5000, 20_000, 80_000)},
     lambda n: flows.independent(n).cpu_s),
    ("flows all coupled, sizes all different", {n * (n - 1): n for n in (16, 32, 64)},
     lambda n: flows.coupled(n).cpu_s),
)  # fmt: skip
"""What grows, how much of it there is in each step and the size given to the measurement, and its CPU seconds."""


def steps() -> list[GrowthPoint]:
    """Every series in ascending order; about half a minute in all."""
    decode.run(layers=1)  # imports
    return [(name, count, cpu_s_of(size)) for name, sizes, cpu_s_of in SERIES for count, size in sizes.items()]


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
