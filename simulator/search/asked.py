"""What a user asked for, from words: numbers of GPUs, and axes from a file, --fix and --vary."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError, reason_of
from simulator.search.space import Axes


def gpus(text: str) -> tuple[int, int]:
    """"8..64" -> (8, 64), "16" -> (16, 16); InputError for anything else."""
    low, dots, high = (one.strip() for one in text.partition(".."))
    numbers = [int(one) for one in (low, high if dots else low) if one.isdecimal()]
    if len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1]:
        raise InputError(f"--gpus {text}: a number of GPUs, or FROM..TO, as 16 or 8..64")
    return numbers[0], numbers[1]


def axes(file: Path | None, fixed: Iterable[str], varied: Iterable[str]) -> Axes:
    """Axes that a user names, later ones instead of earlier ones: of a file, of --fix KEY=VALUE, of --vary
    KEY=A,B (KEY=A;B where a value has commas). InputError names what is wrong."""
    found: dict[str, tuple[str, ...]] = _of_file(file) if file is not None else {}
    for option, texts in (("--fix", fixed), ("--vary", varied)):
        for text in texts:
            key, equals, value = (one.strip() for one in text.partition("="))
            if not equals or not key:
                raise InputError(f"{option} {text}: write KEY=VALUE, as {option} tp=8")
            found[key] = (value,) if option == "--fix" else _several(value)
    return found


def _several(text: str) -> tuple[str, ...]:
    sign = ";" if ";" in text else ","
    return tuple(dict.fromkeys(one.strip() for one in text.split(sign)))


def _of_file(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read '{path}': {getattr(error, 'strerror', None) or reason_of(error)}") from None
    return {name: _values(path, name, value) for name, value in _flat(given)}


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
