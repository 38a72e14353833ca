"""Which name is meant, and where the library's machines, models, programs and scenarios lie: in a wheel or a checkout.

A user's own file is given by its path and is treated the same way.
"""

from __future__ import annotations

import difflib
import os
import sysconfig
import traceback
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import FrameType

from simulator.errors import InputError

_SUFFIX = {"topologies": ".toml", "topologies/parts": ".toml", "workloads": ".py", "workloads/models": ".toml",
           "scenarios": ".py", "services": ".py"}
_PACKAGE = Path(__file__).resolve().parent


class NotFound(InputError, FileNotFoundError):  # noqa: N818
    """No such file or name; the text lists the names that exist."""


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """" (did you mean 'x'?)" for the closest right name, or "" where none is close."""
    close = difflib.get_close_matches(wrong, list(right), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def nearest(wrong: str, right: Iterable[str], most: int = 5) -> list[str]:
    """The right names that are most like a wrong one, as a whole or in a part between colons, the nearest first."""
    def likeness(name: str) -> float:
        return max(difflib.SequenceMatcher(None, wrong, part).ratio() for part in (name, *name.split(":")))

    return sorted(right, key=likeness, reverse=True)[:most]


def matches(pattern: str | None, name: str) -> bool:
    """Whether a name is chosen: None chooses all, "flows" what contains it, "cold_*" what it describes as a whole."""
    if pattern is None:
        return True
    return fnmatchcase(name, pattern) if any(sign in pattern for sign in "*?[") else pattern in name


def choose(pattern: str | None, names: Iterable[str], what: str) -> list[str]:
    """The names that match, in their order; InputError listing all if none does."""
    known = list(names)
    chosen = [name for name in known if matches(pattern, name)]
    if chosen or pattern is None:
        return chosen
    listed = ", ".join(known) or "none"
    raise InputError(f"no {what} matches '{pattern}'{did_you_mean(pattern, known)}; there are: {listed}")


def _roots() -> tuple[Path, ...]:
    """Folders that may hold the library: inside an installed wheel first, then the checkout."""
    return (_PACKAGE / "_data", _PACKAGE.parent)


def folder(kind: str) -> Path:
    """The library's folder of one kind; ValueError for a kind that does not exist, NotFound if it is not installed."""
    if kind not in _SUFFIX:
        raise ValueError(f"kind is '{kind}': one of {', '.join(_SUFFIX)}{did_you_mean(kind, _SUFFIX)}")
    for root in _roots():
        if (root / kind).is_dir():
            return root / kind
    raise NotFound(f"{kind}: no such folder in {' or '.join(map(str, _roots()))}; is the installation complete?")


def names(kind: str) -> list[str]:
    """Sorted names of the library's files of a kind ("topologies", "topologies/parts", "workloads", ...)."""
    files = folder(kind).glob(f"*{_SUFFIX[kind]}")
    return sorted(path.stem for path in files if path.is_file() and not path.name.startswith(("_", ".")))


def own_path(written: str | Path) -> Path:
    """The path of a user's own file or folder: "~" is where users have theirs, or itself: no such user."""
    return Path(os.path.expanduser(written))


def find(kind: str, name: str | Path) -> Path:
    """The file behind a library name ("atlas_a3") or a path to the user's own ("./mine.toml").

    Whatever has a folder or the kind's suffix is a path. NotFound says what is wrong, the closest name and all names.
    """
    text, suffix = str(name), _SUFFIX.get(kind, "")
    library = names(kind)
    if text in library:
        return folder(kind) / f"{text}{suffix}"
    path = own_path(text)
    if path.suffix == suffix or path.parent != Path("."):
        return _own_file(kind, path, library)
    beside = Path(f"{text}{suffix}")
    hint = f" (did you mean './{beside}'?)" if text and beside.is_file() else did_you_mean(text, library)
    raise NotFound(f"{kind}: no '{text}'{hint}; there are: {', '.join(library) or 'none'}"
                   f" (or give the path of a {suffix} file)")


def _own_file(kind: str, path: Path, library: list[str]) -> Path:
    """The path of a user's own file, or of a library file named with its suffix."""
    suffix = _SUFFIX[kind]
    if path.is_file():
        if path.suffix != suffix:
            raise NotFound(f"{kind}: '{path}' is not a {suffix} file")
        return path
    if path.parent == Path(".") and path.stem in library:
        return folder(kind) / path.name
    what = "is a folder, not a file" if path.is_dir() else "does not exist"
    hint = did_you_mean(path.stem, library)
    raise NotFound(f"{kind}: '{path}' {what}{hint}; the library has: {', '.join(library) or 'none'}")


def own_location(error: BaseException) -> str:
    """FILE:LINE of the user's own file that led to an error, the innermost; "" if none did."""
    cause: BaseException | None = error
    while cause is not None:
        place = innermost_own(reversed(list(traceback.walk_tb(cause.__traceback__))))
        if place:
            return place
        cause = cause.__cause__
    return ""


def located(error: BaseException, text: str = "") -> str:
    """What is wrong, after the line of the user's own file that led to it, if there is one. text: else the error's."""
    place, what = own_location(error), text or str(error)
    return f"{place}: {what}" if place and place not in what else what


def innermost_own(frames: Iterable[tuple[FrameType, int]]) -> str:
    """FILE:LINE of the first of these frames and lines that is of a user's own file; "" if none is."""
    lines = ((frame.f_code.co_filename, line) for frame, line in frames if not _is_compiled(frame))
    return next((f"{file}:{line}" for file, line in lines if _is_own(file)), "")


def _is_compiled(frame: FrameType) -> bool:
    """Whether it is of one of Braid's compiled modules, whose file names are relative to where they were compiled."""
    return str(frame.f_globals.get("__name__", "")).startswith(f"{_PACKAGE.name}.")


@cache
def _is_own(file: str) -> bool:
    """Whether a source file is neither Braid's, nor its library's, nor Python's, nor of an installed package."""
    return not file.startswith("<") and not any(Path(file).resolve().is_relative_to(folder) for folder in _not_own())


@cache
def _not_own() -> tuple[Path, ...]:
    """Folders of code that users have not written."""
    library = [root / kind for root in _roots() for kind in ("workloads", "scenarios", "services")]
    python = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    return tuple(folder.resolve() for folder in (_PACKAGE, *library, *python))


def installed_version() -> str:
    """Of Braid, where it is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("braid")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"
