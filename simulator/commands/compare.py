"""`braid compare`: two scenarios side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import rich_click as click

from simulator.commands import options
from simulator.errors import InputError, RunError


@click.command()
@click.argument("a")
@click.argument("b")
@options.settings
@options.ranks
@options.seed
@options.out
@options.force
@options.as_json
def compare(a: str, b: str, settings: dict[str, str], ranks: str, seed: int, out: Path | None, force: bool,
            as_json: bool) -> None:
    """Simulate scenarios A and B and print metrics and time by kind side by side.

    What --set KEY=VALUE changes is changed in A and in B, --set B:KEY=VALUE in B alone (A:KEY=VALUE in A). With --out,
    each scenario gets a folder of its own in DIR. With --json the object has A and B, each as `braid run --json`.

    \b
    Examples:
      braid compare a3_prefill:dp a3_prefill:microbatch
      braid compare a3_prefill:dp a3_prefill:microbatch --set batch.requests=128
      # a scenario beside itself with one thing changed
      braid compare a3_prefill:dp a3_prefill:dp --set B:knobs.attention=tnd
      # keep both traces
      braid compare a3_prefill:dp a3_prefill:microbatch --out results/a3_prefill
    """
    from simulator.commands.output import (
        TRACE,
        OutputFolder,
        result_object,
        results_folder,
        to_json,
        warn_unread,
        write_result,
    )
    from simulator.commands.request import scenario_of, simulate
    from simulator.commands.summary import print_comparison

    folder = results_folder(out, force, f"*/{TRACE}")
    scenarios, results = [], []
    for side, reference in (("A", a), ("B", b)):
        with _naming(side, reference):
            scenarios.append(scenario_of(reference, _settings_of(side, settings)))
    for side, scenario in zip("AB", scenarios, strict=True):
        with _naming(side, scenario.name):
            results.append(simulate(scenario, ranks, seed))
    written: list[str] = []
    if folder is not None:
        folder.path.mkdir(exist_ok=True)
        for number, result in enumerate(results):
            name = result.scenario.name.replace(":", "-").replace("/", "-")
            twin = number == 1 and results[0].scenario.name == result.scenario.name
            written += write_result(result, OutputFolder(folder.path / (f"{name}-b" if twin else name)))
    if as_json:
        for result in results:
            warn_unread(result.scenario.name, result.header["unread"])
        click.echo(to_json(dict(zip("AB", map(result_object, results), strict=True))))
        return
    print_comparison(*results)
    for line in written:
        click.echo(f"wrote {line}")


def _settings_of(side: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What is set for both sides, and for this one."""
    both = {key: text for key, text in settings.items() if not key.startswith(("A:", "B:"))}
    own = {key[2:].strip(): text for key, text in settings.items() if key.startswith(f"{side}:")}
    if "" in own:
        raise InputError(f"--set {side}:={own['']} names no setting, as --set {side}:batch.requests=32 does")
    return both | own


@contextmanager
def _naming(side: str, scenario: str) -> Iterator[None]:
    """What is refused says on which side, and of which scenario."""
    try:
        yield
    except (InputError, RunError) as error:
        kind = InputError if isinstance(error, InputError) else RunError
        raise kind(f"{side}, {scenario}: {str(error).removeprefix(f'{scenario}: ')}") from error
