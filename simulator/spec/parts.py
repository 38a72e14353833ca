"""Files that a machine is put together from: parts (chip, node, network card, software), or a machine that it changes.

`extends` names one file or several: machines of the library, parts in `topologies/parts`, or .toml files by path from
the file's own folder. A part needs not be a whole machine. What several give must agree; a machine's own file wins.
Levels of the fabric are put together by name, in the order of the parts: inside out. Other lists are taken whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simulator import paths
from simulator.paths import did_you_mean
from simulator.spec.typed_toml import SpecError, line, read

PARTS = "topologies/parts"
_WANTED = "the name of a machine or part, the path of a .toml file, or a list of them"
Tables = dict[str, Any]


class _Part(NamedTuple):
    """A file that another one extends, and its tables with those of all that it extends itself."""

    file: Path
    tables: Tables


def whole_tables(path: Path, above: tuple[Path, ...] = ()) -> Tables:
    """A file's tables over those of what it `extends`; tables of quantities are replaced whole.

    above: the files that lead to this one. SpecError names the file, and what of it cannot be extended, or the numbers
    that two of its parts give differently and it does not give itself.
    """
    tables, here = dict(read(path)), (*above, path.resolve())
    names = _names(path, tables.pop("extends", []))
    files = [_found(path, name) for name in names]
    for file in files:
        if file.resolve() in here:
            raise SpecError([f"{path}: extends: leads back to {file}"])
    parts = [_Part(file, whole_tables(file, here)) for file in files]
    disagreeing = [text for key, one, other in _clashes(parts) if not _has(tables, key)
                   for text in _said(path, key, one, other)]  # fmt: skip
    if disagreeing:
        raise SpecError(disagreeing)
    both: Tables = {}
    for part in parts:  # of equal numbers the source that is named first stays
        both = _over(both, _over(part.tables, both))
    if any("fabric" in part.tables for part in parts):
        both["fabric"] = _levels(parts)
    return _over(both, tables)


def files_of(path: Path) -> list[Path]:
    """A file and all those that it is put together from."""
    return [path, *(file for name in part_names(path) for file in files_of(_found(path, name)))]


def part_names(path: Path) -> list[str]:
    """What a file `extends`, as it is written there."""
    return _names(path, read(path).get("extends", []))


def _names(path: Path, given: Any) -> list[str]:
    names = given if isinstance(given, list) else [given]
    for name in names:
        if not isinstance(name, str):
            raise SpecError([line(str(path), "extends", name, _WANTED)])
    if len(set(names)) < len(names):
        raise SpecError([line(str(path), "extends", ", ".join(names), "each of them once")])
    return names


def _found(path: Path, name: str) -> Path:
    """The file that `path` calls by this name: its neighbour, a machine, or a part."""
    neighbour = path.parent / name
    if neighbour.is_file():
        return neighbour
    machines, parts = paths.names("topologies"), paths.names(PARTS)
    if name in parts and name not in machines:
        return paths.find(PARTS, name)
    try:
        return paths.find("topologies", name)
    except paths.NotFound as error:
        if Path(name).suffix == ".toml" and name not in (*parts, *machines):
            raise SpecError([f"{path}: extends: {error}"]) from None
        hint = did_you_mean(name, (*machines, *parts))
        there = f"machines: {', '.join(machines) or 'none'}; parts: {', '.join(parts) or 'none'}"
        raise SpecError([f"{path}: extends: no machine or part '{name}'{hint}; {there}"]) from None


def _clashes(parts: list[_Part]) -> Iterator[tuple[tuple[str, ...], _Part, _Part]]:
    """The keys that two parts give differently, with the first part that gives each."""
    first: dict[tuple[str, ...], _Part] = {}  # who gives a value
    above: dict[tuple[str, ...], _Part] = {}  # who gives a table
    for part in parts:
        for key, value in _leaves(part.tables):
            tables = [key[:end] for end in range(1, len(key))]
            one = first.setdefault(key, part)
            if key in above:
                yield key, above[key], part
            elif (inside := next((table for table in tables if table in first), None)) is not None:
                yield inside, first[inside], part
            elif one is not part and not _same(_at(one.tables, key), value):
                yield key, one, part
            for table in tables:
                above.setdefault(table, part)


def _leaves(tables: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value with its key; numbers and lists are values, levels of the fabric go by name."""
    for name, value in tables.items():
        if not above and name == "fabric" and _by_name(value):
            yield from _leaves(_by_name(value), ("fabric",))
        elif _is_table(value):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and "unit" not in value


def _by_name(levels: Any) -> dict[str, Tables]:
    """The levels of a fabric by name; none where they are not a list of tables that have one."""
    named = isinstance(levels, list) and all(isinstance(one, dict) and isinstance(one.get("name"), str)
                                             for one in levels)  # fmt: skip
    return {one["name"]: one for one in levels} if named else {}


def _levels(parts: list[_Part]) -> Any:
    """The fabric of all parts: the levels of each outside those of the parts before it."""
    both: dict[str, Tables] = {}
    for part in parts:
        levels = part.tables.get("fabric", [])
        if not _by_name(levels) and levels:
            return levels  # what is wrong with it is said where the machine is checked
        for name, level in _by_name(levels).items():
            both[name] = _over(level, both.get(name, {}))
    return list(both.values())


def _at(tables: Mapping[str, Any], key: tuple[str, ...]) -> Any:
    for step in key:
        named = _by_name(tables[step]) if step == "fabric" else {}
        tables = named or tables[step]
    return tables


def _has(tables: Mapping[str, Any], key: tuple[str, ...]) -> bool:
    """Whether a file gives this value itself, or a list or number in whose place it would be."""
    inside: Any = tables
    for step in key:
        if not _is_table(inside):
            return True
        if step not in inside:
            return False
        inside = inside[step]
    return True


def _same(one: Any, other: Any) -> bool:
    """Whether two values say the same; of numbers, whatever their sources."""
    if isinstance(one, dict) and isinstance(other, dict) and "unit" in one and "unit" in other:
        return (one.get("value"), one["unit"]) == (other.get("value"), other["unit"])
    return bool(one == other)


def _said(path: Path, key: tuple[str, ...], one: _Part, other: _Part) -> Iterator[str]:
    """What two parts disagree on, in words."""
    first, second = (f"{part.file} gives {_shown(_at(part.tables, key))}" for part in (one, other))
    yield f"{path}: {'.'.join(key)}: {first}, {second}: write it in this file, or leave one of them out"


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "unit" in value:
        return f"{value.get('value')} {value['unit']}".removesuffix(" 1")
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "a table" if isinstance(value, dict) else repr(value)


def _over(base: Tables, over: Tables) -> Tables:
    """The tables of one file over those of another."""
    both = dict(base)
    for key, value in over.items():
        inner = _is_table(value) and _is_table(both.get(key))
        both[key] = _over(both[key], value) if inner else value
    return both
