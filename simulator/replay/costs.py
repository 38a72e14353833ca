"""What works cost on one machine with one software generation, worked out once for all that are alike.

The same kernel runs in every layer and on every rank, with other weights: their name says what L2 may hold of them, and
nothing about cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from math import inf
from operator import attrgetter

from simulator.die.kernels import FREE, FREE_COST, Cost, Work, cost_of
from simulator.errors import InputError
from simulator.program.task import Prefetch
from simulator.spec.machine import MachineSpec

_sizes = attrgetter(*(field.name for field in fields(Work) if field.name not in ("weights", "parts")))


class Costs:
    """Costs and FLOPs of works; InputError if the machine has no such generation."""

    def __init__(self, machine: MachineSpec, generation: str) -> None:
        machine.kernels_of(generation)  # a wrong name is refused even where there is nothing to launch
        self.machine, self.generation = machine, generation
        self._of: dict[int, tuple[Work | Prefetch, Cost, float]] = {}  # by identity of the work, kept so that it stays
        self._alike: dict[tuple, tuple[Cost, float]] = {}

    def of(self, work: Work | Prefetch) -> Cost:
        """What a kernel or prefetch costs; InputError if the generation has no such family."""
        return self._known(work)[1]

    def flops(self, work: Work | Prefetch) -> float:
        """Its useful operations."""
        return self._known(work)[2]

    def _known(self, work: Work | Prefetch) -> tuple[Work | Prefetch, Cost, float]:
        known = self._of.get(id(work))
        if known is None:
            key = _key(work)
            if key not in self._alike:
                self._alike[key] = self._cost(work), work.flops if isinstance(work, Work) else 0.0
            known = self._of[id(work)] = work, *self._alike[key]
        return known

    def _cost(self, work: Work | Prefetch) -> Cost:
        if isinstance(work, Prefetch):
            return _copy(work)
        if work.family == FREE:
            return FREE_COST
        if (least := _least(_sizes(work))) < 0:
            raise InputError(f"{work.family}: a size is negative: {least:g}")
        try:
            return cost_of(work, self.machine.chip, self.machine.kernels_of(self.generation))
        except KeyError as error:
            raise InputError(f"{self.machine.name}, generation '{self.generation}': {error.args[0]}") from None


def _key(work: Work | Prefetch) -> tuple:
    """All of a work but the name of its weights."""
    if isinstance(work, Prefetch):
        return work.size_bytes, work.rate_bytes_per_s, work.kept_bytes
    return (*_sizes(work), *map(_key, work.parts)) if work.parts else _sizes(work)


def _least(sizes: Iterable[object]) -> float:
    """The smallest number among sizes and lists of sizes, 0 if none is below."""
    least = 0.0
    for one in sizes:
        if type(one) is tuple:
            one = _least(one) if one and type(one[0]) is tuple else min(one, default=0)
        if type(one) is not str and one < least:  # type: ignore[operator]
            least = one  # type: ignore[assignment]
    return least


def _copy(prefetch: Prefetch) -> Cost:
    size = prefetch.size_bytes
    need = (("sdma", 1),) if size else ()
    return Cost(latency_s=0.0, need=need, want=1, tiles=1, tile_s=0.0, onchip_bytes=size, hbm_bytes=size,
                unit_rate_bytes_per_s=prefetch.rate_bytes_per_s or inf, kept_bytes=prefetch.kept_bytes or size,
                ports_name="prefetch rate")
