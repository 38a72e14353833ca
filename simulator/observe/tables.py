"""Tables as a person reads them, in a terminal or in a file: a name is never cut.

A terminal is as wide as it is; anything else is COLUMNS wide, or PLAIN_WIDTH, and wider where names need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
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
        terminal.print(part)
        terminal.width = usual


def _least_width(terminal: Console, part: RenderableType) -> int:
    """Columns that a table needs, or the longest word of a text (which may be a path)."""
    from rich.measure import Measurement

    if isinstance(part, Titled | SideBySide):
        return part.least_width
    return Measurement.get(terminal, terminal.options.update(max_width=ENDLESS), part).minimum


@dataclass
class Titled:
    """A table below its title, an empty line after it. Column headings begin with how a column reads:

    "<" names, never broken; ">" numbers, likewise and to the right; "~" text, which is broken between words.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str] | None]  # None: a line
    caption: str = ""

    @property
    def least_width(self) -> int:
        """Columns that it needs so that no name is broken, and texts not into single words."""
        return self._width(lambda text: min(text, TEXT_WIDTH))

    def _width(self, of_text: Callable[[int], int]) -> int:
        columns = zip(*[self.headings, *(row for row in self.rows if row is not None)], strict=True)
        widths = [(head[0], max(len(line) for cell in (head[1:], *cells) for line in cell.split("\n")))
                  for head, *cells in columns]
        return sum(of_text(width) if how == "~" else width for how, width in widths) + BETWEEN * (len(widths) - 1)

    def _table(self, whole: bool) -> Table:
        """Without its title; where there is no room for whole names and numbers, they are broken."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="")
        for heading in self.headings:
            made.add_column(Text(heading[1:]), justify="right" if heading[0] == ">" else "left",
                            no_wrap=whole and heading[0] != "~", overflow="fold")
        for row in self.rows:
            if row is None:
                made.add_section()
            else:
                made.add_row(*map(Text, row))
        return made

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        widest = max(self._width(lambda text: text), len(self.title + self.caption) + len(" ()"))
        return Measurement(self.least_width, widest).clamp(1, options.max_width)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        if self.title:
            yield Text(self.title, "bold").append(f" ({self.caption})" if self.caption else "", "not bold")
        yield self._table(options.max_width >= self.least_width)
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
