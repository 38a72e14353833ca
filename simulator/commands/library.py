"""`braid list` and `braid show`: what there is, and what a scenario consists of, without simulating."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import rich_click as click

from simulator.commands import options


@click.command("list")
def list_scenarios() -> None:
    """List the scenarios of the library, each with a line of what it is.

    \b
    Example:
      braid list
    """
    from simulator.study import library

    rows = library.scenario_names()
    width = max((len(name) for name, _ in rows), default=0)
    for name, title in rows:
        click.echo(f"{name:<{width}}  {title}")


@click.command()
@click.argument("scenario")
@options.settings
@click.option("--program", is_flag=True, help="Print what rank 0 does, in launch order, instead.")
def show(scenario: str, settings: dict[str, str], program: bool) -> None:
    """Show SCENARIO: machine, layout, memory ledger, settings, metrics, every number with its source.

    The settings listed are the keys that --set takes. Nothing is simulated.

    \b
    Examples:
      braid show a3_prefill:microbatch
      braid show a3_prefill:dp --set batch.requests=128
      # what one rank launches, in order
      braid show a3_prefill:microbatch --program
    """
    from simulator.commands.description import description
    from simulator.commands.request import scenario_of
    from simulator.study.simulate import program_text

    chosen = scenario_of(scenario, settings)
    with redirect_stdout(sys.stderr):  # what a program prints
        text = program_text(chosen) if program else description(chosen)
    click.echo(text)
