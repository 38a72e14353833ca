"""`braid compare`: two scenarios side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options
from simulator.errors import InputError, RunError

if TYPE_CHECKING:
    from simulator.observe.tables import Titled
    from simulator.study.simulate import Result


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
    from simulator.commands.output import OutputFolder, write_result
    from simulator.commands.request import scenario_of, simulate

    folder = OutputFolder(out) if out is not None else None
    scenarios, results = [], []
    for side, reference in (("A", a), ("B", b)):
        with _naming(side, reference):
            scenarios.append(scenario_of(reference, _settings_of(side, settings)))
    for side, scenario in zip("AB", scenarios, strict=True):
        with _naming(side, scenario.name):
            results.append(simulate(scenario, ranks, seed))
    written: list[Path] = []
    if folder is not None:
        folder.path.mkdir(exist_ok=True)
        for number, result in enumerate(results):
            name = result.scenario.name.replace(":", "-").replace("/", "-")
            twin = number == 1 and results[0].scenario.name == result.scenario.name
            written += write_result(result, OutputFolder(folder.path / (f"{name}-b" if twin else name)))
    print_comparison(*results)
    for path in written:
        click.echo(f"wrote {path}")


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


def print_comparison(a: Result, b: Result) -> None:
    """Published values, metrics, where the time went and one layer's streams of two runs, with the differences."""
    from rich.padding import Padding
    from rich.text import Text

    from simulator.commands.summary import facts
    from simulator.observe.layer_picture import layer_picture
    from simulator.observe.report import expected_table, stretch_sentence
    from simulator.observe.tables import console, show
    from simulator.study.expected import compared

    terminal = console()
    expected = [replace(row, id=f"{letter}  {row.id}") for letter, result in (("A", a), ("B", b))
                for row in compared(result)]
    both = dict(a.header["changed"].items() & b.header["changed"].items())
    for letter, result in (("A", a), ("B", b)):
        show(terminal, Text(f"{letter}  {result.scenario.name}: {result.scenario.title}", "bold"))
        show(terminal, *(Padding(fact, (0, 0, 0, 3))
                         for fact in (*facts(result, both), stretch_sentence(result.measured))))
    terminal.print()
    show(terminal, *([expected_table(expected)] if expected else ()), *_tables(a, b))
    for letter, result in (("A", a), ("B", b)):
        show(terminal, Text(f"{letter}  {result.scenario.name}, one layer's streams", "bold"))
        terminal.print(layer_picture(result.columns, rank=0, width=terminal.width))


def _tables(a: Result, b: Result) -> list[Titled]:
    from simulator.commands.summary import headline

    one, other = a.measured, b.measured
    hidden = [{name: times.hidden_ps / 1e9 for name, times in side.communication.items()} for side in (one, other)]
    exposed = [{name: times.exposed_ps / 1e9 for name, times in side.communication.items()} for side in (one, other)]
    return [
        _table("metric", headline(a), headline(b)),
        _table("where the time went, ms", _ms(one.account_ps), _ms(other.account_ps)),
        _table("time by kind, ms", _ms(one.kind_ps), _ms(other.kind_ps)),
        _table("hidden communication, ms", *hidden),
        _table("exposed communication, ms", *exposed),
    ]


def _ms(times_ps: Mapping[str, float]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in times_ps.items()}


def _table(title: str, a: Mapping[str, float], b: Mapping[str, float]) -> Titled:
    from simulator.observe.tables import Titled

    headings = (f"<{title:<36}", *(f">{head:>9}" for head in ("A", "B", "B - A", "B / A")))
    return Titled("", headings, [(name, *cells) for name, cells in rows(a, b)])


def rows(a: Mapping[str, float], b: Mapping[str, float]) -> Iterable[tuple[str, tuple[str, str, str, str]]]:
    """(name, (A, B, difference, ratio)) of every name in A or B that is not zero in both; "-" where there is none."""
    from simulator.observe.tables import number

    for name in dict.fromkeys((*a, *b)):
        one, other = a.get(name), b.get(name)
        if not one and not other:
            continue
        if one is None or other is None:
            yield name, (*("-" if side is None else number(side) for side in (one, other)), "-", "-")  # type: ignore[misc]
        else:
            ratio = f"{other / one:.3f}" if one else "-"
            yield name, (number(one), number(other), f"{'+' if other > one else ''}{number(other - one)}", ratio)
