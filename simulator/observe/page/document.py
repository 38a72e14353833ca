"""A page as one file: style, scripts and all data inside, nothing read from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from string import Template
from typing import NamedTuple

from simulator.observe.page.bars import compressed
from simulator.observe.page.html import Html, Section, element, escaped, joined

GENERATOR = "Braid report"
"""What the head of every page names; a file without it is not overwritten."""
Tell = Callable[[float], None]
"""Is told the share of the work that is done."""
SCRIPTS = ("bars.js", "draw.js", "timeline.js", "charts.js")


class Page(NamedTuple):
    """What a page shows. title: of the browser's tab too; head: below the title; version: of Braid."""

    title: str
    head: Html
    sections: Sequence[Section]
    version: str


def document(page: Page, plotly: str) -> str:
    """The text of the file. plotly: the script that draws charts, which a page carries compressed and runs last."""
    contents = joined(element("a", escaped(section.title), href=f"#{section.name}") for section in page.sections)
    return Template(_own("page.html")).substitute(
        generator=f"{GENERATOR} {escaped(page.version)}", title=escaped(page.title), head=page.head, contents=contents,
        sections=joined(map(_section, page.sections)), style=_own("page.css"), plotly=compressed(plotly.encode()),
        script="\n".join(map(_own, SCRIPTS)), version=escaped(page.version))


def _section(section: Section) -> Html:
    title = element("h2", escaped(section.title), id=f"{section.name}-title")
    return element("section", title, section.body, id=section.name, aria_labelledby=f"{section.name}-title")


def _own(name: str) -> str:
    """A file of this package."""
    return (files(__package__) / name).read_text(encoding="utf-8")
