"""`braid sweep`: one setting, several values, the metrics side by side."""

from __future__ import annotations

import rich_click as click

from simulator.commands import options

DEFAULT_METRICS = "latency_ms,throughput_tok_s_per_card,exposed_comm_ms,compute_stretch"


@click.command()
@click.argument("scenario")
@click.argument("key")
@click.argument("values", nargs=-1, required=True)
@click.option("--metrics", default=DEFAULT_METRICS, show_default=True, metavar="A,B,...",
              help="Which metrics to show; `braid run SCENARIO --json` lists them.")
@options.settings
@options.as_json
def sweep(scenario: str, key: str, values: tuple[str, ...], metrics: str, settings: dict[str, str],
          as_json: bool) -> None:
    """Simulate SCENARIO with each of VALUES for the setting KEY.

    KEY is one that --set takes: a setting of the scenario, or machine.KEY or model.KEY.

    \b
    Examples:
      braid sweep a3_prefill:dp batch.requests 32 64 128
      braid sweep a3_prefill:microbatch machine.chip.hbm.peak "1.2 TB/s" "1.6 TB/s" "3.2 TB/s"
      braid sweep a3_prefill:microbatch knobs.engine sdma aiv --metrics latency_ms,hidden_comm_ms
    """
    from simulator.commands.output import to_json
    from simulator.commands.progress import ProgressBar
    from simulator.commands.request import scenario_of
    from simulator.commands.terminal import warn_unread
    from simulator.errors import InputError
    from simulator.scenario import Study
    from simulator.study import run_study

    wanted = tuple(metric.strip() for metric in metrics.split(",") if metric.strip())
    chosen = scenario_of(scenario, settings)
    for value in values:
        chosen.replace({key: value})  # everything that is wrong with the words is said before anything runs
    study = Study(title="", key=key, values=values, metrics=wanted)
    with ProgressBar(f"{chosen.name}: {key}") as bar:
        table = run_study(chosen, study, bar if bar.wanted else None)
    rows = table.rows
    unknown = [metric for place, metric in enumerate(wanted) if all(row[place] is None for _, row in rows)]
    if metrics == DEFAULT_METRICS and len(unknown) < len(wanted):  # those that this scenario has
        kept = [place for place, metric in enumerate(wanted) if metric not in unknown]
        rows = tuple((value, tuple(row[place] for place in kept)) for value, row in rows)
        wanted = tuple(wanted[place] for place in kept)
    elif unknown:
        which = ", ".join(unknown)
        raise InputError(f"{chosen.name} has no metric {which}; `braid run {chosen.name} --json` lists them")
    warn_unread(chosen.name, table.unread)
    if as_json:
        click.echo(to_json([{key: value, **dict(zip(wanted, row, strict=True))} for value, row in rows]))
        return
    _print(rows, key, wanted)


def _print(rows: tuple[tuple[str, tuple[float | None, ...]], ...], key: str, metrics: tuple[str, ...]) -> None:
    from rich.table import Table

    from simulator.commands.markdown import number
    from simulator.commands.terminal import console

    shown = Table(box=None, pad_edge=False)
    for head in (key, *metrics):
        shown.add_column(head, justify="left" if head == key else "right")
    for value, row in rows:
        shown.add_row(value, *(number(one) for one in row))
    console().print(shown)
