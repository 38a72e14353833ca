"""`braid bench`, `validate`, `steps`, `influence`: tables that are kept under results/ when all of it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.observe.tables import Cell
    from simulator.serving.point_errors import Others, PointRow

SHOWN_POINTS = 30  # rows of measured points that a person reads one by one


@click.command()
@click.argument("pattern", required=False)
@options.as_json
@click.pass_context
def bench(ctx: click.Context, pattern: str | None, as_json: bool) -> None:
    """Measure Braid's own speed and memory against targets; write results/benchmarks.md.

    PATTERN chooses benchmarks by name or part of it, with * for any text. Each runs in a process of its own.
    A target that is missed on this computer is reported; a benchmark that cannot run is a failure (exit code 1).

    \b
    Examples:
      # all of them; writes results/benchmarks.md
      braid bench
      # those with "flows" in their name, or some for a script; writes nothing
      braid bench flows
      braid bench 'cold_*' --json
    """
    from simulator.bench import suite

    target = _target("benchmarks.md", pattern, as_json)
    rows = suite.measure(pattern, announce=not as_json)
    _write(target, lambda: suite.markdown(rows, suite.growth()))
    _show(rows, [row.as_object() for row in rows] if as_json else None, suite.print_rows, target)
    if any(row.failed for row in rows):
        ctx.exit(1)


@click.command()
@click.argument("pattern", required=False)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Simulate N scenarios at a time, each in a process of its own.")
@click.option("--points", type=click.Path(path_type=Path), metavar="FILE",
              help="Compare measured serving points (JSON Lines) instead of the library; `braid validate --help` has "
                   "their format.")
@click.option("--where", default="", metavar="FIELD=VALUE,...",
              help="Only points with these fields, as gpu_key=H200,family=llama-70b,concurrency=1..16.")
@click.option("--beside", type=click.Path(path_type=Path), metavar="FILE",
              help="Other predictions of the same points, a JSON line each: their errors stand beside Braid's.")
@options.as_json
@click.pass_context
def validate(ctx: click.Context, pattern: str | None, jobs: int, points: Path | None, where: str,
             beside: Path | None, as_json: bool) -> None:
    """Compare the library, or measurements of your own, with what is simulated; write results/validation.md.

    PATTERN chooses scenarios or expected values by name or part of it, with * for any text.

    A value with role "fit" had a parameter fitted on it and proves nothing; "predict" values were never fitted on.
    A miss is reported, with its reason; it is no failure. A value that cannot be simulated is (exit code 1).

    A point is a line {"id": "a", "model": "llama_3_1_70b", "gpu_key": "H200", "n_gpus": 8, "fw_key": "vllm",
    "layout": {"tp": 8, "pp": 1, "ep": 1}, "gemm_quant": "fp8", "isl": 1024, "osl": 1024, "concurrency": 16,
    "tpot_ms": {"mean": 9.8}, "ttft_ms": {"mean": 120}, "output_tok_s_per_gpu": 190}: a closed loop of so many
    requests on n_gpus, means or p50 of what was measured, any of the three. Without a concurrency requests come at
    "request_rate" ("inf": all at once). "num_prompts" is how many there were (ten for each in flight), "range_ratio"
    their shortest over their longest length. `family` may stand for the model; how the service was launched, where it
    matters, are "settings" of a step (knobs, routing, machine), as of `braid run transformer:decode`, and of the
    engine (scheduling, cache, host, front): {"knobs.precision": "kv=fp8", "scheduling.max_num_batched_tokens": 16384}.
    Steps that were simulated are kept in BRAID_CACHE, or in the user's cache folder. gpu_key is A100, H100, H200,
    B200, GB200, H20 or H800, or `machine` names one. With "mode": "disagg" the layout is {"prefill": {"num_workers": 2,
    "tp": 8}, "decode": {...}}. What cannot be simulated is named, with its reason; no failure. Where points of a family
    and GPU have four layouts or more under one load, their order by tokens/s and GPU is compared, too: how often the
    best measured one is among the first two simulated, Spearman's rho, and how much of the best the first one keeps.

    \b
    Examples:
      # the whole library; writes results/validation.md
      braid validate
      # the scenarios of one file, or some values for a script; writes nothing
      braid validate a3_prefill
      braid validate 'a3.prefill.*' --json
      # measured TPOT, TTFT and throughput of a service
      braid validate --points mine.jsonl --where gpu_key=H200,concurrency=1..16
    """
    if points is not None:
        _compare_points(points, where, jobs, beside, as_json)
        return
    from simulator.commands.request import progress_bar
    from simulator.serving.validate import SERVICES
    from simulator.study import validate as validation
    from simulator.study.expected import as_object

    target = _target("validation.md", pattern, as_json)
    with progress_bar("expected values") as tell:
        rows = validation.validate(pattern, jobs, tell, (validation.SCENARIOS, SERVICES))
    _write(target, lambda: validation.markdown(rows))
    objects = [as_object(row, "scenario") | ({"reason": row.missing} if row.missing else {}) for row in rows]
    _show(rows, objects if as_json else None, validation.print_rows, target)
    if any(row.missing for row in rows):
        ctx.exit(1)


def _compare_points(path: Path, where: str, jobs: int, beside: Path | None, as_json: bool) -> None:
    """Measured points: a row each as JSON, or errors by family, GPU and framework, and what could not be simulated."""
    from simulator.commands.request import progress_bar
    from simulator.errors import InputError, Interrupted
    from simulator.serving import point_errors, points

    pairs = [one.partition("=") for one in where.split(",") if one.strip()]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise InputError(f"--where {', '.join(wrong)}: write FIELD=VALUE")
    chosen = points.read_points(path, {key.strip(): value.strip() for key, _, value in pairs})
    others = point_errors.read_others(beside) if beside else {}
    with progress_bar(f"{len(chosen)} points") as tell:
        rows, left = points.compare(chosen, jobs, tell)
    _show_points(rows, others, as_json, f"{len(chosen) - left} of {len(chosen)} points" if left else "")
    if not as_json:
        _show_ranks(chosen, rows, others)
    if left:
        raise Interrupted(f"stopped by Ctrl-C: what is shown is of {len(chosen) - left} of {len(chosen)} points")


def _show_points(rows: Sequence[PointRow], others: Others, as_json: bool, part: str) -> None:
    """As JSON or tables. part: of the points, in words, where the rest was not simulated."""
    from simulator.commands.output import print_table, to_json
    from simulator.observe.tables import plain_number
    from simulator.serving import point_errors

    if as_json:
        for one in rows:
            if not one.metric:
                click.echo(f"warning: {one.id}: {one.reason}", err=True)
        click.echo(to_json([row.as_object() for row in rows if row.metric]))
        return
    if part:
        click.echo(f"INTERRUPTED: what follows is of {part}")
    known = [(row.id, row.metric, plain_number(row.value), plain_number(row.simulated), f"{row.error:+.1%}")
             for row in rows if row.error is not None and row.simulated is not None]
    if len(known) <= SHOWN_POINTS:
        print_table(("<id", "<metric", ">measured", ">simulated", ">error"), known)
    shares: list[Sequence[Cell]] = [
        (one.metric, one.group, one.points, f"{one.signed:+.1%}",
         *(f"{share:.1%}" for share in (one.median, one.mean, one.decile, one.within)))
        for one in point_errors.summary(rows)]
    print_table(("<metric", "<points of", ">points", ">median error", ">median size", ">mean size", ">90% within",
                 ">within 25%"), shares)
    table = point_errors.beside(rows, others)
    if table:
        columns = [f">{name}, {word} size" for name in table[0][3] for word in ("median", "mean")]
        print_table(("<metric", "<points of", ">points", *columns),
                    [(metric, group, count, *(f"{size:.1%}" for sizes in found.values() for size in sizes))
                     for metric, group, count, found in table])
    for reason, count, first in point_errors.reasons(rows):
        click.echo(f"not simulated: {count} point{'s' * (count > 1)}, as {first}: {reason}")


def _show_ranks(points: Sequence[Mapping[str, Any]], rows: Sequence[PointRow], others: Others) -> None:
    """Orders of layouts, Braid's on all that it says something of, then beside others; nothing where there are none."""
    from simulator.commands.output import print_table
    from simulator.serving import point_ranks

    for some in ({}, others) if others else ({},):
        table = point_ranks.ranks(points, rows, some)
        if not table:
            continue
        columns = [f">{name}, {word}" for name in table[0].scores for word in ("best in first 2", "median rho", "kept")]
        print_table(("<layouts differ in", "<cases of", ">cases", ">layouts", *columns),
                    [(one.reading, one.group, one.cases, one.layouts,
                      *(cell for score in one.scores.values()
                        for cell in (f"{score.first:.0%}", f"{score.correlation:.2f}", f"{score.kept:.0%}")))
                     for one in table])  # fmt: skip


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Simulate N models at a time, each in a process of its own.")
@options.as_json
def steps(patterns: tuple[str, ...], jobs: int, as_json: bool) -> None:
    """Simulate a step of every model on every machine, on 1, 2 and 8 cards; write results/steps.md.

    Each PATTERN chooses models or machines by name or part of it, with * for any text.

    Steps are those of `braid step`: decode of 1 and of 64 requests, and prefill of one prompt, of 4096 tokens each.
    What does not fit or divide, or has no kernels on a machine, is refused with its reason; it is no failure. Where
    kernels of a checkpoint's precision are missing, the nearest that the machine has stands for it, and is named.

    \b
    Examples:
      # all of them; writes results/steps.md
      braid steps --jobs 2
      # some models, on all machines or on some; writes nothing
      braid steps qwen3_32b
      braid steps 'llama_3_1_*' dgx_h100 dgx_h200 --json
    """
    from simulator.commands.request import progress_bar
    from simulator.study import steps as study
    from simulator.study import steps_report

    target = _target("steps.md", patterns[0] if patterns else None, as_json)
    with progress_bar("models") as tell:
        cells = study.steps(patterns, jobs, tell)
    _write(target, lambda: steps_report.markdown(cells))
    _show(cells, [cell.as_object() for cell in cells] if as_json else None, steps_report.print_cells, target)


@click.command()
@click.argument("pattern", required=False)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Simulate N scenarios at a time, each in a process of its own.")
@options.as_json
@click.pass_context
def influence(ctx: click.Context, pattern: str | None, jobs: int, as_json: bool) -> None:
    """List what is assumed by its influence on published values; write results/influence.md.

    PATTERN chooses scenarios by name or part of it, with * for any text.

    Every assumed number is put to its two plausible ends, 3%, 10% or 30% off by its confidence, where it bounds most,
    and the scenario run again: the largest move of an expected value is its influence. The studies that scenarios name
    stand below: settings that no source gives, with plausible values. All of it takes half an hour.

    \b
    Examples:
      # all scenarios; writes results/influence.md
      braid influence --jobs 2
      # those of one system; writes nothing
      braid influence trt_min_latency
    """
    from dataclasses import asdict

    from simulator.commands.request import progress_bar
    from simulator.study import influence as study
    from simulator.study.studies import studies

    target = _target("influence.md", pattern, as_json)
    with progress_bar("scenarios") as tell:
        found = study.influences(pattern, jobs, tell)
    tables = []
    if target is not None:
        with progress_bar("studies") as tell:
            tables = studies(jobs, tell)
    _write(target, lambda: study.markdown(found, tables))
    _show(found, [asdict(one) for one in found] if as_json else None, study.print_influences, target)
    if any(one.reasons or not one.columns for one in tables):
        ctx.exit(1)


def _target(name: str, pattern: str | None, as_json: bool) -> Path | None:
    """The file under results/ where all is measured for people; InputError, before that, if it cannot be written."""
    from simulator.commands.output import OutputFolder

    if pattern is not None or as_json:
        return None
    return OutputFolder(Path("results")).path / name


def _write(target: Path | None, text: Callable[[], str]) -> None:
    """Before anything is printed, which may have no reader."""
    from simulator.commands.output import write_text

    if target is not None:
        write_text(target, text())


def _show(rows: Sequence[Any], objects: list[Any] | None, print_rows: Callable[[Any], None],
          target: Path | None) -> None:
    """As JSON where there are objects, else as a table; then what was written."""
    from simulator.commands.output import to_json

    if objects is not None:
        click.echo(to_json(objects))
    else:
        print_rows(rows)
    if target is not None:
        click.echo(f"wrote {target}")
