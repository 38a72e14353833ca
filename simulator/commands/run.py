"""`braid run`: simulate one scenario and read what came out."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from simulator.commands import options


@click.command()
@click.argument("scenario")
@options.settings
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
def run(scenario: str, settings: dict[str, str], ranks: str, seed: int, record: bool, kernels: bool,
        out: Path | None, force: bool, trace_ranks: tuple[str, ...] | None, trace_window: tuple[int, int] | None,
        trace_format: str, as_json: bool) -> None:
    """Simulate SCENARIO and print expected and simulated values, time by kind, one layer's streams.

    The report's header names the settings that were changed, and what each metric means; `braid show SCENARIO` defines
    those in the tables too. With --json the object has the keys scenario, changes (settings changed by --set, or by
    `replace` in a file of your own), seed, metrics, expected (each with id, metric, value, simulated, error, role and
    band; error is null where settings were changed) and parameters (what bounded the critical path); with --kernels
    also kernels (times in us).

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
      # a scenario of your own, for a script
      braid run my_study.py:mine --json
    """
    from simulator.commands.output import (
        TraceChoice,
        kernels_object,
        result_object,
        results_folder,
        to_json,
        warn_unread,
        write_result,
    )
    from simulator.commands.request import scenario_of, simulate
    from simulator.commands.summary import missing, report_of

    for option, given in (("--out writes", out is not None), ("--kernels shows", kernels)):
        if given and not record:
            raise click.UsageError(f"{option} what was recorded: leave out --no-record")
    if out is None and (trace_ranks or trace_window or trace_format == "kineto"):
        raise click.UsageError("--trace-ranks, --trace-window and --trace-format are of the trace that --out writes")
    folder = results_folder(out, force)
    result = simulate(scenario_of(scenario, settings), ranks, seed, record)
    choice = TraceChoice(trace_ranks or TraceChoice.ranks, trace_window, trace_format == "kineto")
    written = write_result(result, folder, choice) if folder is not None else []
    if as_json:
        warn_unread(scenario, result.header["unread"])
        for text in missing(result):
            click.echo(f"warning: {text}", err=True)
        click.echo(to_json(result_object(result) | (kernels_object(result) if kernels else {})))
        return
    from simulator.observe.report import print_kernels, print_report

    print_report(report_of(result))
    if kernels:
        print_kernels(result.columns)
    for line in written:
        click.echo(f"wrote {line}")
