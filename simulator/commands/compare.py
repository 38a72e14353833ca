"""`braid compare`: two scenarios side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.scenario import Scenario


@click.command()
@click.argument("a")
@click.argument("b")
@options.settings
@options.ranks
@options.seed
@options.out
def compare(a: str, b: str, settings: dict[str, str], ranks: str, seed: int, out: Path | None) -> None:
    """Simulate scenarios A and B and print metrics and time by kind side by side.

    What --set KEY=VALUE changes is changed in A and in B, --set B:KEY=VALUE in B alone (A:KEY=VALUE in A). With --out,
    each scenario gets a folder of its own in DIR.

    \b
    Examples:
      braid compare a3_prefill:dp a3_prefill:microbatch
      braid compare a3_prefill:dp a3_prefill:microbatch --set batch.requests=128
      # a scenario beside itself with one thing changed
      braid compare a3_prefill:dp a3_prefill:dp --set B:knobs.attention=tnd
      # keep both traces
      braid compare a3_prefill:dp a3_prefill:microbatch --out results/a3_prefill
    """
    from simulator.commands.folder import OutputFolder
    from simulator.commands.output import write_result
    from simulator.commands.request import scenario_of, simulate

    folder = OutputFolder(out) if out is not None else None
    named = {"A": scenario_of(a, {}), "B": scenario_of(b, {})}
    scenarios = [_changed(side, scenario, settings) for side, scenario in named.items()]
    results = [simulate(scenario, ranks, seed) for scenario in scenarios]
    written: list[Path] = []
    if folder is not None:
        folder.path.mkdir(exist_ok=True)
        for number, result in enumerate(results):
            name = result.scenario.name.replace(":", "-").replace("/", "-")
            twin = number == 1 and results[0].scenario.name == result.scenario.name
            written += write_result(result, OutputFolder(folder.path / (f"{name}-b" if twin else name)))
    from simulator.commands.comparison import print_comparison

    print_comparison(*results)
    for path in written:
        click.echo(f"wrote {path}")


def _changed(side: str, scenario: Scenario, settings: dict[str, str]) -> Scenario:
    """With the settings that are not those of the other side alone."""
    from simulator.errors import InputError

    own = {key.removeprefix(f"{side}:"): text for key, text in settings.items() if key.startswith(f"{side}:")}
    settings = {key: text for key, text in settings.items() if not key.startswith(("A:", "B:"))} | own
    try:
        return scenario.replace(settings) if settings else scenario
    except InputError as error:
        raise InputError(f"{side}, {scenario.name}: {error}") from None
