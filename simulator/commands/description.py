"""What a scenario consists of, as text: machine, layout, memory, settings, and every number with its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from simulator.commands.summary import count
from simulator.program.world import record_shared
from simulator.spec.kernels import base_of
from simulator.spec.model import load_model, override_model
from simulator.spec.typed_toml import quantities
from simulator.study.expected import band_text, plain
from simulator.study.glossary import metrics_of
from simulator.study.scenario import Expected, Scenario
from simulator.study.settings import leaves, meanings, shown
from simulator.study.simulate import Prepared, prepare
from simulator.units import Quantity

LEGEND = "confidence: H two independent sources, M one direct source, L inference"


def description(scenario: Scenario) -> str:
    """Everything that `braid show` prints; raises what preparing the scenario raises."""
    ready = prepare(scenario, record=record_shared)
    model = override_model(load_model(scenario.model), scenario.model_changes)
    generation = base_of(scenario.kernels, ready.machine.generations)
    sections = {f"{scenario.name}: {scenario.full_title}": [],
                f"Machine: {ready.machine.title}": _machine(ready),
                "Layout": _layout(ready),
                "Memory of the fullest rank": str(ready.ledger).splitlines(),
                "Settings (--set KEY=VALUE)": columns(setting_rows(scenario, scenario.settings())),
                "Metrics (times of an average rank, in the unit that ends the name)": columns(
                    metrics_of(scenario, ready.case)),
                "Expected values": expected_rows(scenario.expected),
                f"Numbers of the machine {scenario.machine} (--set machine.KEY=VALUE); {LEGEND}":
                    _numbers((key, one) for key, one in quantities(ready.machine) if _matters(key, generation)),
                f"Numbers of the model {scenario.model} (--set model.KEY=VALUE); {LEGEND}": _numbers(quantities(model))}
    return "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items())


def described(scenario: Scenario) -> dict[str, Any]:
    """The same for JSON: what it is, settings, metrics, memory, expected values, and numbers with their sources."""
    ready = prepare(scenario, record=record_shared)
    model = override_model(load_model(scenario.model), scenario.model_changes)
    generation = base_of(scenario.kernels, ready.machine.generations)
    return {"scenario": scenario.name, "title": scenario.full_title, "machine": ready.machine.title,
            "model": scenario.transformer().name, "cards": scenario.cards, "ranks": ready.case.ranks,
            "memory": [{"category": one.category, "name": one.name, "bytes": one.size_bytes}
                       for one in ready.ledger.items],
            "settings": settings_object(scenario, scenario.settings()),
            "metrics": dict(metrics_of(scenario, ready.case)),
            "expected": [one.model_dump(mode="json") for one in scenario.expected],
            "numbers": {f"machine.{key}": plain(one.model_dump(mode="json")) for key, one in quantities(ready.machine)
                        if _matters(key, generation)}
            | {f"model.{key}": plain(one.model_dump(mode="json")) for key, one in quantities(model)}}


def setting_rows(model: BaseModel, keys: Iterable[str]) -> list[tuple[str, str, str]]:
    """(key, value, what it means) of these settings."""
    value, meaning = leaves(model), meanings(model)
    return [(key, shown(value[key]), meaning[key]) for key in keys]


def settings_object(model: BaseModel, keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """The same for JSON; values as --set takes them."""
    return {key: {"value": value, "meaning": meaning} for key, value, meaning in setting_rows(model, keys)}


def _matters(key: str, generation: str) -> bool:
    """Kernels of another software generation are not used."""
    return not key.startswith("kernels.") or key.startswith(f"kernels.{generation}.")


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows of text as aligned columns."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in cells]
    return [f"  {'  '.join(row)}".rstrip() for row in padded]


def _machine(ready: Prepared) -> list[str]:
    machine = ready.machine
    chip = machine.chip
    cores = ", ".join(f"{count} {pool}" for pool, count in chip.cores.items())
    levels = [(level.name, f"{level.kind} of {level.size}", f"{level.link_rate} a link, one way", str(level.latency))
              for level in machine.fabric]
    return [*(f"  {line}" for line in machine.doc.strip().splitlines()),
            f"  {chip.name}: cores {cores}; HBM {chip.hbm.capacity}, {chip.hbm.peak}",
            *columns(levels)]


def _layout(ready: Prepared) -> list[str]:
    world = ready.world
    programs = {id(program): program for program in world.programs}
    own = ", with numbers of each rank's own" if any(one.by_rank for one in programs.values()) else ""
    return [f"  {count(ready.scenario.cards, 'card')} of {count(ready.machine.dies_per_card.count, 'die')} = "
            f"{count(ready.case.ranks, 'rank')}; "
            f"recorded programs: {len(programs)}{own}; {world.programs[0].launches:,} tasks on rank 0",
            *(f"  group {name}: {len(members)} of {len(members[0])} ranks" for name, members in world.groups.items())]


def expected_rows(expected: Sequence[Expected]) -> list[str]:
    """A published value a line: id, metric, value or band, role, note."""
    rows = [(one.id, one.full_metric, band_text(one.band) or f"{one.value:g}", one.role, one.note)
            for one in expected]
    return columns(rows) or ["  none"]


def _numbers(named: Iterable[tuple[str, Quantity]]) -> list[str]:
    """A number a line: key, value, kind, confidence, source and how it follows or was fitted."""
    return columns((key, str(one), one.kind, one.confidence or "", _origin(one)) for key, one in named)


def _origin(quantity: Quantity) -> str:
    how = {"": quantity.source, "= ": quantity.expression, "fitted on ": quantity.fitted_on}
    return "; ".join(f"{before}{text}" for before, text in how.items() if text)
