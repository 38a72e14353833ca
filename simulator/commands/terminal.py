"""What the commands print beside their tables."""

from __future__ import annotations

from collections.abc import Iterable

import rich_click as click


def warn_unread(scenario: str, keys: Iterable[str]) -> None:
    """Says on stderr which of the settings given change nothing."""
    for key in keys:
        click.echo(f"warning: {key} has no effect on {scenario}: nothing in this run reads it", err=True)
