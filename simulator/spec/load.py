"""A machine from its file, with the numbers that a command line replaces.

Its parts must agree with each other, which types alone cannot see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from simulator import paths
from simulator.paths import did_you_mean
from simulator.spec.kept import kept
from simulator.spec.levels import LINK_SETTINGS, cut_links, disagreeing_levels, slow_links
from simulator.spec.machine import BandwidthPoint, CollectiveSpec, MachineSpec
from simulator.spec.parts import files_of, whole_tables
from simulator.spec.protocols import ALGORITHMS_OF
from simulator.spec.typed_toml import overridden, validate
from simulator.units import Quantity


def load_machine(name: str | Path) -> MachineSpec:
    """A machine of the library by name ("atlas_a3"), or a user's own file by path.

    NotFound lists the names that there are; SpecError says everything that is wrong with the file.
    """
    path = paths.find("topologies", name)
    return kept("machine", path, lambda: files_of(path), lambda: _checked(whole_tables(path), str(path)))


def override(spec: MachineSpec, changes: Mapping[str, str | Quantity]) -> MachineSpec:
    """The machine with some numbers replaced: {"chip.hbm.peak": "3.2 TB/s", "fabric.cut": "die 3 - node 0"}.

    Text becomes a Quantity of kind "assumed" from the "command line". Keys are those of `quantities`, and "fabric.cut"
    and "fabric.slow" for links that are missing or slower (see `levels`).
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


def disagreements(spec: MachineSpec) -> Iterator[tuple[str, Any, str]]:
    """(key, what is there, what is right) wherever two parts of a machine contradict each other."""
    yield from _pools(spec)
    yield from _cuts(spec)
    yield from _untiled(spec)
    yield from _generations(spec)
    levels = [level.name for level in spec.fabric]
    for name, collective in spec.collectives.items():
        if collective.within is not None and collective.within not in levels:
            hint = did_you_mean(collective.within, levels)
            yield f"collectives.{name}.within", collective.within, f"the fabric has {', '.join(levels)}{hint}"
        eager, graph = collective.startup_eager, collective.startup
        if eager is not None and graph is not None and eager.si < graph.si:
            right = f"a launch from the host takes at least as long as one in a graph, whose startup is {graph}"
            yield f"collectives.{name}.startup_eager", eager, right
        for kind, points in collective.ladder:
            yield from _rising(f"collectives.{name}.ladder.{kind}", points or [])
        yield from _protocols(name, collective)
    yield from disagreeing_levels(spec.fabric)
    for key, text, parsed in (("cut", spec.cut, cut_links), ("slow", spec.slow, slow_links)):
        try:
            parsed(text)
        except ValueError as error:
            yield f"fabric.{key}", text, str(error)


def _rising(key: str, points: list[BandwidthPoint]) -> Iterator[tuple[str, Any, str]]:
    """Points of a curve that say no size, or not a larger one than the point before."""
    sizes = [point.bytes_per_peer for point in points if point.bytes_per_peer]
    if len(sizes) < len(points) > 1:
        yield key, f"{len(points)} points", "bytes_per_peer may be left out of the only point of a curve alone"
    elif any(lower.si >= upper.si for lower, upper in pairwise(sizes)):
        yield key, sizes, "bytes_per_peer must rise from rung to rung"


def _protocols(name: str, engine: CollectiveSpec) -> Iterator[tuple[str, Any, str]]:
    """Protocols of an algorithm that their kind does not have."""
    for own, protocol in engine.protocols.items():
        right = ALGORITHMS_OF[protocol.kind]
        if protocol.algorithm not in right:
            key = f"collectives.{name}.protocols.{own}.algorithm"
            yield key, protocol.algorithm, f"algorithms of {protocol.kind} are {', '.join(right)}"


def _generations(spec: MachineSpec) -> Iterator[tuple[str, Any, str]]:
    """Generations derived from one that is not there, or that name engines and families that are not."""
    for name, derived in spec.generations.items():
        if derived.base not in spec.kernels:
            hint = did_you_mean(derived.base, spec.kernels)
            yield f"generations.{name}.base", derived.base, f"kernels has {', '.join(spec.kernels)}{hint}"
            continue
        families = spec.kernels[derived.base]
        for key, named, there in (("collectives", derived.collectives, spec.collectives),
                                  ("unchanged", derived.unchanged, families)):  # fmt: skip
            for wrong in sorted(set(named) - set(there)):
                yield f"generations.{name}.{key}", wrong, f"there are {', '.join(there)}{did_you_mean(wrong, there)}"


def _untiled(spec: MachineSpec) -> Iterator[tuple[str, Any, str]]:
    """Element-wise kernels whose pieces neither they nor the chip give."""
    families = {f"kernels.{generation}.{name}": one for generation, kernels in spec.kernels.items()
                for name, one in kernels.items()}
    families |= {f"exchange_kernels.{name}": one for name, one in spec.exchange_kernels.items()}
    bare = [key for key, one in families.items() if one.law == "vector" and one.tile_bytes is None]
    if bare and spec.chip.tile_bytes is None:
        others = f" and {len(bare) - 1} more families" if len(bare) > 1 else ""
        yield "chip.tile_bytes", None, f"a number of bytes is wanted here, or as tile_bytes of {bare[0]}{others}"


def _cuts(spec: MachineSpec) -> Iterator[tuple[str, Any, str]]:
    """Attention whose keys are cut in more ways than one."""
    for generation, kernels in spec.kernels.items():
        for family, kernel in kernels.items():
            given = [name for name in ("tile_keys", "plan_keys") if getattr(kernel, name, None)]
            if len(given) > 1:
                yield f"kernels.{generation}.{family}", ", ".join(given), "at most one of them cuts keys"


def _pools(spec: MachineSpec) -> Iterator[tuple[str, Any, str]]:
    """Cores that are asked for but do not exist, and pools that lack a rate."""
    users = {f"collectives.{name}": each.cores for name, each in spec.collectives.items()}
    families = {f"kernels.{generation}.{family}": kernel for generation, kernels in spec.kernels.items()
                for family, kernel in kernels.items()}
    present = ", ".join(f"{count} {pool}" for pool, count in spec.chip.cores.items())
    for key, cores in {**users, **{key: kernel.cores for key, kernel in families.items()}}.items():
        for pool, count in cores.items():
            there = spec.chip.cores.get(pool)
            if there is None or there.si < count.si:
                hint = did_you_mean(pool, spec.chip.cores) if there is None else ""
                yield f"{key}.cores.{pool}", count, f"the chip has {present}{hint}"
    for key, kernel in families.items():
        engine = next(iter(kernel.cores))
        if engine in spec.chip.cores and engine not in spec.chip.peak:
            yield f"{key}.cores", engine, f"the first pool computes, but chip.peak has only {', '.join(spec.chip.peak)}"
        for pool in kernel.cores:
            if pool in spec.chip.cores and pool not in spec.chip.l2.port_rate:
                yield f"{key}.cores.{pool}", pool, f"chip.l2.port_rate has only {', '.join(spec.chip.l2.port_rate)}"
