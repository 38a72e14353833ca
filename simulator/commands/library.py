"""`braid list`, `services`, `models`, `machines`, `show`: what there is and consists of, without simulating."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.model.transformer import Model

_MODEL_HEAD = ("model", "parameters", "active", "layers", "attention", "KV bytes/token")


@click.command("list")
def list_scenarios() -> None:
    """List the scenarios of the library, each with a line of what it is.

    \b
    Example:
      braid list
    """
    from simulator.study import library

    _print_names(library.scenario_names())


@click.command()
def services() -> None:
    """List the services of the library (`braid serve`), each with a line of what it is.

    
    Example:
      braid services
    """
    from simulator.serving import library

    _print_names(library.service_names())


def _print_names(rows: list[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, title in rows:
        click.echo(f"{name:<{width}}  {title}")


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
def models(models: tuple[str, ...]) -> None:
    """List models, of the library or each MODEL: a name, a .toml file, a config.json of Hugging Face or its folder.

    Parameters are without MTP layers, active ones with the head and without the embedding. KV bytes are those of all
    layers, as if none had a window, in the precision of the checkpoint's cache.

    \b
    Examples:
      braid models
      braid models qwen3_32b my_model/config.json
    """
    from simulator import paths
    from simulator.model.library import load_transformer

    names = models or paths.names("workloads/models")
    rows = [_MODEL_HEAD, *(_model_row(name, load_transformer(name)) for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.rjust(width) if column in (1, 2, 3, 5) else text.ljust(width)
                 for column, (text, width) in enumerate(zip(row, widths, strict=True))]
        click.echo("  ".join(cells).rstrip())


def _model_row(name: str, model: Model) -> tuple[str, ...]:
    """The cells of one model, as in _MODEL_HEAD."""
    from simulator.model.transformer import active_parameters, kv_bytes_per_token, parameters

    return (name, _billions(parameters(model)), _billions(active_parameters(model)), str(len(model.layers)),
            _attention(model), f"{kv_bytes_per_token(model):,}")


def _billions(number: int) -> str:
    return f"{number / 1e9:.1f}B"


def _attention(model: Model) -> str:
    """The kind of attention, heads of queries and of keys and values, and in how many layers there is a window."""
    from simulator.model.transformer import Grouped

    kinds = [layer.attention for layer in model.layers]
    grouped = [one for one in kinds if isinstance(one, Grouped)]
    if not grouped:
        return f"MLA {kinds[0].heads}"
    first, windows = grouped[0], [one.window for one in grouped if one.window]
    kind = "MHA" if first.heads == first.kv_heads else "GQA"
    within = f", window {windows[0]:,} in {len(windows)} of {len(kinds)}" if windows else ""
    linear = f", linear in {len(kinds) - len(grouped)} of {len(kinds)}" if len(grouped) < len(kinds) else ""
    return f"{kind} {first.heads}/{first.kv_heads}{within}{linear}"


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
