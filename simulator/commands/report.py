"""`braid report`: runs or services as one page of HTML that is complete in itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from simulator.commands import options
from simulator.errors import InputError
from simulator.paths import own_path

if TYPE_CHECKING:
    from simulator.observe.page.document import Page
    from simulator.observe.recorded import Recorded
    from simulator.search.answer import Answer
    from simulator.serving.kept_result import KeptService

PAGE = "report.html"
HEAD_BYTES = 2048  # in which a page says that it is one of Braid's


@click.command()
@click.argument("results", nargs=-1, required=True, metavar="RESULT...")
@click.option("--out", type=click.Path(path_type=Path), default=None, metavar="PAGE.html",
              help="Write the page there.  [default: report.html in the folder RESULT, or SCENARIO.html here]")
@click.option("--open", "in_browser", is_flag=True, help="Open the page in the browser, too.")
@options.settings
@options.ranks
@options.seed
@click.option("--force", is_flag=True, help="Write over a file that is no page of Braid's, too.")
def report(results: tuple[str, ...], out: Path | None, in_browser: bool, settings: dict[str, str], ranks: str,
           seed: int, force: bool) -> None:
    """Write results as a page of HTML: metrics, a timeline to zoom into, what hid under what, and what bounded it.

    RESULT is a folder that `run --out`, `serve --out` or `search --out` wrote, a folder of such folders (`sweep --out`,
    `compare --out`), or a scenario, which is then simulated (--set, --ranks and --seed are for these). One run has a
    page of its own, two are set against each other (A, B), more become curves; services have a page, or a curve, of
    theirs, and a search has one. The page is one file and reads nothing from a network. Needs the extra 'report':
    pip install '.[report]'.

    \b
    Examples:
      braid report a3_prefill:microbatch
      # A against B, in the browser
      braid report a3_prefill:dp a3_prefill:microbatch --out overlap.html --open
      # what was kept
      braid run a3_prefill:dp --out results/dp
      braid report results/dp
      # a sweep: curves, and which values no other one beats
      braid sweep a3_prefill:dp batch.requests 32 64 128 --out results/sweep
      braid report results/sweep
      # a service
      braid serve one_server:llama_3_1_70b --requests 64 --rate 2 --out results/service
      braid report results/service
    """
    from simulator.commands.output import write_text
    from simulator.commands.request import progress_bar
    from simulator.observe.page.document import document

    plotly = plotly_script()
    places = [place for reference in results for place in _places(reference)]
    target = _target(out, results, force)
    found = [_read(place, settings, ranks, seed) for place in places]
    with progress_bar("report", "drawing") as tell:
        text = document(_page(found, tell), plotly)
    write_text(target, text)
    click.echo(f"wrote {target}")
    if in_browser:
        import webbrowser

        webbrowser.open(target.resolve().as_uri())


def plotly_script() -> str:
    """The script that draws charts; InputError where it is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        text = "plotly, which draws the charts, is not installed: pip install '.[report]' in the clone"
        raise InputError(text) from None
    return str(get_plotlyjs())


def _places(reference: str) -> list[Path | str]:
    """Folders of a run or a service that are meant, or the name of a scenario."""
    path = own_path(reference)
    if not path.is_dir():
        if ":" not in path.name and len(path.parts) > 1:
            raise InputError(f"there is no folder '{reference}'; a scenario is FILE:FUNCTION, as a3_prefill:dp")
        return [reference]
    if _is_result(path):
        return [path]
    from simulator.observe.temporary import MARK

    below: list[Path | str] = [one for one in sorted(path.iterdir())
                                if _is_result(one) and not one.name.startswith(MARK)]
    if not below:
        raise InputError(f"'{reference}' holds no result: `braid run SCENARIO --out FOLDER` writes one, and so do "
                         "sweep, compare and serve")
    return below


def _is_result(path: Path) -> bool:
    from simulator.search.answer import is_folder_of_search
    from simulator.serving.kept_result import is_folder_of_service
    from simulator.study.recorded import is_folder_of_run

    return is_folder_of_run(path) or is_folder_of_service(path) or is_folder_of_search(path)


def _read(place: Path | str, settings: dict[str, str], ranks: str, seed: int) -> Recorded | KeptService | Answer:
    """What is in a folder, or what a scenario comes to."""
    from simulator.commands.request import progress_bar, recorded
    from simulator.search.answer import is_folder_of_search, read_answer
    from simulator.serving.kept_result import is_folder_of_service, read_service

    searched = not isinstance(place, str) and is_folder_of_search(place)
    if isinstance(place, str) or not (searched or is_folder_of_service(place)):
        return recorded(str(place), settings, ranks, seed)
    with progress_bar(f"reading {place}"):
        if settings or ranks != "roles" or seed:
            raise InputError("--set, --ranks and --seed are of a scenario, which is simulated; "
                             f"'{place}' is of a {'search' if searched else 'service'}")
        return read_answer(place) if searched else read_service(place)


def _facts(run: Recorded) -> list[str]:
    """How a run was simulated, line by line."""
    from simulator.commands.summary import identity

    lines = identity(run.about, run.memory.used_bytes, run.memory.usable_bytes)
    changes = (f"changed: {key} = {text}" for key, text in run.about["changes"].items())
    return [*lines, f"Braid {run.about['version']}", *changes]


def _page(found: Sequence[Recorded | KeptService | Answer], tell: Callable[[float], None]) -> Page:
    """The page that fits what there is: of one run, of two, of more; of services; of one search."""
    from simulator.observe.page.many_page import many_page
    from simulator.observe.page.run_page import run_page
    from simulator.observe.page.summary import Words
    from simulator.observe.recorded import Recorded
    from simulator.search.answer import Answer
    from simulator.search.page import search_page
    from simulator.search.why import why
    from simulator.serving.page import service_page
    from simulator.study.glossary import meaning_of_any

    words = Words(meaning_of_any, _facts)
    if isinstance(found[0], Answer) and len(found) == 1:
        one, whys = found[0], [f"{place + 1}: {why(found[0], place)}" for place in range(len(found[0].top))]
        return search_page(one.ask, one.points, one.front, one.top, one.refused, one.dropped, [*whys, *one.notes],
                           one.dollars_per_gpu_hour)  # fmt: skip
    if searched := [one for one in found if isinstance(one, Answer)]:
        raise InputError(f"a page is of one search alone: {searched[0].ask.model} on {searched[0].ask.machine} is one "
                         f"of {len(found)} results")
    runs = [one for one in found if isinstance(one, Recorded)]
    services = [one for one in found if not isinstance(one, Recorded | Answer)]
    if runs and services:
        raise InputError(f"{runs[0].name} is a run and {services[0].name} a service: a page is of the one or the other")
    if services:
        return service_page(services)
    if len(runs) <= 2:
        return run_page(dict(zip(["A", "B"] if len(runs) == 2 else [""], runs, strict=True)), words, tell)
    return many_page(runs, words, tell)


def _target(out: Path | None, results: Sequence[str], force: bool) -> Path:
    """Where the page is written; InputError if that is a folder, or a file that is no page of Braid's."""
    from simulator.observe.page.document import GENERATOR

    path = own_path(out) if out is not None else _usual(results)
    if path.is_dir():
        raise InputError(f"'{path}' is a folder: --out takes a file, as {path / PAGE}")
    if not path.parent.is_dir():
        raise InputError(f"cannot write '{path}': the folder '{path.parent}' does not exist")
    if path.exists() and not force:
        with path.open("rb") as file:
            if GENERATOR.encode() not in file.read(HEAD_BYTES):
                raise InputError(f"'{path}' is no page that `braid report` wrote: give another --out, or --force")
    return path


def _usual(results: Sequence[str]) -> Path:
    """Inside the folder of one result; here by the name of one scenario; else here."""
    if len(results) > 1:
        return Path(PAGE)
    folder = own_path(results[0])
    if folder.is_dir():
        return folder / PAGE
    name = results[0].rpartition("/")[2].replace(".py", "").replace(":", "-")
    return Path(f"{name}.html")
