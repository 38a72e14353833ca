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
@click.option("--fit", "fits", is_flag=True, help="Search for better numbers too, which takes minutes a family.")
@click.option("--only", metavar="FAMILY", help="Only families with this in their name, with * for any text.")
@options.as_json
def kernels(folder: Path, machine: str | None, fits: bool, only: str | None, as_json: bool) -> None:
    """Say how far kernel families of the machines are from measured kernels; with --fit, which numbers are nearest.

    FOLDER holds public tables under the names of their projects: infersim/gemm.h20.data.csv is bench_data/gemm/h20/
    data.csv of alibaba/InferSim, aiconfigurator/b200_sxm.gemm.trtllm.1.3.0rc20.gemm_perf.parquet is that file of
    systems/data in ai-dynamo/aiconfigurator. Tables that are not there are left out.

    A line has the rows compared, the median of the relative errors, and the error that nine in ten rows are within.
    Numbers that a fit finds are printed, in SI units, and not written anywhere: the files in topologies/ have theirs
    with their sources.

    \b
    Examples:
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
