"""Ranks that share a recording but for numbers of their own in some tasks: compiled once, changed where they differ."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from simulator.die.kernels import Work
from simulator.replay.costs import Costs
from simulator.replay.tape import amounts, slots_of, statics, tape_of, units_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.die.kernels import Cost
    from simulator.die.step import Tape
    from simulator.program.task import Program
    from simulator.spec.machine import MachineSpec

_AMOUNTS = ("flops", "hbm_bytes", "wire_bytes")


class Compiler:
    """Tapes and columns of programs on one machine; what a template and its variants share is made once.

    groups: size of each group of ranks, for the columns.
    """

    def __init__(self, machine: MachineSpec, generation: str, groups: dict[str, int] | None = None) -> None:
        self.costs, self.groups = Costs(machine, generation), groups or {}
        self._tapes: dict[int, tuple[Tape, Callable[[str, Cost], int]]] = {}  # and on how many units what runs
        self._columns: dict[int, dict[str, list]] = {}

    def tape(self, program: Program) -> Tape:
        """As `tape_of`."""
        template = program.template
        if template is None:
            return tape_of(program, self.costs)
        if id(template) not in self._tapes:
            slots = slots_of(template, self.costs.machine)
            known = tape_of(template, self.costs), cache(lambda partition, cost: units_of(cost, slots[partition]))
            self._tapes[id(template)] = known
        (base, fitting), tasks = self._tapes[id(template)], program.tasks
        costs, weights, units = list(base.costs), list(base.weights), list(base.units)
        for index in template.by_rank:
            work = tasks[index].work
            if isinstance(work, Work):
                cost, step = self.costs.of(work), base.steps[index]
                costs[index], weights[index] = cost, work.weights
                units[index] = fitting(step.partition, cost) if step.alone else 0
        return replace(base, costs=costs, weights=weights, units=units)

    def columns(self, program: Program) -> dict[str, list]:
        """As `statics`."""
        template = program.template
        if template is None:
            return statics(program, self.costs, self.groups)
        if id(template) not in self._columns:
            self._columns[id(template)] = statics(template, self.costs, self.groups)
        columns, tasks = dict(self._columns[id(template)]), program.tasks
        flops, hbm_bytes, wire_bytes = (list(columns[name]) for name in _AMOUNTS)
        for index in template.by_rank:
            own = amounts(tasks[index].work, self.costs, self.groups)
            flops[index], hbm_bytes[index], wire_bytes[index] = own
        return columns | dict(zip(_AMOUNTS, (flops, hbm_bytes, wire_bytes), strict=True))
