"""`braid sweep` and `braid ladder`: one setting with several values, or settings one after the other, side by side."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.observe.tables import Cell
    from simulator.study.scenario import Scenario
    from simulator.study.simulate import Result
    from simulator.study.sweep import LadderRow

DEFAULT_METRICS = ("latency_ms", "iteration_ms", "tpot_ms", "throughput_tok_s", "throughput_tok_s_per_card",
                   "exposed_comm_ms", "compute_stretch")
KEPT = "sweep.json"  # in the folder of each value: of which scenario it is
LADDER_METRICS = "throughput_tok_s,iteration_ms"


@click.command()
@click.argument("scenario")
@click.argument("key")
@click.argument("values", nargs=-1, required=True)
@click.option("--metrics", metavar="A,B,...",
              help="Which metrics to show; `braid run SCENARIO --json` lists them, `braid run SCENARIO` defines them, "
                   "and `braid show SCENARIO` those that its tables show.  "
                   "[default: times, throughput, exposed communication and stretch]")
@options.settings
@options.ranks
@options.seed
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Simulate N values at a time, each in a process of its own.")
@options.out
@options.force
@click.option("--fresh", is_flag=True, help="With --out, simulate what is there of an earlier sweep, too.")
@options.as_json
@click.pass_context
def sweep(ctx: click.Context, scenario: str, key: str, values: tuple[str, ...], metrics: str | None,
          settings: dict[str, str], ranks: str, seed: int, jobs: int, out: Path | None, force: bool, fresh: bool,
          as_json: bool) -> None:
    """Simulate SCENARIO with each of VALUES for the setting KEY.

    KEY is one that --set takes: a setting of the scenario, or machine.KEY or model.KEY. A value of the
    wrong kind is refused before anything runs, and so is a metric that no run can have; a value that cannot run is
    reported, the others run (exit code 1). With --out, each value gets a folder of its own in DIR, as soon as it is
    simulated: the same sweep goes on where it was stopped.

    \b
    Examples:
      braid sweep a3_prefill:dp batch.requests 32 64 128
      braid sweep a3_prefill:dp machine.chip.hbm.peak "1.2 TB/s" "3.2 TB/s"
      braid sweep a3_prefill:dp knobs.engine sdma aiv --metrics exposed_comm_ms
      # two at a time, and keep every trace
      braid sweep a3_prefill:dp cards 16 32 --jobs 2 --out results/sweep
    """
    from simulator.commands.output import TRACE, print_table, results_folder, to_json, warn_unread
    from simulator.commands.request import progress_bar, scenario_of
    from simulator.errors import InputError
    from simulator.study.glossary import unknown
    from simulator.study.scenario import Study
    from simulator.study.sweep import How, run_study

    chosen = scenario_of(scenario, settings)
    asked = None if metrics is None else options.names_of(metrics)
    if asked == ():
        raise InputError("--metrics names none; `braid run SCENARIO --json` lists them")
    study = Study(title="", key=key, values=values, metrics=DEFAULT_METRICS if asked is None else asked)
    folder = results_folder(out, force, f"*/{TRACE}")
    with progress_bar(f"{chosen.name}: {key}") as tell, redirect_stdout(sys.stderr):
        if wrong := unknown(asked or (), (chosen.replace({key: value}) for value in values)):
            raise InputError(_no_metric(chosen.name, wrong))
        how = How(seed, ranks, jobs)
        if folder is not None:
            place = Folders(folder.path, _folders(values), f"{seed}-{ranks}")
            how = replace(how, keep=place.write, known=None if fresh else place.known)
            _tell_kept([place.known(value, chosen.replace({key: value})) is not None and not fresh for value in values])
        table = run_study(chosen, study, tell, how)
    there = [place for place in range(len(study.metrics)) if any(row[place] is not None for _, row in table.rows)]
    missing = [one for place, one in enumerate(study.metrics) if place not in there]
    if len(table.reasons) < len(values) and missing and (asked is not None or not there):
        raise InputError(_no_metric(chosen.name, missing))
    wanted = [study.metrics[place] for place in there]
    rows = [(value, [row[place] for place in there]) for value, row in table.rows]
    warn_unread(chosen.name, table.unread)
    reasons = dict(table.reasons)
    if as_json:
        why = {value: {"reason": reason} for value, reason in reasons.items()}
        click.echo(to_json([{key: value, **dict(zip(wanted, row, strict=True)), **why.get(value, {})}
                            for value, row in rows]))
    else:
        print_table((f"<{key}", *(f">{metric}" for metric in wanted)), [(value, *row) for value, row in rows])
    for value, reason in reasons.items():
        click.echo(f"Error: {key} = {value}: {reason}", err=True)
    if folder is not None and not as_json and len(reasons) < len(values):
        click.echo(f"wrote a folder for each value into {folder.path}")
    if reasons:
        ctx.exit(1)


def _no_metric(scenario: str, metrics: Sequence[str]) -> str:
    return f"{scenario} has no metric {', '.join(metrics)}; `braid run {scenario} --json` lists them"


def _tell_kept(known: Sequence[bool]) -> None:
    if any(known):
        left = known.count(False)
        click.echo(f"values kept from before: {len(known) - left}; left to run: {left} (--fresh runs all)", err=True)


def _folders(values: Sequence[str]) -> dict[str, str]:
    """A folder's name for each: the value as far as it makes one, with its place before it where two make the same."""
    names = [re.sub(r"[^\w.+-]+", "-", value).strip(".-") or "value" for value in values]
    if len(set(names)) < len(names):
        names = [f"{place}-{name}" for place, name in enumerate(names)]
    return dict(zip(values, names, strict=True))


@dataclass(frozen=True)
class Folders:
    """A folder for each value, by its name; run: what else a result depends on, beside the scenario."""

    folder: Path
    names: Mapping[str, str]
    run: str

    def write(self, value: str, result: Result) -> None:
        """The result of a value, and what `known` reads."""
        from simulator.commands.output import OutputFolder, write_result
        from simulator.study.expected import plain

        kept = {"name": self._name(result.scenario), "metrics": result.metrics, "unread": result.header["unread"]}
        write_result(result, OutputFolder(self.folder / self.names[value]), beside={KEPT: json.dumps(plain(kept))})

    def known(self, value: str, scenario: Scenario) -> tuple[dict[str, float], list[str]] | None:
        """Metrics and settings that were not read, if the result of this very scenario is there."""
        from simulator.commands.output import TRACE
        from simulator.observe.temporary import settle
        from simulator.study.recorded import is_folder_of_run

        folder = self.folder / self.names[value]
        settle(folder)
        with suppress(OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
            kept = json.loads((folder / KEPT).read_text(encoding="utf-8"))
            metrics = {str(name): +number for name, number in kept["metrics"].items()}
            _ = [float(number) for number in metrics.values()]
            if kept["name"] == self._name(scenario) and is_folder_of_run(folder) and (folder / TRACE).is_file():
                return metrics, [str(key) for key in kept["unread"]]
        return None

    def _name(self, scenario: Scenario) -> str:
        from simulator.study.kept import name_of

        return f"{name_of(scenario, 'scenario')}-{self.run}"


@click.command()
@click.argument("scenario")
@click.option("--metrics", default=LADDER_METRICS, show_default=True, metavar="A,B,...",
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
        raise InputError(_no_metric(chosen.name, unknown))
    warn_unread(chosen.name, [key for key in in_all([one.unread for one in rows]) if key in settings])
    if as_json:
        click.echo(to_json([{"step": one.title, **{name: one.metrics[name] for name in wanted}} for one in rows]))
        return
    _print(rows, wanted)


def _print(rows: Sequence[LadderRow], metrics: tuple[str, ...]) -> None:
    from simulator.commands.output import print_table

    shown: list[Sequence[Cell]] = []
    first = rows[0].metrics[metrics[0]]
    for before, one in zip((rows[0], *rows), rows, strict=False):
        value = one.metrics[metrics[0]]
        gains = (f"x {value / before.metrics[metrics[0]]:.3f}", f"x {value / first:.2f}")
        shown.append((one.title, *(one.metrics[name] for name in metrics), *gains))
    print_table(("<step", *(f">{name}" for name in metrics), ">gain of this step", ">of all"), shown)
