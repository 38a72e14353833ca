"""What a user asked for, from words: numbers of GPUs, and axes from a file, --fix and --vary."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError, reason_of
from simulator.paths import did_you_mean
from simulator.search.space import KEYS, MESH, MODES, OWN, Axes

NAMES = (*OWN, *MESH, *KEYS)
LEFT_OUT = ("o_proj", "dense", "shared", "head", "embedding")  # may be "", as in a mesh without them
LEAST = dict.fromkeys(("cards", "tokens", *MESH), 1) | {"redundant": 0, "apart": 0, "drafts": 0}
"""Axes that are whole numbers, and the least that each can be."""
MOST = 1_000_000
FOUND = ("batch.phase", "batch.requests", "batch.context", "batch.prefix", "batch.chunk", "batch.prompt",
         "batch.acceptance", "knobs.layers", "layout.")  # fmt: skip
"""Settings of a step, or how they begin, that a search gives values to itself."""


def gpus(text: str) -> tuple[int, int]:
    """"8..64" -> (8, 64), "16" -> (16, 16); InputError for anything else."""
    low, dots, high = (one.strip() for one in text.partition(".."))
    least, most = (_whole(one) for one in (low, high if dots else low))
    if least is None or most is None or not 1 <= least <= most <= MOST:
        raise InputError(f"--gpus {text}: a number of GPUs, or FROM..TO, as 16 or 8..64, at most {MOST:,}")
    return least, most


def axes(file: Path | None, fixed: Iterable[str], varied: Iterable[str]) -> Axes:
    """Axes that a user names, later ones instead of earlier ones: of a file, of --fix KEY=VALUE, of --vary
    KEY=A,B (KEY=A;B where a value has commas). InputError names what is wrong."""
    found: dict[str, tuple[str, ...]] = _of_file(file) if file is not None else {}
    for option, texts in (("--fix", fixed), ("--vary", varied)):
        for text in texts:
            key, equals, value = (one.strip() for one in text.partition("="))
            if not equals or not key:
                raise InputError(f"{option} {text}: write KEY=VALUE, as {option} tp=8")
            values = (value,) if option == "--fix" else _several(value)
            _check(f"{option} {text}", key, values)
            found[key] = values
    return found


def _check(where: str, name: str, values: Iterable[str]) -> None:
    """InputError for a name that is no axis, and for values that it cannot have; `where` they were given."""
    if "." not in name and name not in NAMES:
        raise InputError(f"{where}: {name} is no axis of a search{did_you_mean(name, NAMES)}; axes are "
                         f"{', '.join(NAMES)}, or any setting of a step, as knobs.cores")
    if name.startswith(FOUND):
        raise InputError(f"{where}: {name} is no axis of a search, which gives it values itself"
                         + (f"; {name.removeprefix('layout.')} is one" if name.startswith("layout.") else ""))
    for value in values:
        if name == "mode" and value not in MODES:
            raise InputError(f"{where}: mode is {value!r}: {' or '.join(MODES)} would be right")
        if name not in LEAST or (name == "ep" and value == "all") or (name in LEFT_OUT and not value):
            continue
        number = _whole(value)
        if number is None or not LEAST[name] <= number <= MOST:
            most = f" and at most {MOST:,}" if number is not None and number > MOST else ""
            raise InputError(f"{where}: {name} is {value[:60]!r}: a whole number of at least {LEAST[name]}{most}"
                             f"{', or all,' if name == 'ep' else ''} would be right")


def _whole(text: str) -> int | None:
    """A number of ASCII digits, MOST + 1 where it has too many of them; None for anything else."""
    if not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if len(text) <= 18 else MOST + 1


def _several(text: str) -> tuple[str, ...]:
    sign = ";" if ";" in text else ","
    return tuple(dict.fromkeys(one.strip() for one in text.split(sign)))


def _of_file(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--space: cannot read '{path}': {getattr(error, 'strerror', None) or reason_of(error)}; axes "
                         "with their values are right, as tp = [4, 8]") from None
    found = {name: _values(path, name, value) for name, value in _flat(given)}
    for name, values in found.items():
        _check(str(path), name, values)
    return found


def _flat(given: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Keys of tables by their whole names: [knobs] cores = [...] is knobs.cores."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _values(path: Path, name: str, value: Any) -> tuple[str, ...]:
    several = value if isinstance(value, list) else [value]
    if not several or not all(isinstance(one, str | int | float) for one in several):
        raise InputError(f"{path}: {name} is {value!r}: a list of values is right, as {name} = [1, 2, 4]")
    return tuple(str(one).lower() if isinstance(one, bool) else str(one) for one in several)
