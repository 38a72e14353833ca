"""The kernels of a machine for a model: of the first generation that has them, in the nearest precision that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model.transformer import Precision
from simulator.program.world import record_shared
from simulator.spec.machine import MachineSpec
from simulator.stack.stacks import stacks_of
from simulator.study.scenario import Scenario

NEAREST = {
    "fp8_block": ("fp8", "bf16", "int8"),
    "fp8":       ("fp8_block", "bf16", "int8"),
    "int8":      ("bf16", "fp8"),
    "bf16":      ("fp8", "int8"),
    "mxfp4":     ("mxfp4_fp8", "bf16", "fp8", "int8"),
    "mxfp4_marlin": ("mxfp4", "mxfp4_fp8", "bf16", "fp8", "int8"),
    "mxfp4_fp8": ("mxfp4", "fp8", "bf16", "int8"),
    "nvfp4":     ("bf16", "fp8", "int8"),
    "int4":      ("bf16", "fp8", "int8"),
}  # fmt: skip
"""What stands for a precision of weights where there are no kernels of it, the nearest first."""
_EXPERTS = ("grouped_gemm_", "experts_")  # how families of routed experts begin
_PROBE = {"routing.skew": "none", "knobs.layers": "3"}  # some layers of each kind have all families
MODULES = ("attention", "dense", "experts", "shared", "kv_b", "drafts")  # router and head stay as they are


@dataclass(frozen=True)
class Kernels:
    """A software generation, and the modules whose precision it lacks, with what stands for it."""

    generation: str
    instead: Mapping[str, str]

    @property
    def settings(self) -> dict[str, str]:
        """Of a scenario."""
        precision = ",".join(f"{module}={dtype}" for module, dtype in self.instead.items())
        return {"kernels": self.generation} | ({"knobs.precision": precision} if precision else {})


def generations(machine: MachineSpec) -> list[str]:
    """Those of stacks that run any transformer, in the machine's order."""
    return [one for one in (*machine.kernels, *machine.generations) if stacks_of(one)]


def nearest(scenario: Scenario, machine: MachineSpec) -> Kernels:
    """For the model and phase of a scenario; InputError says what every generation lacks."""
    reasons: dict[str, str] = {}
    for generation in generations(machine):
        try:
            return Kernels(generation, _lowered(scenario, generation))
        except InputError as error:
            reasons.setdefault(re.sub("^kernels '.*?' are ", "kernels are ", str(error).partition("\n")[0]), generation)
    raise InputError("; ".join(f"{generation}: {reason}" for reason, generation in reasons.items()))


def _lowered(scenario: Scenario, generation: str) -> dict[str, str]:
    """Modules in another precision than the checkpoint's, so that a generation has kernels of all."""
    own, instead = scenario.transformer().precision, dict[str, str]()
    first: InputError | None = None  # what is wrong with its own
    while True:
        tried = scenario.replace(Kernels(generation, instead).settings | _PROBE)
        try:
            lacking, refused = _lacking(tried), None
        except InputError as error:  # a stack that says itself what it takes
            lacking, refused = [], error
        if not lacking and refused is None:
            return instead
        first = first or refused or InputError(f"has no kernels {', '.join(lacking)}")
        lower = _lower(own, instead, None if refused else lacking)
        if not lower:
            raise first
        instead |= lower


def _lacking(scenario: Scenario) -> list[str]:
    """Families of its program that its generation has not."""
    machine = scenario.machine_spec()
    case, workload = scenario.case(machine, seed=0), scenario.workload
    try:
        world = record_shared(lambda npu: workload.program(npu, case), case.ranks, workload.groups(case),
                              partial(workload.coordinates, case))  # fmt: skip
    except ValueError as error:
        raise InputError(str(error)) from error
    used = {family for program in world.programs for _, work in program.works() for family in _families(work)}
    return sorted(used - set(machine.kernels_of(scenario.kernels)))


def _families(work: object) -> Iterator[str]:
    if isinstance(work, Work):
        yield work.family
        for part in work.parts:
            yield from _families(part)


def _lower(own: Precision, instead: Mapping[str, str], lacking: Sequence[str] | None) -> dict[str, str]:
    """The next precision of modules whose families are lacking, of all but BF16 ones if that is not known (None)."""
    found = {}
    for module in MODULES:
        chain = (getattr(own, module), *NEAREST.get(getattr(own, module), ()))
        dtype = instead.get(module, chain[0])
        if dtype is not None and _at_fault(module, dtype, lacking) and dtype != chain[-1]:
            found[module] = chain[chain.index(dtype) + 1]
    return found


def _at_fault(module: str, dtype: str, lacking: Sequence[str] | None) -> bool:
    """Whether a family that is lacking is of this module in this precision; scales of blocks may be no family's own."""
    if lacking is None:
        return dtype != "bf16"
    ends = f"_{dtype}", f"_{dtype.removesuffix('_block')}"
    return any(family.endswith(ends) and family.startswith(_EXPERTS) == (module == "experts") for family in lacking)


def words(own: Precision, instead: Mapping[str, str], experts: bool) -> str:
    """The precision of a model's matrices, "fp8_block" or "bf16, experts mxfp4", with what stands for it: "-> bf16".

    experts: whether it has any.
    """
    shown = {module: f"{getattr(own, module)}" + (f" -> {instead[module]}" if module in instead else "")
             for module in ("attention", "experts")}
    if not experts or len(set(shown.values())) == 1:
        return shown["attention"]
    return f"{shown['attention']}, experts {shown['experts']}"
