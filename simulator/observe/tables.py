"""Tables as a person reads them, in a terminal or in a file: a name is never cut.

A terminal is as wide as it is; anything else is COLUMNS wide, or PLAIN_WIDTH, and wider where names need it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from simulator.units import alike

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
    from rich.segment import Segment
    from rich.table import Table

PLAIN_WIDTH = 100
TEXT_WIDTH = 36  # of a column of text, where names take up the rest of the line
ENDLESS = 1_000_000  # columns
BETWEEN, BESIDE = 3, 4  # columns between columns, and between tables side by side


def console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """Where text goes, as it is: no markup, no highlighting."""
    from rich.console import Console

    made = Console(file=file, width=width, highlight=False, markup=False)
    if width is None and not made.is_terminal and made._environ.get("COLUMNS", "") in ("", "0"):
        made.width = PLAIN_WIDTH
    return made


def show(terminal: Console, *parts: RenderableType) -> None:
    """Prints them one below the other; what needs more columns for whole names gets them, but not on a terminal."""
    usual = terminal.width
    for part in parts:
        if not terminal.is_terminal:
            terminal.width = max(usual, _least_width(terminal, part))
        terminal.print(_WithoutBlanks(part))
        terminal.width = usual


def _least_width(terminal: Console, part: RenderableType) -> int:
    """Columns that a table needs, or the longest word of a text (which may be a path)."""
    from rich.measure import Measurement

    if isinstance(part, Titled | SideBySide):
        return part.least_width
    return Measurement.get(terminal, terminal.options.update(max_width=ENDLESS), part).minimum


@dataclass
class _WithoutBlanks:
    """What is printed, without blanks at the ends of its lines."""

    part: RenderableType

    def __rich_console__(self, terminal: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for line in terminal.render_lines(self.part, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
            yield from line
            yield Segment.line()


def broken(name: str, width: int) -> str:
    """A name on lines of at most this width: broken behind dots, underscores, colons and blanks, and nowhere else."""
    lines = [""]
    for piece in _pieces(name):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _fitting(cell: str, how: str, width: int | None) -> str:
    """A cell in a column that reads so, broken where it is too wide for it (None: it is not)."""
    if width is None or how == ">":
        return cell
    return broken(cell, width) if how == "<" else re.sub(r"\S+", lambda word: broken(word[0], width), cell)


def _pieces(name: str) -> list[str]:
    return re.split(r"(?<=[._: ])", name)


Cell = str | float | None  # numbers, and None for one that is not there, are written as `alike` writes a column


@dataclass
class Titled:
    """A table below its title, an empty line after it. Column headings begin with how a column reads:

    "<" names, broken in themselves only on a terminal without room; ">" numbers, never broken, to the right; "~" text,
    which is broken between words. Numbers that are no text yet are of one quantity and get as many decimals each.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell] | None]  # None: a line
    caption: str = ""

    def __post_init__(self) -> None:
        cells = [row for row in self.rows if row is not None]
        columns = [_texts(column) for column in zip(*cells, strict=True)]
        texts = iter(zip(*columns, strict=True))
        self._rows = [None if row is None else next(texts) for row in self.rows]

    @property
    def texts(self) -> Sequence[Sequence[str] | None]:
        """The rows as they read; None: a line."""
        return self._rows

    @property
    def least_width(self) -> int:
        """Columns that it needs so that no name is broken, and texts not into single words."""
        return self._width(lambda text: min(text, TEXT_WIDTH))

    def _columns(self) -> list[tuple[str, ...]]:
        """The texts of each column below its heading, line by line."""
        columns = zip(*[self.headings, *(row for row in self._rows if row is not None)], strict=True)
        return [(head, *(line for cell in cells for line in cell.split("\n"))) for head, *cells in columns]

    def _width(self, of_text: Callable[[int], int]) -> int:
        columns = self._columns()
        widths = [(head[0], max(map(len, (head[1:], *cells)))) for head, *cells in columns]
        return sum(of_text(width) if how == "~" else width for how, width in widths) + BETWEEN * (len(widths) - 1)

    def _widths(self, room: int) -> list[int]:
        """Of the columns where there is no room for whole names: the widest gives way, down to its longest piece."""
        columns = self._columns()
        least = [max(len(piece) for cell in (head[1:], *cells)
                     for piece in ([cell] if head[0] == ">" and cell != head[1:] else _pieces(cell)))
                 for head, *cells in columns]
        widths = [max(map(len, (head[1:], *cells))) for head, *cells in columns]
        for floor in (least, [1] * len(widths)):  # in so little room that even pieces are broken
            while sum(widths) + BETWEEN * (len(widths) - 1) > room:
                wider = [place for place, width in enumerate(widths) if width > floor[place]]
                if not wider:
                    break
                widths[max(wider, key=widths.__getitem__)] -= 1
        return widths

    def _table(self, room: int) -> Table:
        """Without its title."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        whole = room >= self.least_width
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="")
        widths = [None] * len(self.headings) if whole else self._widths(room)
        for heading, width in zip(self.headings, widths, strict=True):
            text = heading[1:] if width is None else broken(heading[1:], width)
            made.add_column(Text(text), justify="right" if heading[0] == ">" else "left", width=width,
                            no_wrap=whole and heading[0] != "~", overflow="fold")
        for row in self._rows:
            if row is None:
                made.add_section()
            else:
                made.add_row(*(Text(_fitting(cell, heading[0], width))
                               for heading, cell, width in zip(self.headings, row, widths, strict=True)))
        return made

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        widest = max(self._width(lambda text: text), len(self.title + self.caption) + len(" ()"))
        return Measurement(self.least_width, widest).clamp(1, options.max_width)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        if self.title:
            yield Text(self.title, "bold").append(f" ({self.caption})" if self.caption else "", "not bold")
        yield self._table(options.max_width)
        yield ""


@dataclass
class SideBySide:
    """Two tables beside each other, or below where there is no room."""

    left: Titled
    right: Titled

    @property
    def least_width(self) -> int:
        """Columns that both need."""
        return self.left.least_width + BESIDE + self.right.least_width

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.table import Table

        if options.max_width < self.least_width:
            yield self.left
            yield self.right
            return
        beside = Table.grid(padding=(0, BESIDE))
        beside.add_row(self.left, self.right)
        yield beside


def number(value: float) -> str:
    """Four digits, or all of those before the point: 0.01234, 12.35, 3128, 48,210."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _texts(column: Sequence[Cell]) -> list[str]:
    """The cells of a column as text."""
    numbers = iter(alike([cell for cell in column if not isinstance(cell, str)]))
    return [cell if isinstance(cell, str) else next(numbers) for cell in column]


def time_unit(time_ps: float) -> tuple[str, int]:
    """The unit that fits times of this length, and its picoseconds: ("ms", 10**9)."""
    return ("ms", 10**9) if time_ps >= 10**9 else ("us", 10**6)


def percent(error: float) -> str:
    """A relative error with its sign, none where it rounds to nothing: "+2.3%", "0.0%"."""
    return f"{error:+.1%}".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table of Markdown with aligned columns; cells are plain text in one line."""
    cells = [[_cell(text) for text in row] for row in (head, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    padded = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in cells]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def plain_number(value: object) -> str:
    """Four significant digits for numbers, the text itself for text, "-" for nothing."""
    if value is None:
        return "-"
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)
