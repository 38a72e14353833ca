"""Where the commands print tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 120


def console() -> Console:
    """As wide as the terminal, or PLAIN_WIDTH columns of plain text where stdout is none; prints text as it is."""
    from rich.console import Console

    made = Console(highlight=False, markup=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, width=PLAIN_WIDTH)
