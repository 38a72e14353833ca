"""Ranks that share a recording but for numbers of their own in some tasks: compiled once, changed where they differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.program.tape import amounts, cost_in, statics, tape_of

if TYPE_CHECKING:
    from simulator.machine.kernels import Cost, Work
    from simulator.machine.npu import Tape
    from simulator.machine.spec import MachineSpec
    from simulator.program.task import Prefetch, Program


class Compiler:
    """Tapes and columns of programs on one machine; what a template and its variants share is made once.

    groups: size of each group of ranks, for the columns.
    """

    def __init__(self, machine: MachineSpec, generation: str, groups: dict[str, int] | None = None) -> None:
        self.machine, self.generation, self.groups = machine, generation, groups or {}
        self._tapes: dict[int, Tape] = {}
        self._columns: dict[int, dict[str, list]] = {}
        self._costs: dict[int, tuple[Any, Cost]] = {}  # by the identity of the work, which is kept so that it stays

    def tape(self, program: Program) -> Tape:
        """As `tape_of`."""
        template = program.template
        if template is None:
            return tape_of(program, self.machine, self.generation)
        if id(template) not in self._tapes:
            self._tapes[id(template)] = tape_of(template, self.machine, self.generation)
        base, tasks = self._tapes[id(template)], program.tasks
        steps = list(base.steps)
        for index in template.by_rank:
            if steps[index].cost is not None:
                steps[index] = replace(steps[index], cost=self._cost(tasks[index].work))  # type: ignore[arg-type]
        return replace(base, steps=steps)

    def columns(self, program: Program) -> dict[str, list]:
        """As `statics`."""
        template = program.template
        if template is None:
            return statics(program, self.machine, self.generation, self.groups)
        if id(template) not in self._columns:
            self._columns[id(template)] = statics(template, self.machine, self.generation, self.groups)
        columns, tasks = dict(self._columns[id(template)]), program.tasks
        names = ("flops", "hbm_bytes", "wire_bytes")
        columns |= {name: list(columns[name]) for name in names}
        for index in template.by_rank:
            values = amounts(tasks[index].work, self._cost, self.machine, self.groups)[2:]
            for name, value in zip(names, values, strict=True):
                columns[name][index] = value
        return columns

    def _cost(self, work: Work | Prefetch) -> Cost:
        if id(work) not in self._costs:
            self._costs[id(work)] = work, cost_in(work, self.machine, self.generation)
        return self._costs[id(work)][1]
