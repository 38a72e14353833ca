"""`braid probe`: measure a GPU, make a machine of it, and hold what is simulated of two streams against it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.commands.output import OutputFolder
    from simulator.probe.device import Device
    from simulator.probe.measure import Tell
    from simulator.probe.record import Record
    from simulator.probe.report import Findings


@click.command()
@click.option("--out", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Folder of probe.json, probe.toml and report.md; what probe.json has already is not measured again. "
                   "[default: probe, or the folder of --from]")
@click.option("--from", "source", type=click.Path(path_type=Path), metavar="FILE",
              help="Measure nothing: make machine and report again from this probe.json. Needs no GPU and no PyTorch.")
@click.option("--quick", is_flag=True, help="A small grid of sizes, six pairs of streams: about a minute, not eight.")
@click.option("--only", default="", metavar="SECTION,...",
              help="Only these: gemm, attention, copy, launches, streams, collectives, peers.")
@options.as_json
def probe(out: Path | None, source: Path | None, quick: bool, only: str, as_json: bool) -> None:
    """Measure what a machine file assumes on this computer's GPU, and check how Braid shares it between two streams.

    Needs a GPU and PyTorch: pip install '.[probe]'. It measures matrix products, attention and copies at a grid of
    sizes; launches, eager and in a graph; two streams side by side, with start and end of every kernel; where there are
    several GPUs, NCCL and copies between them. It leaves in FOLDER

    \b
      probe.json   every measurement as it was taken; explains itself
      probe.toml   a machine: peaks reached, laws, launches, links, sourced
      report.md    two streams, measured beside simulated, with errors

    In the report's check the time of each kernel alone is given, and what is predicted is what it costs it to run
    beside another one: max-min shares of HBM and L2, cores held from start to end.

    Ctrl-C keeps what was measured; the same command then goes on. Close other programs that use the GPU.

    \b
    Examples:
      # everything, into ./probe, then a model on the GPU as it was measured
      braid probe
      braid step --model qwen3_8b --machine probe/probe.toml --stack vllm_probe
      # a minute's worth; only the check of two streams
      braid probe --quick --out results/probe
      braid probe --only gemm,copy,streams --out results/streams
      # machine and report again, anywhere, from measurements of another computer
      braid probe --from probe.json --out results/probe
    """
    from simulator.commands.options import names_of
    from simulator.commands.output import OutputFolder, to_json
    from simulator.commands.request import progress_bar
    from simulator.errors import InputError
    from simulator.probe import record as records
    from simulator.probe import report

    if source is not None and (quick or only):
        raise InputError("--quick and --only say what to measure; --from measures nothing")
    folder = OutputFolder(out or (source.parent if source is not None else Path("probe")))
    record = records.read(source) if source is not None else _measured(folder, quick, names_of(only))
    with progress_bar("laws and streams"):
        found = report.findings(record)
    with folder.staged() as staging:
        (staging / "probe.toml").write_text(found.part, encoding="utf-8")
        (staging / "report.md").write_text(report.markdown(found), encoding="utf-8")
    if as_json:
        click.echo(to_json(_object(found)))
    else:
        _show(found, folder.path)


def _measured(folder: OutputFolder, quick: bool, only: tuple[str, ...]) -> Record:
    """The record of this computer's GPU, in that folder."""
    from datetime import date

    from simulator.probe.measure import measure, record_of
    from simulator.probe.plan import plan
    from simulator.probe.record import NAME

    device = open_device()
    path = folder.path / NAME
    record = record_of(path, device, date.today().isoformat())
    with _progress(record.about.name) as tell:
        return measure(device, plan(record.about, quick, only), record, path, tell)


def open_device() -> Device:
    """This computer's GPU; InputError where there is none, or no PyTorch."""
    from simulator.errors import InputError

    try:
        from simulator.probe.torch_device import TorchDevice
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise InputError("braid probe measures with PyTorch, which is not installed: pip install '.[probe]'. "
                         "Measurements of another computer: braid probe --from probe.json") from None  # fmt: skip
    return TorchDevice()


@contextmanager
def _progress(title: str) -> Iterator[Tell]:
    """A bar for a person; a line now and then for a file."""
    import sys

    from simulator.commands.request import progress_bar

    told = [-1]

    def line(share: float, what: str) -> None:
        if int(10 * share) > told[0]:
            told[0] = int(10 * share)
            click.echo(f"{share:4.0%} {what or 'measured'}", err=True)

    click.echo(f"measuring {title}; Ctrl-C keeps what was measured", err=True)
    if not sys.stderr.isatty():
        yield line
        return
    with progress_bar(title) as shown:
        yield lambda share, _: shown(share)


def _show(found: Findings, folder: Path) -> None:
    from simulator.commands.output import print_table
    from simulator.probe.report import CHECK_HEAD, check_rows, is_whole

    if found.pairs:
        print_table([f"{'~' if place < 2 else '>'}{name}" for place, name in enumerate(CHECK_HEAD)],
                    list(check_rows(found.pairs)))
        print_table(("<prediction", ">median error"), [(name, f"{error:.1%}") for name, error in found.errors.items()])
    for one in found.families:
        if one.found is not None:
            click.echo(f"{one.name:22s} " + "; ".join(f"{name} {error}" for name, error in one.found.errors.items()))
    out = sum("left_out" in row for row in found.record.rows)
    if out:
        click.echo(f"{out} measurements were left out: report.md says why")
    what = "a machine" if is_whole(found) else "a part of a machine: not all sections were measured"
    click.echo(f"{folder / 'probe.toml'}: {what}\n{folder / 'report.md'}: the report")


def _object(found: Findings) -> dict[str, object]:
    """What --json prints."""
    most = found.reached
    return {"source": found.record.source, "reached": most._asdict() if most else None,
            "families": {one.name: {name: {"rows": error.rows, "median_error": error.median}
                                    for name, error in one.found.errors.items()}
                         for one in found.families if one.found},
            "streams": [{"title": pair.title, "kernels": [str(one.kernel) for one in pair.streams],
                         "stretch": [one.stretch for one in pair.streams],
                         "simulated": [one.simulated_stretch for one in pair.streams]} for pair in found.pairs],
            "median_errors": found.errors}  # fmt: skip
