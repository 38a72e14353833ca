"""Steps of all models on all machines: what each takes, or why it cannot be.

Every model is spread over 1, 2 and 8 cards, tensor parallel, and decodes 1 or 64 requests of 4096 cached tokens, or
prefills a prompt of 4096, in the precision of its checkpoint or the nearest of which the machine has kernels. Models
whose tokens draw their experts are simulated whole, the others by some of their layers, which comes to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from simulator import paths
from simulator.die.coverage import outside
from simulator.die.kernels import Work
from simulator.die.memory import DoesNotFit
from simulator.errors import BraidError, InputError
from simulator.model.transformer import Experts
from simulator.parallel.mesh import Mesh, check
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.study.library import load_scenario
from simulator.study.nearest import Kernels, generations, nearest, words
from simulator.study.processes import Tell, in_processes
from simulator.study.scenario import Scenario
from simulator.study.simulate import Result, simulate

CARDS = (1, 2, 8)
TOKENS = 4096


class Load(NamedTuple):
    """What a step works on, and what its length is called."""

    phase: str
    requests: int
    metric: str


LOADS = {"decode 1": Load("decode", 1, "tpot_ms"), "decode 64": Load("decode", 64, "tpot_ms"),
         "prefill": Load("prefill", 1, "ttft_ms")}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One step. load: of LOADS. ms: TPOT or TTFT, None where it is refused: for memory, mesh, kernels or another cause,
    with the reason. outside: kernels larger or smaller than all that their laws were fitted on, and how."""

    model: str
    machine: str
    cards: int
    load: str
    kernels: str = ""
    precision: str = ""
    ms: float | None = None
    refused: str = ""
    reason: str = ""
    outside: tuple[str, ...] = ()

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"metric": LOADS[self.load].metric, "outside": list(self.outside)}


def machines() -> list[str]:
    """The library's machines with kernels of a stack that runs any transformer."""
    return [name for name in paths.names("topologies") if generations(load_machine(name))]


def steps(patterns: Sequence[str] = (), jobs: int = 1, tell: Tell | None = None) -> list[Cell]:
    """All steps of the models and machines that any pattern chooses, of all where none does; model by model.

    InputError for a pattern that chooses neither. jobs: processes. tell: told the share done.
    """
    models, there = paths.names("workloads/models"), machines()
    for pattern in patterns:
        paths.choose(pattern, (*models, *there), "model or machine with kernels of a transformer")
    some = partial(_in_processes_of, machines=tuple(_chosen(patterns, there)))
    return [cell for of_model in in_processes(some, _chosen(patterns, models), jobs, tell) for cell in of_model]


def _chosen(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    chosen = [name for name in names if any(paths.matches(pattern, name) for pattern in patterns)]
    return chosen or list(names)


def _in_processes_of(model: str, machines: Sequence[str]) -> list[Cell]:
    """The steps of one model; what is drawn for it is the same on all machines."""
    return [cell for machine in machines for cell in cells_of(model, machine)]


def cells_of(model: str, machine: str) -> list[Cell]:
    """The steps of a model on a machine."""
    spec = load_machine(machine)
    ready = {phase: _kernels(model, spec, phase) for phase in dict.fromkeys(load.phase for load in LOADS.values())}
    return [_cell(Cell(model, machine, cards, name), spec, *ready[load.phase]) for cards in CARDS
            for name, load in LOADS.items()]


def _on(model: str, machine: MachineSpec, phase: str, cards: int) -> Scenario:
    """The model on so many cards."""
    layout = {"cards": str(cards), "layout.tp": str(cards * machine.dies_per_card.count)}
    return load_scenario(f"transformer:{phase}").replace({"model": model, "machine": machine.name} | layout)


def _kernels(model: str, machine: MachineSpec, phase: str) -> tuple[Kernels | None, str]:
    """What runs a model in a phase, or none and why."""
    try:
        return nearest(_on(model, machine, phase, 1), machine), ""
    except InputError as error:
        return None, str(error)


def _cell(cell: Cell, machine: MachineSpec, kernels: Kernels | None, why: str) -> Cell:
    """The cell filled in."""
    try:
        load, scenario = LOADS[cell.load], _on(cell.model, machine, LOADS[cell.load].phase, cell.cards)
        model, mesh = scenario.transformer(), scenario.layout
        assert isinstance(mesh, Mesh)
        if kernels is None:
            return _with(cell, refused="kernels", reason=why)
        draws = any(isinstance(layer.feed_forward, Experts) for layer in model.layers)
        cell = _with(cell, kernels=kernels.generation, precision=words(model.precision, kernels.instead, draws))
        try:
            check(mesh, model)
        except InputError as error:
            return _with(cell, refused="mesh", reason=str(error))
        some = {} if draws else {"knobs.layers": "3"}
        result = simulate(scenario.replace(kernels.settings | some | {
            "batch.requests": str(load.requests), "batch.context": str(TOKENS)}), record=not draws)  # fmt: skip
        return _with(cell, ms=result.metrics[load.metric], outside=_outside(result, kernels.generation))
    except DoesNotFit as error:
        return _with(cell, refused="memory", reason=str(error).partition("\n")[0])
    except BraidError as error:
        return _with(cell, refused="other", reason=str(error).partition("\n")[0])


def _with(cell: Cell, **fields: Any) -> Cell:
    return Cell(**{**asdict(cell), **fields})


def _outside(result: Result, generation: str) -> tuple[str, ...]:
    """By name of kernel, the first way in which one is beyond its table."""
    families, found = result.machine.kernels_of(generation), dict[str, str]()
    for task, work in result.world.programs[0].works():
        if isinstance(work, Work) and task.name not in found:
            beyond = outside(work, families[work.family])
            found |= {task.name: beyond} if beyond else {}
    return tuple(f"{name}: {beyond}" for name, beyond in found.items())
