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
