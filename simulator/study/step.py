"""One step of any transformer from a few words: the scenario that they mean, what fits, and how busy the chip is.

The words are settings of `transformer:decode`, `transformer:prefill` and `transformer:mixed`; a mesh that is left out
is the smallest tensor-parallel one that the model fits on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from simulator.die.memory import DoesNotFit, Ledger
from simulator.errors import InputError
from simulator.model.transformer import Experts, Model
from simulator.paths import did_you_mean
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.stack.stacks import stack_of
from simulator.study import library
from simulator.study.scenario import Scenario
from simulator.study.simulate import Result, ledger_of
from simulator.units import PS_PER_S

PHASES = ("decode", "prefill", "mixed")
MOST = 2**24  # of what is searched for: the largest batch or context


@dataclass(frozen=True)
class StepWords:
    """What `braid step` was told: model, machine, stack and mesh by name ("": left out), the phase, and settings of
    the scenario that other words stand for."""

    model: str
    machine: str
    stack: str
    mesh: str
    phase: str
    settings: Mapping[str, str]


def step_of(words: StepWords) -> Scenario:
    """The scenario that words mean; InputError says which cannot be, and what would be right.

    DoesNotFit: no tensor-parallel mesh of the machine has the memory, where no mesh was given.
    """
    if words.phase not in PHASES:
        raise InputError(f"--phase {words.phase}: one of {', '.join(PHASES)}{did_you_mean(words.phase, PHASES)}")
    machine = load_machine(words.machine)
    given = {"model": words.model, "machine": words.machine} | dict(words.settings)
    named = library.load_scenario(f"transformer:{words.phase}").replace(given)
    knobs: Any = named.knobs
    model = knobs.model_of(named.transformer())
    named = named.replace({"kernels": generation_of(machine, words.stack, model, words.phase)})
    chosen = _on_mesh(named, machine, words.mesh) if words.mesh else _smallest(named, machine)
    return chosen if "knobs.exchange" in words.settings else _exchanging(chosen)


def generation_of(machine: MachineSpec, stack: str, model: Model, phase: str) -> str:
    """The kernel generation of a stack on this machine, by its name or how it begins (any for ""): the first one that
    runs this model in this phase.

    InputError says which stacks the machine has kernels for, or why none of them runs it.
    """
    there = [*machine.kernels, *machine.generations]
    found = [one for one in there if one == stack] or [one for one in there if one.startswith(stack)]
    if not found:
        raise InputError(f"--stack {stack}: {machine.name} has no kernels of it{did_you_mean(stack, there)}; "
                         f"it has {', '.join(there)}")
    refused: InputError | None = None
    for one in found:
        try:
            stack_of(one, model, phase, machine.chip.dtypes)
        except InputError as error:
            refused = refused or error
        else:
            return one
    assert refused is not None
    raise refused


def _exchanging(scenario: Scenario) -> Scenario:
    """With an exchange that the mesh can have where none was named: All2All to experts on ranks of their own, AllGather
    and ReduceScatter between data-parallel groups, as vLLM and SGLang have them unless they are told otherwise."""
    layout: Any = scenario.layout
    has_experts = any(isinstance(layer.feed_forward, Experts) for layer in scenario.transformer().layers)
    if not has_experts or (layout.dp == 1 and not layout.apart):
        return scenario
    return scenario.replace({"knobs.exchange": "all_to_all" if layout.apart else "all_gather"})


def said(scenario: Scenario) -> str:
    """What a step works on, and how, in one line, what was not asked for included."""
    batch, layout, knobs = (cast(Any, one) for one in (scenario.batch, scenario.layout, scenario.knobs))
    work = f"{batch.requests} requests x {batch.context:,} tokens"
    if batch.phase == "prefill":
        work = f"{batch.requests} prompts x {batch.context:,} tokens"
    elif batch.phase == "mixed":
        work += f" beside {batch.prompt:,} prompt tokens of each data-parallel group"
    experts = any(isinstance(layer.feed_forward, Experts) for layer in scenario.transformer().layers)
    return "; ".join([f"{batch.phase}: {work}", layout.words(), f"kernels of {scenario.kernels}",
                      ", ".join(knobs.precision) or "precision of the checkpoint",
                      f"schedule {knobs.schedule or 'of the stack'}",
                      *([f"exchange {knobs.exchange}"] if experts else [])])  # fmt: skip


def _on_mesh(scenario: Scenario, machine: MachineSpec, mesh: str) -> Scenario:
    """The scenario on a mesh, with as many cards as it has ranks."""
    axes = {}
    for part in (one.strip() for one in mesh.split(",") if one.strip()):
        name, equals, value = part.partition("=")
        known = [key.partition(".")[2] for key in scenario.settings() if key.startswith("layout.")]
        wrong = "is not AXIS=NUMBER" if not equals or not value.strip().isdecimal() else "is given twice"
        if name.strip() not in known:
            wrong = f"is no axis{did_you_mean(name.strip(), known)}"
        if not wrong.startswith("is given") or f"layout.{name.strip()}" in axes:
            raise InputError(f"--mesh {mesh}: '{part}' {wrong}; axes are {', '.join(known)}, as in tp=8,ep=8")
        axes[f"layout.{name.strip()}"] = value.strip()
    if not any(key in axes for key in ("layout.tp", "layout.dp", "layout.cp", "layout.pp")):
        axes["layout.tp"] = axes.get("layout.ep", "1")
    chosen = scenario.replace({"layout.tp": "1"} | axes)
    ranks: int = chosen.layout.ranks  # type: ignore[attr-defined]
    dies = machine.dies_per_card.count
    if ranks % dies or ranks > machine.dies:
        right = f"a multiple of {dies}, a card's dies" if ranks % dies else f"at most {machine.dies}"
        raise InputError(f"--mesh {mesh}: {ranks} ranks; {machine.name} takes {right}")
    return chosen.replace({"cards": str(ranks // dies)})


def _smallest(scenario: Scenario, machine: MachineSpec) -> Scenario:
    """The smallest tensor-parallel mesh on which it fits: 1, 2, 4, ... ranks."""
    refused: Exception | None = None
    ranks = machine.dies_per_card.count
    while ranks <= machine.dies:
        chosen = _on_mesh(scenario, machine, f"tp={ranks}")
        ranks *= 2
        try:
            memory_of(chosen).check()
        except DoesNotFit as error:
            refused = error
        except InputError as error:
            refused = refused or error
        else:
            return chosen
    assert refused is not None
    raise refused


def memory_of(scenario: Scenario) -> Ledger:
    """The ledger of the fullest rank, without recording; InputError for what cannot be."""
    machine = scenario.machine_spec()
    case = scenario.case(machine, seed=0)
    try:
        scenario.workload.groups(case)
        return ledger_of(scenario, case, machine)
    except ValueError as error:
        raise InputError(str(error)) from error


def what_fits(scenario: Scenario) -> str:
    """What of a step that needs too much memory would fit: the most requests, or the longest context; in words."""
    most = {key: largest(lambda value, key=key: scenario.replace({key: str(value)}))  # type: ignore[misc]
            for key in ("batch.requests", "batch.context")}
    words = [f"{key}={value}" for key, value in most.items() if value]
    return f"{' or '.join(words)} would fit" if words else "the weights alone do not fit: a larger mesh would"


def largest(scenario_of: Callable[[int], Scenario]) -> int:
    """The largest number with which it fits, 0 if not even 1 does."""
    low, high = 0, 1
    while high <= MOST and _fits(scenario_of, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(scenario_of, middle) else (low, middle)
    return low


def _fits(scenario_of: Callable[[int], Scenario], number: int) -> bool:
    try:
        return memory_of(scenario_of(number)).fits
    except InputError:
        return False


def utilisation(result: Result) -> dict[str, float]:
    """Shares of the chip's peaks: model FLOPs (each at the peak of its data type) and HBM bytes of an average rank."""
    chip, world = result.machine.chip, result.world
    seconds = max(result.makespan_ps, 1) / PS_PER_S
    busy: dict[int, tuple[float, float]] = {}
    flop_s = hbm_bytes = 0.0
    for program in world.programs:
        if id(program) not in busy:
            works = [work for _, work in program.works() if hasattr(work, "hbm_bytes")]
            busy[id(program)] = (sum(_at_peak_s(work, chip.peak) for work in works), sum(w.hbm_bytes for w in works))
        flop_s += busy[id(program)][0]
        hbm_bytes += busy[id(program)][1]
    ranks = len(world.programs)
    return {"mfu": flop_s / ranks / seconds, "mbu": hbm_bytes / ranks / seconds / chip.hbm.peak.si}


def _at_peak_s(work: object, peaks: Mapping[str, Mapping[str, object]]) -> float:
    """How long a kernel's FLOPs take at the peak of their data type, in seconds; vector work counts nothing."""
    dtype, flops = getattr(work, "dtype", ""), getattr(work, "flops", 0.0)
    if not flops or getattr(work, "kind", "") not in ("gemm", "grouped_gemm", "attention"):
        return 0.0
    found = [peak[dtype] for peak in peaks.values() if dtype in peak]
    return flops / max(one.si for one in found) if found else 0.0  # type: ignore[attr-defined]


def saved(scenario: Scenario) -> str:
    """A scenario file that gives this scenario: a function of the library's with its settings changed."""
    _, _, phase = scenario.name.partition(":")
    given = dict(scenario.changes)
    if Path(given["model"]).exists():
        given["model"] = str(Path(given["model"]).resolve())
    changes = "\n".join(f"        {_quoted(key)}: {_quoted(value)}," for key, value in given.items())
    return f'''"""A step written down by `braid step`; run it with `braid run FILE:{phase}`."""

from __future__ import annotations

from scenarios import transformer
from simulator.study.scenario import Scenario


def {phase}() -> Scenario:
    """{in_a_docstring(scenario.full_title)}."""
    return transformer.{phase}().replace({{
{changes}
    }})
'''


def in_a_docstring(text: str) -> str:
    """A text that cannot end a docstring of a file of Python."""
    return text.replace("\\", "/").replace('"', "'").replace("\0", "")


def _quoted(text: str) -> str:
    """A text as Python has it, whatever is in it."""
    return f'"{text}"' if text.isprintable() and not set(text) & {'"', "\\"} else repr(text)
