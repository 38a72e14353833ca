"""Pieces of HTML. Whatever is text becomes markup in `escaped` and `data_script`, and nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import count
from typing import Any, NamedTuple, NewType

from simulator.observe.tables import Titled

Html = NewType("Html", str)
_number = count(1)


class Section(NamedTuple):
    """A part of a page. name: of its anchor; title: in the table of contents too; body: all below the title."""

    name: str
    title: str
    body: Html


class Chart(NamedTuple):
    """A chart that plotly draws. label: what it shows, for who cannot see it; traces, layout: as plotly has them, texts
    of users as `shown` gives them; height: in pixels."""

    label: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    height: int


def escaped(text: object) -> Html:
    """A text as markup that shows it."""
    return Html(escape(str(text), quote=True))


def shown(text: object) -> str:
    """A text as plotly shows it: it reads a little markup too."""
    return escape(str(text), quote=False)


def joined(parts: Iterable[Html]) -> Html:
    """One after the other."""
    return Html("".join(parts))


def element(tag: str, *children: Html, **attributes: object) -> Html:
    """An element; `class_` is the attribute class, `aria_label` is aria-label; None leaves an attribute out."""
    given = "".join(f' {name.strip("_").replace("_", "-")}="{escaped(value)}"'
                    for name, value in attributes.items() if value is not None)
    return Html(f"<{tag}{given}>{joined(children)}</{tag}>")


def paragraph(text: str, kind: str | None = None) -> Html:
    """A sentence or two; kind: its class."""
    return element("p", escaped(text), class_=kind) if text else Html("")


def data_script(value: object) -> Html:
    """A value as JSON that a script reads; no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json">{text}</script>')


def chart(one: Chart) -> Html:
    """The place where a chart is drawn, with what is drawn."""
    place = element("div", class_="plot", role="img", aria_label=one.label, style=f"height:{one.height}px")
    return element("div", place, data_script({"data": one.traces, "layout": one.layout}), class_="chart")


def table(titled: Titled, wide: bool = False) -> Html:
    """A table with its title as caption; a wide one is scrolled in a box of its own. Empty where it has no rows."""
    if not titled.rows:
        return Html("")
    styles = ["n" if heading[0] == ">" else "t" if heading[0] == "~" else None for heading in titled.headings]
    head = joined(element("th", escaped(heading[1:]), class_=style, scope="col")
                  for heading, style in zip(titled.headings, styles, strict=True))
    body = joined(_row(texts, styles, below=place > 0 and titled.texts[place - 1] is None)
                  for place, texts in enumerate(titled.texts) if texts is not None)
    label = titled.title or "table"
    made = element("table", element("thead", element("tr", head)), element("tbody", body), aria_label=label)
    box = element("div", made, class_="scroll wide" if wide else "scroll", tabindex="0", role="region",
                  aria_label=f"{label}, to be scrolled")
    return element("figure", _caption(titled), box)


def _caption(titled: Titled) -> Html:
    if not titled.title + titled.caption:
        return Html("")
    more = element("span", escaped(titled.caption)) if titled.caption else Html("")
    return element("figcaption", escaped(titled.title), Html(" "), more)


def _row(texts: Sequence[str], styles: Sequence[str | None], below: bool) -> Html:
    cell_texts = [_breakable(text) if style is None else escaped(text)
                  for text, style in zip(texts, styles, strict=True)]
    cells = [element("th", cell_texts[0], class_=styles[0], scope="row")]
    cells += [element("td", text, class_=style) for text, style in zip(cell_texts[1:], styles[1:], strict=True)]
    return element("tr", *cells, class_="below" if below else None)


def _breakable(name: str) -> Html:
    """A name that may be broken behind dots, underscores and colons."""
    return Html("<wbr>".join(map(escaped, re.split(r"(?<=[._:/])", name))))


def folded(title: str, *parts: Html) -> Html:
    """What is shown when its title is opened."""
    return element("details", element("summary", escaped(title)), *parts)


def beside(*parts: Html) -> Html:
    """Parts beside each other where there is room, else below."""
    return element("div", *parts, class_="beside")


def fresh_id(name: str) -> str:
    """An id that no other element of this process has."""
    return f"{name}-{next(_number)}"
