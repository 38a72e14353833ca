"""Software generations of kernels: a machine's own, and those that are another one with longer latencies.

The tables of measured kernels are those of one release. An older release of the same library moves bytes as fast, but
its kernels begin and end more slowly: every floor, every serial step along K and every step per row or group takes
`latency_factor` times as long, and so does the start-up of the library's own collectives. Kernels of other libraries
that have not changed since, and those that were measured in the older release itself, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import Field

from simulator.spec.typed_toml import TomlTable
from simulator.units import Quantity, Ratio

Kernel = TypeVar("Kernel", bound=TomlTable)
LATENCIES = ("floor", "serial_per_k", "per_row", "per_group", "per_slot", "startup")


class DerivedGeneration(TomlTable):
    """A generation whose kernels are those of `base`, but for their latencies.

    collectives: engines of the library, which start more slowly too. unchanged: families that stay as they are.
    """

    base: str
    latency_factor: Ratio
    collectives: list[str] = Field(default_factory=list)
    unchanged: list[str] = Field(default_factory=list)


def families_of(
    name: str, kernels: Mapping[str, dict[str, Kernel]], derived: Mapping[str, DerivedGeneration]
) -> dict[str, Kernel]:
    """The kernel families of a generation by name; KeyError if there is none."""
    if name in kernels:
        return kernels[name]
    older = derived[name]
    factor, kept = older.latency_factor.si, older.unchanged
    return {family: kernel if family in kept else _slower(kernel, factor)
            for family, kernel in kernels[older.base].items()}  # fmt: skip


def engines_of(engines: Mapping[str, Kernel], older: DerivedGeneration) -> dict[str, Kernel]:
    """What drives collectives in a derived generation."""
    own, factor = older.collectives, older.latency_factor.si
    return {name: _slower(engine, factor) if name in own else engine for name, engine in engines.items()}


def base_of(name: str, derived: Mapping[str, DerivedGeneration]) -> str:
    """The generation whose families the machine's file lists."""
    return derived[name].base if name in derived else name


def _slower(kernel: Kernel, factor: float) -> Kernel:
    given = {field: getattr(kernel, field, None) for field in LATENCIES}
    return kernel.model_copy(update={field: _times(one, factor) for field, one in given.items() if one is not None})


def _times(quantity: Quantity, factor: float) -> Quantity:
    return Quantity(**{**quantity.model_dump(), "value": quantity.value * factor})
