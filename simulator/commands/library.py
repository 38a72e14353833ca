"""`braid list`, `machines` and `show`: what there is, and what a scenario consists of, without simulating."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any

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
@options.as_json
def machines(as_json: bool) -> None:
    """List the machines of the library, each with its ranks, its title, and the parts that it is put together from.

    \b
    Examples:
      braid machines
      braid machines --json
    """
    from simulator import paths
    from simulator.commands.output import to_json
    from simulator.spec.load import load_machine
    from simulator.spec.parts import part_names

    rows: list[dict[str, Any]] = []
    for name in paths.names("topologies"):
        spec, parts = load_machine(name), part_names(paths.find("topologies", name))
        rows.append({"name": name, "title": spec.title, "ranks": spec.dies, "extends": parts,
                     "engines": list(spec.collectives), "generations": [*spec.kernels, *spec.generations]})
    if as_json:
        click.echo(to_json(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        of = f"  ({', '.join(row['extends'])})" if row["extends"] else ""
        click.echo(f"{row['name']:<{width}}  {row['ranks']:>5} ranks  {row['title']}{of}")


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
