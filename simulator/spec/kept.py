"""Files that were read are kept: what is made of them is made once, and again when one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Made = TypeVar("Made")
_Stamp = tuple[int, int]
_KEPT: dict[tuple[str, Path], tuple[dict[Path, _Stamp], Any]] = {}


def kept(what: str, path: Path, files: Callable[[], Sequence[Path]], make: Callable[[], Made]) -> Made:
    """What `make` gives, or gave before, if no file that it came from has changed since.

    what, path: which thing it is. files: those that it comes from, asked once it is made. Never to be changed in place.
    """
    here = Path.cwd() / path
    known = _KEPT.get((what, here))
    if known is not None and all(_stamp(file) == stamp for file, stamp in known[0].items()):
        found: Made = known[1]
        return found
    made = make()
    _KEPT[what, here] = {Path.cwd() / file: _stamp(file) for file in files()}, made
    return made


def _stamp(file: Path) -> _Stamp:
    """When it was changed last (ns), and its size (B); of a file that is gone, none that any file has."""
    try:
        status = file.stat()
    except OSError:
        return -1, -1
    return status.st_mtime_ns, status.st_size
