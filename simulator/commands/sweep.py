"""`braid sweep`: one setting, several values, the metrics side by side."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import rich_click as click

from simulator.commands import options

DEFAULT_METRICS = ("latency_ms", "iteration_ms", "tpot_ms", "throughput_tok_s", "throughput_tok_s_per_card",
                   "exposed_comm_ms", "compute_stretch")


@click.command()
@click.argument("scenario")
@click.argument("key")
@click.argument("values", nargs=-1, required=True)
@click.option("--metrics", metavar="A,B,...",
              help="Which metrics to show; `braid run SCENARIO --json` lists them, `braid run SCENARIO` defines them, "
                   "and `braid show SCENARIO` those that its tables show.  "
                   "[default: times, throughput, exposed communication and stretch]")
@options.settings
@options.as_json
@click.pass_context
def sweep(ctx: click.Context, scenario: str, key: str, values: tuple[str, ...], metrics: str | None,
          settings: dict[str, str], as_json: bool) -> None:
    """Simulate SCENARIO with each of VALUES for the setting KEY.

    KEY is one that --set takes: a setting of the scenario, or machine.KEY or model.KEY. A value of the
    wrong kind is refused before anything runs; one that cannot run is reported, the others run (exit code 1).

    \b
    Examples:
      braid sweep a3_prefill:dp batch.requests 32 64 128
      braid sweep a3_prefill:dp machine.chip.hbm.peak "1.2 TB/s" "3.2 TB/s"
      braid sweep a3_prefill:dp knobs.engine sdma aiv --metrics exposed_comm_ms
    """
    from simulator.commands.output import print_table, to_json, warn_unread
    from simulator.commands.request import progress_bar, scenario_of
    from simulator.errors import InputError
    from simulator.study.scenario import Study
    from simulator.study.sweep import run_study

    chosen = scenario_of(scenario, settings)
    asked = None if metrics is None else options.names_of(metrics)
    if asked == ():
        raise InputError("--metrics names none; `braid run SCENARIO --json` lists them")
    study = Study(title="", key=key, values=values, metrics=DEFAULT_METRICS if asked is None else asked)
    with progress_bar(f"{chosen.name}: {key}") as tell, redirect_stdout(sys.stderr):
        table = run_study(chosen, study, tell)
    there = [place for place in range(len(study.metrics)) if any(row[place] is not None for _, row in table.rows)]
    missing = [one for place, one in enumerate(study.metrics) if place not in there]
    if len(table.reasons) < len(values) and missing and (asked is not None or not there):
        which = ", ".join(missing)
        raise InputError(f"{chosen.name} has no metric {which}; `braid run {chosen.name} --json` lists them")
    wanted = [study.metrics[place] for place in there]
    rows = [(value, [row[place] for place in there]) for value, row in table.rows]
    warn_unread(chosen.name, table.unread)
    reasons = dict(table.reasons)
    if as_json:
        why = {value: {"reason": reason} for value, reason in reasons.items()}
        click.echo(to_json([{key: value, **dict(zip(wanted, row, strict=True)), **why.get(value, {})}
                            for value, row in rows]))
    else:
        print_table((f"<{key}", *(f">{metric}" for metric in wanted)), [(value, *row) for value, row in rows])
    for value, reason in reasons.items():
        click.echo(f"Error: {key} = {value}: {reason}", err=True)
    if reasons:
        ctx.exit(1)
