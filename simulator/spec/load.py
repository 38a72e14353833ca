"""A machine from its file, with the numbers that a command line replaces; its parts must agree with each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator import paths
from simulator.spec.agreement import disagreements
from simulator.spec.links import LINK_SETTINGS
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import SpecError, line, overridden, read, validate
from simulator.units import Quantity


def load_machine(name: str | Path) -> MachineSpec:
    """A machine of the library by name ("atlas_a3"), or a user's own file by path.

    Raises:
        NotFound: no such name or file; lists the names.
        SpecError: everything that is wrong with the file.
    """
    path = paths.find("topologies", name)
    return _checked(_tables(path), str(path))


def _tables(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file's tables over those of the machine that it `extends`; tables of quantities are replaced whole."""
    tables = read(path)
    if "extends" not in tables:
        return tables
    base, here = tables.pop("extends"), (*above, path.resolve())
    if not isinstance(base, str):
        raise SpecError([line(str(path), "extends", base, "the name of a machine, or the path of a .toml file")])
    neighbour = path.parent / base
    try:
        found = neighbour if neighbour.is_file() else paths.find("topologies", base)
    except paths.NotFound as error:
        raise SpecError([f"{path}: extends: {error}"]) from None
    if found.resolve() in here:
        raise SpecError([f"{path}: extends: leads back to {found}"])
    return _merged(_tables(found, here), tables)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in over.items():
        inner = isinstance(value, dict) and isinstance(both.get(key), dict) and "unit" not in value
        both[key] = _merged(both[key], value) if inner else value
    return both


def override(spec: MachineSpec, changes: Mapping[str, str | Quantity]) -> MachineSpec:
    """The machine with some numbers replaced: {"chip.hbm.peak": "3.2 TB/s", "fabric.cut": "die 3 - node 0"}.

    Text becomes a Quantity of kind "assumed" from the "command line". Keys are those of `quantities`, and "fabric.cut"
    and "fabric.slow" for links that are missing or slower (see `links`).
    SpecError says for each wrong key which ones are right at that place, and for each wrong value what is wanted.
    """
    if not changes:
        return spec
    links = {key.partition(".")[2]: str(changes[key]) for key in LINK_SETTINGS if key in changes}
    numbers = {key: given for key, given in changes.items() if key not in LINK_SETTINGS}
    return overridden(spec.model_copy(update=links), numbers, _checked)


def _checked(tables: dict[str, Any], label: str) -> MachineSpec:
    """A machine whose parts also agree with each other."""
    return validate(MachineSpec, tables, label, disagreements)
