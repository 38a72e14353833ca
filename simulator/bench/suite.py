"""The list of benchmarks, how each is measured in a process of its own, and the tables made of them.

`python -m simulator.bench.suite NAME` measures one benchmark in this process and prints it as one line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click

from simulator.bench.benchmark import Benchmark, BenchmarkRow, Measurement, environment, peak_mib, timed
from simulator.observe.tables import Titled, console, markdown_table, plain_number, show
from simulator.paths import choose

TIMEOUT_S = 300
ONE_CORE = {"OPENBLAS_NUM_THREADS": "1"}  # its other threads spin for some milliseconds once numpy is imported


def _later(name: str, *given: Any, **named: Any) -> Callable[[], Any]:
    """A call of MODULE.FUNCTION of this folder; the module, and what it measures, is imported when it is called."""
    module, _, function = name.partition(".")
    return lambda: getattr(import_module(f"simulator.bench.{module}"), function)(*given, **named)


WALK = ("after an end the compiled walk (physics/ranked.c) works out levels from the rank concerned on, each from all "
        "flows that cross the capacity; where no compiler was found, the solver in Python answers")

BENCHMARKS = (
    Benchmark("flows_independent", "20,000 flows that share nothing, CPU time a flow, best of three",
              _later("flows.independent"), "us/flow", 2.0,
              limit="a start, an end and a callback are about twenty Python calls a flow"),
    Benchmark("flows_coupled", "All-to-all of 144 hosts on a star, 20,592 sizes all different, CPU time a flow",
              _later("flows.coupled"), "us/flow", 100, limit=f"{WALK}; and each end is told to Python"),
    Benchmark("flows_star_32", "the same of 32 hosts, 992 flows, CPU time of all",
              _later("flows.star", 32), "s", 0.15, limit=WALK),
    Benchmark("flows_star_64", "the same of 64 hosts, 4,032 flows", _later("flows.star", 64), "s", 3.1, limit=WALK),
    Benchmark("flows_coupled_plain", "flows_star_32 with the solver in Python (BRAID_PLAIN=1)",
              _later("flows.star", 32), "s", 1.5, variables={"BRAID_PLAIN": "1"},
              limit="after each end all flows that can notice are solved anew, with rounds of objections, in Python"),
    Benchmark("flows_tree", "All-to-all of 32 hosts on a tree of two levels, sizes skewed and all different, ends told",
              _later("flows.tree"), "s", 0.14, limit=WALK),
    Benchmark("flows_tree_by_host", "the same; what a host sends and receives is waited for together, 64 ends are told",
              _later("flows.tree_by_host"), "s", 0.14, limit=WALK),
    Benchmark("streams_alone", "144 ranks x 61 layers x 2 x 25 kernels, nothing shared, whole run, best of three",
              _later("replays.tasks_per_s", contended=False), "tasks/s", 200_000, more_is_better=True,
              limit="columns and metrics of the finished run are a good part of it"),
    Benchmark("streams_unrecorded", "the same without recording",
              _later("replays.tasks_per_s", contended=False, record=False), "tasks/s", 200_000, more_is_better=True),
    Benchmark("streams_contended", "streams_alone on two streams that contend, a collective per half layer, whole run",
              _later("replays.tasks_per_s", contended=True), "tasks/s", 100_000, more_is_better=True),
    Benchmark("collective_8", "A symmetric collective on 8 ranks by roles, mean of four kinds",
              _later("replays.collective", 8), "us", 100),
    *(Benchmark(f"collective_{n}", f"the same on {n:,} ranks", _later("replays.collective", n), "us", 100)
      for n in (144, 384, 4096, 65_536)),
    Benchmark("collective_prepare", "What is prepared before for these collectives on 65,536 ranks, a rank",
              _later("replays.preparation", 65_536), "us/rank", 150),
    Benchmark("decode_roles", "Decode iteration, 61 layers, two micro-batches, 288 dies by roles",
              _later("decode.run"), "s", 0.5),
    Benchmark("decode_kinds", "the same with two kinds of experts, one hotter than the other",
              _later("decode.run", kinds=2), "s", 1.0),
    Benchmark("decode_skewed", "decode_roles with skewed routing, every die by itself",
              _later("decode.run", ranks="all", kinds=288), "s", 8.0,
              limit="a task is a start and an end at best, about 12 us; a put is two, and where the halves of a die "
                    "slow each other its memory is shared out anew whenever bytes begin or end; the memory of 288 dies "
                    "is more than the caches of a core hold"),
    Benchmark("decode_100k", "decode_roles on 100,224 dies", _later("decode.run", 348 * 288), "s", 5.0),
    Benchmark("recording", "10,000,000 task rows recorded: memory a row", _later("runs.rows"), "B/row", 100),
    Benchmark("recording_written", "the same, then written to Parquet in row groups: peak memory a row of both",
              _later("runs.written"), "B/row", 100),
    Benchmark("recording_cost", "What recording adds to a task, over a run without it",
              _later("runs.recording"), "us/task", 0.5),
    Benchmark("run_all", "a3_prefill:microbatch, 32 dies, 61 layers, every rank by itself",
              _later("runs.simulated", "a3_prefill:microbatch", "all"), "s", 10.0),
    Benchmark("run_roles", "a3_prefill:microbatch by roles",
              _later("runs.simulated", "a3_prefill:microbatch", "roles"), "s", 1.0),
    Benchmark("cold_help", "`braid --help` from a cold start", _later("runs.cold_start", "--help"), "s", 0.3),
    Benchmark("cold_run", "`braid run a3_prefill:dp --ranks roles` from a cold start",
              _later("runs.cold_start", "run", "a3_prefill:dp", "--ranks", "roles"), "s", 2.0),
    Benchmark("command_decode", "`braid run cm384_decode:decode_50ms`, whole command: 288 dies, lengths, routing drawn",
              _later("runs.whole_command", "run", "cm384_decode:decode_50ms"), "s", 6.0),
    Benchmark("command_prefill", "`braid run a3_prefill:microbatch --set routing.skew=0.6`, whole command",
              _later("runs.whole_command", "run", "a3_prefill:microbatch", "--set", "routing.skew=0.6"), "s", 20.0),
    Benchmark("trace", "The trace of cm384_decode:decode_50ms, of the ranks that are shown", _later("observed.traced"),
              "s", 10.0),
    Benchmark("explain", "Its folder read and explained, all ranks", _later("observed.explained"), "s", 5.0),
    Benchmark("search_dense", "500 layouts of Llama-3.1-70B on 8 H100 that fit, searched",
              _later("searches.layouts", "dense"), "s", 60.0),
    Benchmark("search_mixture", "500 layouts of DeepSeek-R1 on 16 H200 that fit, in one stack, searched",
              _later("searches.layouts", "mixture"), "s", 300.0),
    Benchmark("search_two_processes", "the same on two processes, by the clock, how many times as fast",
              _later("searches.two_processes"), "x", 1.8, more_is_better=True),
    Benchmark("command_show", "`braid show flow_mla:h800_flow_32`, whole command, one of the slowest to show",
              _later("runs.whole_command", "show", "flow_mla:h800_flow_32"), "s", 2.0),
)

GrowthPoint = tuple[str, int, float]  # what grows, how much of it there is, CPU seconds
WIDTH = 40
SERIES = (
    ("ranks, each by itself (one layer of skewed decode, 288 a group)", {n: n for n in (288, 576, 1152)},
     lambda n: _later("decode.run", n, "all", 1, kinds=288)().cpu_s),
    ("ranks by roles (preparing four collectives of all)", {n: n for n in (1024, 4096, 16_384)},
     lambda n: timed(_later("replays.prepared", n, 1))[0]),
    ("layers (skewed decode, 288 dies)", {n: n for n in (2, 4, 8)},
     lambda n: _later("decode.run", 288, "all", n, kinds=288)().cpu_s),
    ("tasks (collectives on 4,096 ranks by roles)", {4 * n: n for n in (250, 500, 1000, 2000)},
     lambda n: timed(_later("replays.prepared", 4096, n)().run)[0]),
    ("flows that share nothing", {n: n for n in (5000, 20_000, 80_000)},
     lambda n: _later("flows.independent", n)().cpu_s),
    ("flows all coupled, sizes all different", {n * (n - 1): n for n in (16, 32, 64)},
     lambda n: _later("flows.coupled", n)().cpu_s),
)  # fmt: skip
"""What grows, how much of it there is in each step and the size given to the measurement, and its CPU seconds."""


def growth() -> list[GrowthPoint]:
    """How cost grows: every series in ascending order; about half a minute in all."""
    _later("decode.run", layers=1)()  # imports
    _later("replays.prepared", 8, 1)()
    return [(name, count, cpu_s_of(size)) for name, sizes, cpu_s_of in SERIES for count, size in sizes.items()]


def measure(pattern: str | None, announce: bool = True) -> list[BenchmarkRow]:
    """Measures the benchmarks that match, in turn; InputError if none does. `announce` names them on stderr."""
    rows = []
    for name in choose(pattern, [benchmark.name for benchmark in BENCHMARKS], "benchmark"):
        benchmark = next(benchmark for benchmark in BENCHMARKS if benchmark.name == name)
        if announce:
            click.echo(f"{benchmark.name}: {benchmark.what}", err=True)
        rows.append(_measure(benchmark))
    return rows


def _measure(benchmark: Benchmark) -> BenchmarkRow:
    try:
        done = subprocess.run([sys.executable, "-m", "simulator.bench.suite", benchmark.name], stdin=subprocess.DEVNULL,
                              env=environment() | ONE_CORE, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S,
                              check=False)
    except subprocess.TimeoutExpired:
        return BenchmarkRow(benchmark, reason=f"took more than {TIMEOUT_S} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return BenchmarkRow(benchmark, reason=lines[-1] if lines else f"ended with exit code {done.returncode}")
    got = json.loads(done.stdout.strip().splitlines()[-1])
    return BenchmarkRow(benchmark, Measurement(got["value"], got["cpu_s"], got["counts"]), got["peak_mib"])


def print_rows(rows: Sequence[BenchmarkRow]) -> None:
    """The rows as a table in the terminal, reasons of failures below it."""
    show(console(), Titled("", _HEAD, [_cells(row) for row in rows]))
    for row in rows:
        if row.failed:
            click.echo(f"{row.benchmark.name}: not measured: {row.reason}")


_HEAD = ("<name", ">value", "<unit", ">target", "<met", ">cpu_s", ">peak_mib", "~counts")


def _cells(row: BenchmarkRow) -> list[str]:
    done = row.measurement
    target = f"{'>=' if row.benchmark.more_is_better else '<='} {plain_number(row.benchmark.target)}"
    if done is None:
        return [row.benchmark.name, "-", row.benchmark.unit, target, "not measured", "-", "-", ""]
    counts = ", ".join(f"{value:,} {key}" for key, value in done.counts.items())
    met = "yes" if row.benchmark.met(done.value) else "no"
    return [row.benchmark.name, plain_number(done.value), row.benchmark.unit, target, met,
            f"{done.cpu_s:.3f}", plain_number(row.peak_mib), counts]


def markdown(rows: Sequence[BenchmarkRow], series: list[GrowthPoint]) -> str:
    """results/benchmarks.md. series: how cost grows."""
    computer = f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} CPUs"
    lines = [
        "# Benchmarks", "",
        f"Written by `braid bench` on one computer ({computer}); each row is a process of its own on one core.",
        "`cpu_s` is the CPU time of the measured part, `peak_mib` the peak memory of the whole process.", "",
        markdown_table([head[1:] for head in _HEAD], [_cells(row) for row in rows]),
        *[f"* `{benchmark.name}`: {benchmark.what}" for benchmark in BENCHMARKS],
    ]
    lines += _growth_lines(series)
    missed = [row for row in rows
              if row.benchmark.limit and row.measurement and not row.benchmark.met(row.measurement.value)]
    lines += ["", "## Targets that are missed, and why", ""] if missed else []
    lines += [f"* `{row.benchmark.name}`: {row.benchmark.limit}." for row in missed]
    missing = [f"* `{row.benchmark.name}` was not measured: {row.reason}" for row in rows if row.failed]
    return "\n".join(lines + missing) + "\n"


def _growth_lines(series: list[GrowthPoint]) -> list[str]:
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


if __name__ == "__main__":
    chosen = next(one for one in BENCHMARKS if one.name == sys.argv[1])
    os.environ.update(chosen.variables)
    done = chosen.measure()
    print(json.dumps({"value": done.value, "cpu_s": done.cpu_s, "counts": done.counts, "peak_mib": peak_mib()}))
