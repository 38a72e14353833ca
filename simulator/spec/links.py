"""Links that a machine lacks, or whose rate is lower, in the words of a trace.

    cut  = "die 3 - node 0, die 5 to node 0"        both directions of one link, one direction of another
    slow = "die 3 - node 0: 0.5"                    half of its rate is left
"""

from __future__ import annotations

from typing import NamedTuple

LINK_SETTINGS = ("fabric.cut", "fabric.slow")
_RIGHT = '"A - B" for both directions of a link or "A to B" for one, as in "die 3 - node 0"; several with commas'


class LinkChange(NamedTuple):
    """A link as it was written, its directed edges, and the share of its rate that is left: 0 where it is cut."""

    text: str
    edges: tuple[tuple[str, str], ...]
    share: float


def cut_links(text: str) -> tuple[LinkChange, ...]:
    """The links of a `fabric.cut`; ValueError says what is right."""
    return tuple(_link(part, 0.0) for part in _parts(text))


def slow_links(text: str) -> tuple[LinkChange, ...]:
    """The links of a `fabric.slow`; ValueError says what is right."""
    return tuple(_slow(part) for part in _parts(text))


def _slow(part: str) -> LinkChange:
    link, _, share = part.rpartition(":")
    try:
        left = float(share)
    except ValueError:
        left = 0.0
    if not link or not 0 < left <= 1:
        right = f'{_RIGHT}, each with ": " and the share of its rate that is left, more than 0 and at most 1'
        raise ValueError(f"'{part}': write {right}")
    return _link(link.strip(), left)


def _link(part: str, share: float) -> LinkChange:
    for between in (" - ", " to "):
        one, found, other = (end.strip() for end in part.partition(between))
        if one and found and other:
            return LinkChange(part, ((one, other), (other, one)) if found == "-" else ((one, other),), share)
    raise ValueError(f"'{part}': write {_RIGHT}")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []
