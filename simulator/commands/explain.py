"""`braid explain`: why a run takes as long as it does, in words and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.observe.explain import Focus
    from simulator.observe.recorded import Recorded


@click.command()
@click.argument("result")
@click.argument("metric", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only what this rank does and waits for.")
@click.option("--layer", type=click.IntRange(min=0), metavar="N", help="Only this layer.")
@click.option("--micro-batch", metavar="A", help="Only this micro-batch: A, B, ... as in the trace, or 0, 1, ...")
@options.settings
@options.ranks
@options.seed
@options.as_json
def explain(result: str, metric: str | None, rank: int | None, layer: int | None, micro_batch: str | None,
            settings: dict[str, str], ranks: str, seed: int, as_json: bool) -> None:
    """Say why a run takes as long as it does: RESULT is a folder that `braid run --out` wrote, or a scenario.

    In words and tables: what bounds the critical path; where each communication hides, how much of it is exposed and
    why; who waits for whom, and what that one was behind; the parameters that matter most. METRIC is a metric of the
    run, or a block, kind or name of its tasks (combine, all_to_all, combine.tokens): only what belongs to it. Where few
    waits are left, each is told.

    \b
    Examples:
      braid explain a3_prefill:microbatch
      braid run a3_prefill:dp_uneven --out results/uneven
      braid explain results/uneven
      # where does combine of micro-batch B hide, and why not all of it
      braid explain a3_prefill:microbatch combine --micro-batch B
      # for whom does rank 5 wait in layer 30
      braid explain results/uneven --rank 5 --layer 30
    """
    from simulator.commands.output import to_json
    from simulator.commands.request import progress_bar, recorded
    from simulator.errors import InputError
    from simulator.observe.explain import explain as explained
    from simulator.observe.explain_text import explanation_object, print_explanation
    from simulator.study.expected import plain

    run = recorded(result, settings, ranks, seed)
    name, said = _meant(run, metric)
    try:
        standing = None if rank is None else run.leader(rank)
        focus = _focus(standing, layer, micro_batch, name)
        with progress_bar(run.name, "explaining it"):
            found = explained(run, focus)
    except ValueError as error:
        asked = _described(rank, layer, micro_batch, name)
        raise InputError(f"{run.name}: {error}" if "rank" in str(error) else
                         f"{run.name} has no task {asked}" if asked else f"{run.name} has no tasks") from None
    if as_json:
        click.echo(to_json(plain(explanation_object(found))))
        return
    click.echo(f"{run.name}: {run.about['title']}")
    for key, text in run.about["changes"].items():
        click.echo(f"changed: {key} = {text}")
    if standing != rank:
        click.echo(f"Rank {rank} does the same as rank {standing}, which was simulated for it.")
    for line in said:
        click.echo(line)
    print_explanation(found)


def _focus(rank: int | None, layer: int | None, micro_batch: str | None, name: str | None) -> Focus:
    from simulator.observe.explain import Focus

    batch = micro_batch
    if batch is not None and not batch.isdecimal():
        if len(batch) != 1 or not batch.isascii() or not batch.isalpha():
            raise click.UsageError(f"--micro-batch {batch}: a letter, as A, or a number, as 0")
        batch = str(ord(batch.upper()) - ord("A"))
    return Focus(rank, layer, None if batch is None else int(batch), name)


def _described(rank: int | None, layer: int | None, micro_batch: str | None, name: str | None) -> str:
    """The focus in words."""
    parts = (f"of rank {rank}" if rank is not None else "", f"of layer {layer}" if layer is not None else "",
             f"of micro-batch {micro_batch}" if micro_batch is not None else "", f"that is {name}" if name else "")
    return " ".join(part for part in parts if part)


def _meant(run: Recorded, metric: str | None) -> tuple[str | None, list[str]]:
    """The tasks that a metric is of (None: all), and its value and meaning in words; InputError: it is neither a metric
    nor what tasks are called."""
    from simulator.errors import InputError
    from simulator.observe.columns import block_of
    from simulator.observe.tables import number
    from simulator.paths import nearest
    from simulator.study.glossary import meaning

    if metric is None:
        return None, []
    names = set(run.columns["name"].tolist())
    tasks = names | {block_of(one) for one in names} | set(run.columns["kind"].tolist())
    if metric in tasks:
        return metric, []
    if metric not in run.metrics:
        known = nearest(metric, [*run.metrics, *tasks])
        raise InputError(f"{run.name} has no metric, block, kind or task '{metric}'; the nearest are "
                         f"{', '.join(known)}")
    what = meaning(metric)
    said = [f"{metric} is {number(run.metrics[metric])}{f': {what}' if what else ''}."]
    base = metric.removesuffix("_ms").removeprefix("block_").removeprefix("sent_")
    return (base if base in tasks else None), said
