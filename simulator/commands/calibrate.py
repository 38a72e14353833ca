"""`braid calibrate`: the numbers of the machines against public tables of measurements, and fits on them."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from simulator.commands import options


@click.group()
def calibrate() -> None:
    """Compare numbers of the machines with public tables of measurements, and fit them again.

    \b
    Example:
      braid calibrate kernels ~/tables --machine dgx_b200
    """


@calibrate.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--machine", metavar="NAME", help="Only the families of this machine: h20_node, h800_cluster, dgx_b200.")
@click.option("--chip", metavar="NAME", help="Fit a library on this chip instead: a100_sxm, h100_sxm, h200_sxm, "
              "b200_sxm, gb200.")
@click.option("--framework", metavar="NAME", help="With --chip, the library: trtllm, vllm, sglang.")
@click.option("--version", metavar="TEXT", help="With --chip, the library's version; left out: the newest.")
@click.option("--write", type=click.Path(path_type=Path), help="With --chip, write what was found as a machine's part.")
@click.option("--fit", "fits", is_flag=True, help="Search for better numbers too, which takes minutes a family.")
@click.option("--only", metavar="FAMILY", help="Only families with this in their name, with * for any text.")
@options.as_json
def kernels(folder: Path, machine: str | None, chip: str | None, framework: str | None, version: str | None,
            write: Path | None, fits: bool, only: str | None, as_json: bool) -> None:
    """Say how far kernel families of the machines are from measured kernels; with --fit, which numbers are nearest.

    FOLDER holds public tables under the names of their projects: infersim/gemm.h20.data.csv is bench_data/gemm/h20/
    data.csv of alibaba/InferSim, aiconfigurator/b200_sxm.gemm.trtllm.1.3.0rc20.gemm_perf.parquet is that file of
    systems/data in ai-dynamo/aiconfigurator. Tables that are not there are left out.

    A line has the rows compared, the median of the relative errors, and the error that nine in ten rows are within.
    Numbers that a fit finds are printed, in SI units, and not written anywhere: the files in topologies/ have theirs
    with their sources.

    With --chip and --framework all kernel families of that library are fitted on its tables for the chip,
    aiconfigurator/systems/CHIP/KIND/FRAMEWORK/VERSION/*.parquet. A line has a family's errors in decode sizes (up to
    256 tokens) and in prefill sizes, and the median error on rows that the search had to do without.

    \b
    Examples:
      # a library on a chip, as a part of machines
      braid calibrate kernels ~/tables --chip h100_sxm --framework vllm --write h100_sxm.vllm.toml
      # every table in the folder against the machines' files
      braid calibrate kernels ~/tables
      # one family, fitted again
      braid calibrate kernels ~/tables --only mla_decode --fit
    """
    from simulator.calibrate.kernels import MACHINES
    from simulator.calibrate.kernels import calibrate as found_in
    from simulator.commands.output import to_json
    from simulator.commands.request import progress_bar
    from simulator.errors import InputError
    from simulator.paths import did_you_mean

    if chip is not None or framework is not None:
        _library(folder, chip, framework, version, write, as_json)
        return
    if write is not None or version is not None:
        raise InputError("--write and --version go with --chip and --framework")
    if machine is not None and machine not in MACHINES:
        hint = did_you_mean(machine, MACHINES)
        raise InputError(f"no tables are read for machine '{machine}'{hint}; for {', '.join(MACHINES)} they are")
    objects = []
    with progress_bar("kernel families") as tell:
        for where, one in found_in(folder, machine, only, fits, tell):
            objects.append({"machine": where, "what": one.what, "text": one.text, "numbers": one.numbers})
            if not as_json:
                click.echo(f"{where:13s} {one.what:28s} {one.text}")
    if as_json:
        click.echo(to_json(objects))


@calibrate.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--machine", metavar="NAME", help="Only dgx_a100, dgx_h100, dgx_h200, dgx_b200 or gb200_nvl72.")
@click.option("--only", metavar="ENGINE", help="Only engines with this in their name, with * for any text.")
@click.option("--fit", "out", type=click.Path(path_type=Path), metavar="FILE",
              help="Fit the engines of --machine again and write them to FILE, a part of a machine.")
@options.as_json
def collectives(folder: Path, machine: str | None, only: str | None, out: Path | None, as_json: bool) -> None:
    """Say how far engines of collectives are from measured ones, by kind, number of GPUs and size; or fit them.

    FOLDER is systems/data of ai-dynamo/aiconfigurator, with tables as h100_sxm/comm/nccl/2.29.2/nccl_perf.parquet.
    A line has the rows compared, the median of the relative errors, and the error that nine in ten rows are within.

    \b
    Examples:
      # NCCL and the AllReduce kernels of vLLM, SGLang and TensorRT-LLM
      braid calibrate collectives ~/systems/data --machine dgx_h100
      # fit them, and write what a machine can extend
      braid calibrate collectives ~/systems/data --machine dgx_h100 --fit mine.toml
    """
    from simulator.calibrate import collectives as tables
    from simulator.commands.output import to_json
    from simulator.errors import InputError
    from simulator.paths import did_you_mean

    if machine is not None and machine not in tables.CHIPS:
        hint = did_you_mean(machine, tables.CHIPS)
        raise InputError(f"no tables are read for machine '{machine}'{hint}; for {', '.join(tables.CHIPS)} they are")
    if out is not None:
        if machine is None:
            raise InputError("--fit needs --machine: a part is of one chip")
        out.write_text(tables.fitted_part(folder, machine, only), encoding="utf-8")
        click.echo(f"{out}: written")
        return
    found = []
    for name in [machine] if machine else tables.CHIPS:
        for one in tables.compare(folder, name, only):
            found.append({"machine": name, "what": one.what, "text": one.text, "numbers": one.numbers})
            if not as_json:
                click.echo(f"{name:12s} {one.what:38s} {one.text}")
    if as_json:
        click.echo(to_json(found))


@calibrate.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--machine", metavar="NAME", default="dgx_h100", show_default=True, help="The machine to compare.")
@click.option("--fit", is_flag=True, help="Look for the numbers that are nearest to the tables, and compare with them.")
@options.as_json
def deepep(folder: Path, machine: str, fit: bool, as_json: bool) -> None:
    """Say how far DeepEP's kernels in one node are from measured ones, by tokens and SMs; or fit their four numbers.

    FOLDER is systems/data of ai-dynamo/aiconfigurator, with tables as
    h100_sxm/comm/sglang/0.5.12/wideep_deepep_ll_perf.parquet.

    \b
    Examples:
      braid calibrate deepep ~/systems/data
      # the floors and rates of parts/deepep.toml
      braid calibrate deepep ~/systems/data --fit
    """
    from simulator.calibrate.deepep import compare
    from simulator.commands.output import to_json

    found = []
    for one in compare(folder, machine, fit):
        found.append({"machine": machine, "what": one.what, "text": one.text, "numbers": one.numbers})
        if not as_json:
            click.echo(f"{one.what:24s} {one.text}")
    if as_json:
        click.echo(to_json(found))


def _library(folder: Path, chip: str | None, framework: str | None, version: str | None, write: Path | None,
             as_json: bool) -> None:
    """Fits a library on a chip, prints a line for each family, and writes the part."""
    from dataclasses import asdict

    from simulator.calibrate.library import calibrate as found_in
    from simulator.calibrate.library import written
    from simulator.calibrate.library_tables import Library
    from simulator.commands.output import to_json
    from simulator.commands.request import progress_bar
    from simulator.errors import InputError

    if chip is None or framework is None:
        raise InputError("--chip and --framework go together: the tables are those of a library on a chip")
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of tables")
    library, lines = Library(folder, chip, framework, version), []
    with progress_bar("kernel families") as tell:
        for line in found_in(library, tell):
            lines.append(line)
            if not as_json:
                click.echo(str(line))
    if write is not None:
        write.write_text(written(library, lines), encoding="utf-8")
    if as_json:
        click.echo(to_json([asdict(line) for line in lines]))
