"""`braid bench`: how fast Braid is, against its targets."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from simulator.commands import options


@click.command()
@click.argument("pattern", required=False)
@options.as_json
@click.pass_context
def bench(ctx: click.Context, pattern: str | None, as_json: bool) -> None:
    """Measure Braid's own speed and memory against targets; write results/benchmarks.md.

    PATTERN chooses benchmarks by name or part of it, with * for any text. Each runs in a process of its own.
    A target that is missed on this computer is reported; a benchmark that cannot run is a failure (exit code 1).

    \b
    Examples:
      # all of them; writes results/benchmarks.md
      braid bench
      # those with "flows" in their name, or some for a script; writes nothing
      braid bench flows
      braid bench 'cold_*' --json
    """
    from simulator.bench import growth, suite
    from simulator.commands.output import OutputFolder, to_json, write_text

    target = None
    if pattern is None and not as_json:
        target = Path("results") / "benchmarks.md"
        OutputFolder(target.parent)
    rows = suite.measure(pattern, announce=not as_json)
    if target is not None:
        write_text(target, suite.markdown(rows, growth.steps()))  # before anything is printed: it may have no reader
    if as_json:
        click.echo(to_json([row.as_object() for row in rows]))
    else:
        suite.print_rows(rows)
    if target is not None:
        click.echo(f"wrote {target}")
    if any(row.failed for row in rows):
        ctx.exit(1)
