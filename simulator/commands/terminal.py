"""Where the commands print tables and warnings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import rich_click as click

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 120


def console() -> Console:
    """As wide as the terminal, or PLAIN_WIDTH columns of plain text where stdout is none; prints text as it is."""
    from rich.console import Console

    made = Console(highlight=False, markup=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, width=PLAIN_WIDTH)


def warn_unread(scenario: str, keys: Iterable[str]) -> None:
    """Says on stderr which of the settings given change nothing."""
    for key in keys:
        click.echo(f"warning: {key} has no effect on {scenario}: nothing in this run reads it", err=True)
