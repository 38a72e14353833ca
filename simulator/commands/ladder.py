"""`braid ladder`: published optimisations one after the other, and what each of them buys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.study.sweep import LadderRow

DEFAULT_METRICS = "throughput_tok_s,iteration_ms"


@click.command()
@click.argument("scenario")
@click.option("--metrics", default=DEFAULT_METRICS, show_default=True, metavar="A,B,...",
              help="Which metrics to show, the gain of each step in the first; "
                   "`braid run SCENARIO --json` lists them.")
@options.settings
@options.seed
@options.as_json
def ladder(scenario: str, metrics: str, settings: dict[str, str], seed: int, as_json: bool) -> None:
    """Simulate SCENARIO and every step of its ladder, each on top of those before.

    Settings given with --set hold for all steps.

    \b
    Examples:
      braid ladder trt_min_latency:base
      braid ladder trt_min_latency:base --set machine.host.launch_graph="0 us"
    """
    from simulator.commands.output import to_json, warn_unread
    from simulator.commands.request import progress_bar, scenario_of
    from simulator.errors import InputError
    from simulator.study.sweep import in_all, run_ladder

    wanted = options.names_of(metrics)
    chosen = scenario_of(scenario, settings)
    with progress_bar(f"{chosen.name}: ladder") as tell, redirect_stdout(sys.stderr):
        rows = run_ladder(chosen, seed, tell)
    unknown = [metric for metric in wanted if metric not in rows[0].metrics]
    if unknown or not wanted:
        which = ", ".join(unknown)
        raise InputError(f"{chosen.name} has no metric {which}; `braid run {chosen.name} --json` lists them")
    warn_unread(chosen.name, [key for key in in_all([one.unread for one in rows]) if key in settings])
    if as_json:
        click.echo(to_json([{"step": one.title, **{name: one.metrics[name] for name in wanted}} for one in rows]))
        return
    _print(rows, wanted)


def _print(rows: Sequence[LadderRow], metrics: tuple[str, ...]) -> None:
    from simulator.commands.output import print_table

    shown = []
    first = rows[0].metrics[metrics[0]]
    for before, one in zip((rows[0], *rows), rows, strict=False):
        value = one.metrics[metrics[0]]
        gains = (f"x {value / before.metrics[metrics[0]]:.3f}", f"x {value / first:.2f}")
        shown.append((one.title, *(one.metrics[name] for name in metrics), *gains))
    print_table(("<step", *(f">{name}" for name in metrics), ">gain of this step", ">of all"), shown)
