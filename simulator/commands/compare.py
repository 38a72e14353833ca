"""`braid compare`: two scenarios, runs or measured traces side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from click.core import ParameterSource

from simulator.commands import options
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.commands.comparison import Runs, Traces
    from simulator.commands.output import OutputFolder
    from simulator.study.simulate import Result


@click.command()
@click.argument("a")
@click.argument("b")
@options.settings
@options.ranks
@options.seed
@options.out
@options.force
@options.as_json
@click.pass_context
def compare(ctx: click.Context, a: str, b: str, settings: dict[str, str], ranks: str, seed: int, out: Path | None,
            force: bool, as_json: bool) -> None:
    """Compare A with B task by task: what moved, which names, kinds and layers take longer, and where the difference of
    their lengths comes from.

    A and B are scenarios, which are simulated, or folders that `braid run --out` wrote, or measured traces: JSON of
    torch.profiler (.json, .json.gz, or a folder with a file per rank), trace_view.json or kernel_details.csv of
    Ascend's profilers, SQLite of Nsight Systems (`nsys export --type sqlite`). A measured trace has names of its own,
    so it stands beside a run by streams, kinds, overlap and the order of kernels.

    What --set KEY=VALUE changes is changed in every scenario, --set B:KEY=VALUE in B alone (A:KEY=VALUE in A). With
    --out, each scenario gets a folder of its own in DIR. With --json the object has A and B, each as `braid run
    --json`, and their comparison. What is equal on both sides is said once; of twice the same nothing moved.

    \b
    Examples:
      braid compare a3_prefill:dp a3_prefill:microbatch
      braid compare a3_prefill:dp a3_prefill:microbatch --set batch.requests=128
      # a scenario beside itself with one thing changed
      braid compare a3_prefill:dp a3_prefill:dp --set B:knobs.attention=tnd
      # keep both traces, and compare what was kept
      braid compare a3_prefill:dp a3_prefill:microbatch --out kept
      braid compare kept/a3_prefill-dp kept/a3_prefill-microbatch
      # a run beside a trace of a profiler, or here of Braid itself
      braid compare a3_prefill:dp kept/a3_prefill-dp/trace.json.gz
    """
    from simulator.commands.comparison import compared
    from simulator.commands.output import TRACE, results_folder, to_json, warn_unread
    from simulator.commands.request import scenario_of, simulate
    from simulator.commands.sides import is_scenario, naming, read, refuse_settings, simulated

    words = {"A": a, "B": b}
    scenarios = {letter: word for letter, word in words.items() if is_scenario(word)}
    others = {f"--{name}": ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
              for name in ("ranks", "seed", "out")}
    refuse_settings(scenarios, settings, others)
    folder = results_folder(out, force, f"*/{TRACE}")
    asked = {}
    for letter, word in scenarios.items():
        with naming(letter, word):
            asked[letter] = scenario_of(word, _settings_of(letter, settings))
    sides = {letter: read(letter, word) for letter, word in words.items() if letter not in scenarios}
    for letter, scenario in asked.items():
        with naming(letter, scenario.name):
            sides[letter] = simulated(letter, simulate(scenario, ranks, seed))
    results = [side.result for letter, side in sorted(sides.items()) if side.result is not None]
    written = _write(results, folder) if folder is not None else []
    found = _looked_at(compared(sides["A"], sides["B"]))
    if as_json:
        for result in results:
            warn_unread(result.scenario.name, result.header["unread"])
        click.echo(to_json({letter: sides[letter].as_object() for letter in words} | {"comparison": found.as_object()}))
        return
    from simulator.commands.comparison_tables import print_comparison

    print_comparison(sides["A"], sides["B"], found)
    for line in written:
        click.echo(f"wrote {line}")


def _looked_at(found: Runs | Traces) -> Runs | Traces:
    """With what takes long of many tasks, which is otherwise found when it is asked for."""
    from simulator.commands.comparison import Runs
    from simulator.commands.request import progress_bar

    with progress_bar("A beside B", "task by task"):
        _ = (found.aligned, found.steps, found.times) if isinstance(found, Runs) else found.order
    return found


def _write(results: list[Result], folder: OutputFolder) -> list[str]:
    """A folder for each result in the one of --out; a line on each file."""
    from simulator.commands.output import OutputFolder, write_result

    folder.path.mkdir(exist_ok=True)
    written: list[str] = []
    for number, result in enumerate(results):
        name = result.scenario.name.replace(":", "-").replace("/", "-")
        twin = number == 1 and results[0].scenario.name == result.scenario.name
        written += write_result(result, OutputFolder(folder.path / (f"{name}-b" if twin else name)))
    return written


def _settings_of(side: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What is set for both sides, and for this one."""
    both = {key: text for key, text in settings.items() if not key.startswith(("A:", "B:"))}
    own = {key[2:].strip(): text for key, text in settings.items() if key.startswith(f"{side}:")}
    if "" in own:
        raise InputError(f"--set {side}:={own['']} names no setting, as --set {side}:batch.requests=32 does")
    return both | own
