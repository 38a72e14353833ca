"""Options that several commands share, with the same name and the same meaning everywhere."""

from __future__ import annotations

from pathlib import Path

import click as plain_click
import rich_click as click


def _pairs(ctx: plain_click.Context, parameter: plain_click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """("a.b=1", "c=3.2 TB/s") -> {"a.b": "1", "c": "3.2 TB/s"}; of two values for one key the last one counts."""
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise plain_click.BadParameter(f"'{text}' is not KEY=VALUE, as in --set batch.requests=32",
                                           ctx=ctx, param=parameter)
        pairs[key.strip()] = value.strip()
    return pairs


def _ranks(ctx: plain_click.Context, parameter: plain_click.Parameter, given: str | None) -> tuple[str, ...] | None:
    """"0,7,slowest" -> ("0", "7", "slowest")."""
    words = ("slowest", "median", "fastest", "first", "all")
    wanted = None if given is None else names_of(given)
    for one in wanted or ():
        if not one.isdecimal() and one not in words:
            raise plain_click.BadParameter(f"'{one}' is no rank: ranks are numbers, or {', '.join(words)}",
                                           ctx=ctx, param=parameter)
    if wanted == ():
        raise plain_click.BadParameter("names no rank", ctx=ctx, param=parameter)
    return wanted


def _window(ctx: plain_click.Context, parameter: plain_click.Parameter, given: str | None) -> tuple[int, int] | None:
    """"20 ms..30 ms" -> (20 * 10**9, 30 * 10**9)."""
    from simulator.units import parse, to_ps, to_si, units_of

    if given is None:
        return None
    try:
        low, high = (to_ps(to_si(*parse(one.strip()))) for one in given.split(".."))
        if not 0 <= low < high or any(one.strip().startswith("-") or parse(one.strip())[1] not in units_of("s")
                                      for one in given.split("..")):
            raise ValueError
    except (ValueError, OverflowError):
        raise plain_click.BadParameter(f"'{given}' is not FROM..TO in time, as in \"20 ms..30 ms\"",
                                       ctx=ctx, param=parameter) from None
    return low, high


def names_of(text: str) -> tuple[str, ...]:
    """The names in "A,B,..."."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


settings = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", callback=_pairs,
    help='Change one setting of the scenario, or with machine.KEY="3.2 TB/s" a number of its machine; '
         'machine.fabric.cut="die 3 - node 0" takes links away, machine.fabric.slow="die 3 - node 0: 0.5" leaves '
         "them half their rate. Repeatable. `braid show SCENARIO` lists the keys.")
"""`--set KEY=VALUE`, any number of times -> settings: dict[str, str]."""

faults = click.option(
    "--fault", "faults", multiple=True, metavar="TEXT|FILE",
    help='What strikes, when, and for how long: "12 ms: link rank3.nic0 rate 0.1 for 5 ms", "0 s: rank 7 clock 0.8", '
         '"1 ms: host 3 paused for 100 us", "about every 5 ms: link rank*.nic* cut for 1 ms" (drawn), or a TOML file '
         "that lists such faults. Repeatable.")
"""`--fault TEXT`, any number of times -> faults: tuple[str, ...], as `spec.faults.faults_of` takes them."""

ranks = click.option(
    "--ranks", type=click.Choice(["roles", "all"]), default="roles", show_default=True,
    help="Simulate ranks that do the same thing once, with a multiplicity, or every rank by itself.")

seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
    help="Seed of whatever is drawn by chance: routing, lengths.")

record = click.option(
    "--no-record", "record", is_flag=True, default=True, flag_value=False,
    help="Keep no timeline: print the workload's own metrics, and not where the time went.")

kernels = click.option(
    "--kernels", is_flag=True,
    help="Every kernel and collective too: average, least and most over all ranks and layers, waiting apart.")

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables; nothing else on stdout.")

out = click.option(
    "--out", type=click.Path(path_type=Path), default=None, metavar="DIR",
    help="Write timeline.parquet, trace.json.gz (open it in ui.perfetto.dev) and result.json there. "
         "The folder above DIR must exist.")
"""`--out DIR` -> out: pathlib.Path | None."""

force = click.option("--force", is_flag=True, help="With --out, write into a folder that holds other files, too.")

trace_ranks = click.option(
    "--trace-ranks", callback=_ranks, default=None, metavar="A,B,...",
    help="With --out, whose streams the trace shows: numbers, slowest, median, fastest, first, all.  "
         "[default: slowest, median and first]")
"""`--trace-ranks A,B` -> trace_ranks: tuple[str, ...] | None, as `observe.shown` takes them."""

trace_window = click.option(
    "--trace-window", callback=_window, default=None, metavar="FROM..TO",
    help='With --out, the part of the run that the trace shows, as "20 ms..30 ms".  [default: all]')
"""`--trace-window FROM..TO` -> trace_window: (from, to) in ps | None."""

trace_format = click.option(
    "--trace-format", type=click.Choice(["chrome", "kineto"]), default="chrome", show_default=True,
    help="kineto: with --out, a folder kineto/ too, with a file per rank as PyTorch's profiler writes it.")
