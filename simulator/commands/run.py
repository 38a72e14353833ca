"""`braid run`: simulate one scenario and read what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.commands.output import OutputFolder, TraceChoice
    from simulator.study.simulate import Result
    from simulator.study.struck import Struck


@click.command()
@click.argument("scenario")
@options.settings
@options.faults
@options.ranks
@options.seed
@options.record
@options.kernels
@options.out
@options.force
@options.trace_ranks
@options.trace_window
@options.trace_format
@options.as_json
def run(scenario: str, settings: dict[str, str], faults: tuple[str, ...], ranks: str, seed: int, record: bool,
        kernels: bool, out: Path | None, force: bool, trace_ranks: tuple[str, ...] | None,
        trace_window: tuple[int, int] | None, trace_format: str, as_json: bool) -> None:
    """Simulate SCENARIO and print expected and simulated values, time by kind, one layer's streams.

    The report's header names the settings that were changed, and what each metric means; `braid show SCENARIO` defines
    those in the tables too. With --json the object has the keys scenario, changes (settings changed by --set, or by
    `replace` in a file of your own), seed, metrics, expected (each with id, metric, value, simulated, error, role and
    band; error is null where settings were changed) and parameters (what bounded the critical path); with --kernels
    also kernels (times in us); with faults, also without_faults (the metrics) and faults (of each alone, and of all
    together: what it cost, when it was felt and noticed, and by whom, from when on all was as before; times in ms).

    A fault strikes a link (rate, cut, flaps), a rank or a node of ranks (clock, hbm, lost), a host or a proxy thread
    (paused). Felt is the first task that ends at another time, noticed the first one of a rank that was not struck, by
    when it would have ended; the run is as before once every stream is as late as at its end.

    \b
    Examples:
      braid run a3_prefill:microbatch
      # keep timeline and trace; open trace.json.gz in ui.perfetto.dev
      braid run a3_prefill:microbatch --out results/microbatch
      # a trace of which ranks, and when; for PyTorch's tools too
      braid run a3_prefill:dp --out results/dp --trace-ranks 0,7
      braid run a3_prefill:dp --out results/dp --trace-window "1 s..2 s"
      braid run a3_prefill:dp --out results/dp --trace-format kineto
      # change a setting (braid show lists them), or a number of the machine
      braid run a3_prefill:dp --set batch.requests=128
      braid run a3_prefill:dp --set machine.chip.hbm.peak="3.2 TB/s"
      # what does a straggler cost, and who waits for it?
      braid run a3_prefill:dp --fault "0 s: rank 7 clock 0.8"
      braid run a3_prefill:dp --fault "15 ms: link rank3.nic0 rate 0.1 for 50 ms"
      # a scenario of your own, for a script
      braid run my_study.py:mine --json
    """
    from simulator.commands.output import TraceChoice, results_folder
    from simulator.commands.request import scenario_of, simulate, struck

    for option, given in (("--out writes", out is not None), ("--kernels shows", kernels)):
        if given and not record:
            raise click.UsageError(f"{option} what was recorded: leave out --no-record")
    if out is None and (trace_ranks or trace_window or trace_format == "kineto"):
        raise click.UsageError("--trace-ranks, --trace-window and --trace-format are of the trace that --out writes")
    folder = results_folder(out, force)
    chosen = scenario_of(scenario, settings, faults)
    what = struck(chosen, ranks, seed, record) if chosen.faults else None
    result = what.after if what else simulate(chosen, ranks, seed, record)
    choice = TraceChoice(trace_ranks or TraceChoice.ranks, trace_window, trace_format == "kineto")
    written = _written(result, folder, choice) if folder is not None else []
    if as_json:
        _print_json(result, what, kernels)
    else:
        _print(result, what, kernels)
        for line in written:
            click.echo(f"wrote {line}")


def _print_json(result: Result, what: Struck | None, kernels: bool) -> None:
    from simulator.commands.output import faults_object, kernels_object, result_object, to_json, warn_unread
    from simulator.commands.summary import missing

    warn_unread(result.scenario.name, result.header["unread"])
    for text in missing(result):
        click.echo(f"warning: {text}", err=True)
    click.echo(to_json(result_object(result) | (kernels_object(result) if kernels else {})
                       | (faults_object(what) if what else {})))


def _print(result: Result, what: Struck | None, kernels: bool) -> None:
    from simulator.commands.summary import print_faults, report_of
    from simulator.observe.report import print_kernels, print_report

    print_report(report_of(result))
    if what is not None:
        print_faults(what)
    if kernels:
        print_kernels(result.columns)


def _written(result: Result, folder: OutputFolder, choice: TraceChoice) -> list[str]:
    """A line on each file of the folder."""
    from simulator.commands.output import write_result
    from simulator.commands.request import progress_bar

    with progress_bar(f"writing {folder.path}") as tell:
        return write_result(result, folder, choice, tell)
