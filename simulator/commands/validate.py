"""`braid validate`: every expected value of the library against what is simulated."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from simulator.commands import options


@click.command()
@click.argument("pattern", required=False)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Simulate N scenarios at a time, each in a process of its own.")
@options.as_json
@click.pass_context
def validate(ctx: click.Context, pattern: str | None, jobs: int, as_json: bool) -> None:
    """Compare the library with what is published; write results/validation.md.

    PATTERN chooses scenarios or expected values by name or part of it, with * for any text.

    A value with role "fit" had a parameter fitted on it and proves nothing; "predict" values were never fitted on.
    A miss is reported, with its reason; it is no failure. A value that cannot be simulated is (exit code 1).

    \b
    Examples:
      # the whole library; writes results/validation.md
      braid validate
      # the scenarios of one file, or some values for a script; writes nothing
      braid validate a3_prefill
      braid validate 'a3.prefill.*' --json
    """
    from simulator.commands.output import OutputFolder, to_json, write_text
    from simulator.commands.progress import progress_bar
    from simulator.study import validate as validation

    target = None
    if pattern is None and not as_json:
        target = Path("results") / "validation.md"
        OutputFolder(target.parent)
    with progress_bar("expected values") as tell:
        rows = validation.validate(pattern, jobs, tell)
    studies = []
    if target is not None:
        with progress_bar("studies") as tell:
            studies = validation.studies(jobs, tell)
        write_text(target, validation.markdown(rows, studies))  # before anything is printed: it may have no reader
    if as_json:
        click.echo(to_json([row.as_object() for row in rows]))
    else:
        validation.print_rows(rows)
    if target is not None:
        click.echo(f"wrote {target}")
    if any(row.failed for row in rows) or any(study.reasons or not study.columns for study in studies):
        ctx.exit(1)
