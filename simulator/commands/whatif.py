"""`braid whatif`: what if something were free, or faster, or another number; what it saves, and how sure that is."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.study.whatif import Answers
    from simulator.study.whatif_parts import Plan

_PARTS = "free,faster,elasticity,knobs,band"


@click.command()
@click.argument("scenario")
@click.option("--only", "only", default=_PARTS, metavar="A,B,...",
              help=f"Which parts, of {_PARTS}.  [default: all]")
@click.option("--metric", default=None, metavar="NAME",
              help="What is looked at; makespan_ms is the length of any run.  [default: the first that the scenario"
                   " measures]")
@click.option("--draws", type=click.IntRange(min=1), default=30, show_default=True, metavar="N",
              help="How often the numbers of the machine are drawn for the band.")
@click.option("--all", "every", is_flag=True,
              help="Elasticities (and what makes the band wide) of all numbers that the run reads, not only of those "
                   "that bound more than 1% of its critical path.")
@click.option("--fresh", is_flag=True, help="Run what-ifs again that are kept from before.")
@options.settings
@options.seed
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Simulate N what-ifs at a time, each in a process of its own.")
@options.as_json
def whatif(scenario: str, only: str, metric: str | None, draws: int, every: bool, fresh: bool,
           settings: dict[str, str], seed: int, jobs: int, as_json: bool) -> None:
    """Ask of SCENARIO what if: each what-if is a run of its own, with one thing changed.

    free, faster: each resource of the machine (HBM, links, launches, ...) free or twice as fast, and each block of the
    program (dispatch, attention, ...) free: no time, no bytes, no cores, but ranks still meet in it. Beside what is
    saved stands what the critical path promised; a remark says why it is more. elasticity: percent of the metric for
    each percent of a number of the machine. knobs: knobs on and off, and steps of a ladder, alone and together. band:
    all numbers drawn within what is known of them (3%, 10% or 30%, by their confidence), with those that make the band
    wide. A what-if that cannot run has its reason; the others run.

    What is done is kept in BRAID_CACHE, or in the user's cache folder: the same command goes on after Ctrl-C.
    Any what-if can be looked at by itself: `braid run SCENARIO --set free=dispatch`.

    With --json the object has scenario, changes, seed, metric, value, makespan_ms, and the parts: free and faster
    (what, how, share of the path, promised, saved, speed_up, value of the metric, remark, reason), elasticity
    (parameter, value, kind, confidence, share, elasticity, reason), knobs (waterfalls: title, start, end, alone,
    remainder, steps: switch, alone, in_order, last, value, reason; off: knob, value, change, reason), band (draws,
    drawn, metrics: metric, point, p10, p50, p90; causes: parameter, range, moves, variance, rank; reasons). Shares are
    of 1; what a table leaves out as too small is there too.

    \b
    Examples:
      # a small scenario, all parts
      braid whatif contention:staging
      # what would a free dispatch buy, or HBM twice as fast?
      braid whatif a3_prefill:microbatch --only free,faster
      # what each step of a ladder is worth, alone and on top of the others
      braid whatif trt_min_latency:base --only knobs --jobs 2
      # how sure is the throughput?
      braid whatif a3_prefill:dp --only band --draws 100 --metric throughput_tok_s
    """
    from simulator.commands.output import to_json, warn_unread
    from simulator.commands.request import progress_bar, scenario_of
    from simulator.study.whatif import base_of
    from simulator.study.whatif_parts import plan

    parts = _parts(only)
    chosen = scenario_of(scenario, settings)
    with progress_bar(chosen.name, "building its programs") as tell, redirect_stdout(sys.stderr):
        base = base_of(chosen, seed, metric, tell)
        planned = plan(base, parts, draws, every)
    warn_unread(scenario, [key for key in base.result.header["unread"] if key in settings])
    found = planned.found(_answers(planned, jobs, fresh))
    if as_json:
        click.echo(to_json(found.as_object()))
        return
    from simulator.study.whatif_tables import print_found

    print_found(found)


def _answers(planned: Plan, jobs: int, fresh: bool) -> Answers:
    """Every what-if that is asked for, run or kept from before; Interrupted by Ctrl-C says what becomes of them."""
    from simulator.commands.request import progress_bar
    from simulator.errors import Interrupted
    from simulator.study.kept import cache_folder
    from simulator.study.whatif import answered

    folder, lost = cache_folder(), list[str]()

    def warn(text: str) -> None:
        lost.append(text)
        click.echo(f"warning: {text}", err=True)

    def report(known: int, missing: int) -> None:
        if known:
            click.echo(f"what-ifs kept from before: {known}; left to run: {missing} (--fresh runs all)", err=True)

    try:
        with progress_bar(f"{planned.base.scenario.name}: what if") as tell, redirect_stdout(sys.stderr):
            return answered(planned.base, planned.asked(), jobs, folder, fresh, tell, report, warn)
    except KeyboardInterrupt:
        kept = "; what is done is kept: the same command goes on" if folder and not lost else ""
        raise Interrupted(f"interrupted{kept}") from None


def _parts(text: str) -> tuple[str, ...]:
    """The parts that were chosen; InputError for one that there is not."""
    from simulator.errors import InputError
    from simulator.paths import did_you_mean

    parts, there = options.names_of(text), _PARTS.split(",")
    for part in parts:
        if part not in there:
            raise InputError(f"--only {text}: no part '{part}'{did_you_mean(part, there)}; parts are {_PARTS}")
    if not parts:
        raise InputError(f"--only names none; parts are {_PARTS}")
    return parts
