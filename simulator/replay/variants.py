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
    from simulator.die.tape import Tape
    from simulator.program.task import Collective, Program
    from simulator.spec.machine import MachineSpec

_AMOUNTS = ("flops", "hbm_bytes", "wire_bytes")


class Compiler:
    """Tapes and columns of programs on one machine; what all variants of a recording share is made once.

    groups: size of each group of ranks, for the columns.
    """

    def __init__(self, machine: MachineSpec, generation: str, groups: dict[str, int] | None = None) -> None:
        self.costs, self.groups = Costs(machine, generation), groups or {}
        self._tapes: dict[int, tuple[Tape, Callable[[str, Cost], int]]] = {}  # and on how many units what runs
        self._columns: dict[int, dict[str, list]] = {}
        self._amounts: dict[int, tuple[Work | Collective, tuple[float, ...]]] = {}  # by identity of the work

    def tape(self, program: Program) -> Tape:
        """As `tape_of`."""
        if not program.own:
            return tape_of(program, self.costs)
        if id(program.items) not in self._tapes:
            slots = slots_of(program, self.costs.machine)
            known = tape_of(program, self.costs), cache(lambda partition, cost: units_of(cost, slots[partition]))
            self._tapes[id(program.items)] = known
        base, fitting = self._tapes[id(program.items)]
        costs, weights, units, steps = list(base.costs), list(base.weights), list(base.units), base.steps
        for index, work in program.own.items():
            if isinstance(work, Work):
                cost, step = self.costs.of(work), steps[index]
                costs[index], weights[index] = cost, work.weights
                units[index] = fitting(step.partition, cost) if step.exclusive else 0
        return replace(base, costs=costs, weights=weights, units=units)

    def columns(self, program: Program) -> dict[str, list]:
        """As `statics`."""
        if not program.own:
            return statics(program, self.costs, self.groups)
        if id(program.items) not in self._columns:
            self._columns[id(program.items)] = statics(program, self.costs, self.groups)
        columns = dict(self._columns[id(program.items)])
        flops, hbm_bytes, wire_bytes = (list(columns[name]) for name in _AMOUNTS)
        for index, work in program.own.items():
            flops[index], hbm_bytes[index], wire_bytes[index] = self._amounts_of(work)
        return columns | dict(zip(_AMOUNTS, (flops, hbm_bytes, wire_bytes), strict=True))

    def _amounts_of(self, work: Work | Collective) -> tuple[float, ...]:
        known = self._amounts.get(id(work))
        if known is None:
            known = self._amounts[id(work)] = work, amounts(work, self.costs, self.groups)
        return known[1]
