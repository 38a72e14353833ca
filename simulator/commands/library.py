"""`braid list`, `services`, `models`, `machines`, `show`: what there is and consists of, without simulating."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.model.transformer import Model

_MODEL_HEAD = ("model", "parameters", "active", "layers", "attention", "KV bytes/token")


@click.command("list")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@options.as_json
def list_scenarios(words: tuple[str, ...], as_json: bool) -> None:
    """List the scenarios of the library by system, each with a line of what it is.

    With WORDs, those in whose name, line or system all of them are. With --json each has a name, title and system.

    \b
    Examples:
      braid list
      braid list prefill a3
    """
    from simulator.study import library

    _print_names("scenarios", library.scenario_names(), words, as_json)


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@options.as_json
def services(words: tuple[str, ...], as_json: bool) -> None:
    """List the services of the library (`braid serve`) by system, each with a line of what it is.

    With WORDs, those in whose name, line or system all of them are. With --json each has a name, title and system.

    \b
    Examples:
      braid services
      braid services sglang
    """
    from simulator.serving import library

    _print_names("services", library.service_names(), words, as_json)


def _print_names(kind: str, named: list[tuple[str, str]], words: tuple[str, ...], as_json: bool) -> None:
    """Those with all the words, below what their file is about."""
    from simulator.commands.output import to_json
    from simulator.errors import InputError
    from simulator.paths import nearest
    from simulator.study.library import about

    all_ = [{"name": name, "title": title, "system": about(kind, name)} for name, title in named]
    rows = [row for row in all_ if all(word.lower() in " ".join(row.values()).lower() for word in words)]
    if not rows and not as_json:
        near = ", ".join(nearest(" ".join(words), [name for name, _ in named]))
        raise InputError(f"none of the {kind} has {' and '.join(words)} in its line; the nearest names are {near}")
    if as_json:
        click.echo(to_json(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for system, its in groupby(rows, key=itemgetter("system")):
        click.echo(system)
        for row in its:
            click.echo(f"  {row['name']:<{width}}  {row['title']}")


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
@click.argument("scenario", metavar="NAME")
@options.settings
@click.option("--program", is_flag=True, help="Print what rank 0 does, in launch order, instead.")
@options.as_json
def show(scenario: str, settings: dict[str, str], program: bool, as_json: bool) -> None:
    """Show a scenario or a service, every number with its source; nothing is simulated.

    Of a scenario: machine, layout, memory ledger, settings, metrics. Of a service: engines, scheduling, cache, front,
    load. The settings listed are the keys that --set takes.

    \b
    Examples:
      braid show a3_prefill:microbatch
      braid show a3_prefill:dp --set batch.requests=128
      # what one rank launches, in order
      braid show a3_prefill:microbatch --program
      # a service
      braid show one_server:llama_3_1_70b
    """
    if program and as_json:
        raise click.UsageError("--program is text: leave out --json")
    with redirect_stdout(sys.stderr):  # what a program prints
        text = _of_service(scenario, settings, program, as_json) or _of_scenario(scenario, settings, program, as_json)
    click.echo(text)


def _of_service(reference: str, settings: dict[str, str], program: bool, as_json: bool) -> str:
    """What a service consists of; "" where this names none."""
    from simulator.commands import service_description
    from simulator.commands.output import to_json
    from simulator.serving.library import is_service, load_service
    from simulator.serving.settings import changed

    if not is_service(reference):
        return ""
    if program:
        raise click.UsageError(f"{reference} is a service: --program is of scenarios")
    service = changed(load_service(reference), settings)
    return to_json(service_description.described(service)) if as_json else service_description.description(service)


def _of_scenario(reference: str, settings: dict[str, str], program: bool, as_json: bool) -> str:
    """What a scenario consists of, or what its rank 0 does."""
    from simulator.commands.description import described, description
    from simulator.commands.output import to_json
    from simulator.commands.request import scenario_of
    from simulator.study.simulate import program_text

    chosen = scenario_of(reference, settings)
    if program:
        return program_text(chosen)
    return to_json(described(chosen)) if as_json else description(chosen)
