"""Step times where experts are unevenly loaded: one more coordinate of the lattice, the load of the fullest place.

Of a state (who is popular, and where experts are) a step asks one number: the load of the fullest place over the mean,
mean of all layers. LEVELS are states of every such number: experts placed for a popularity that has so much in common
with the present one, from all (1) to nothing (0), the way in which a placement becomes stale in service. Each level has
a lattice of its own, and a state between two levels takes the line between what they say; beyond them, the line goes
on. Steps that are simulated as they are (audits) have the very state.

Worked example. Levels have imbalances of 1.00, 1.17, 1.31 and 1.44; a state of 1.24 takes half of what the second and
half of what the third level says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf

from simulator import np
from simulator.model.expert_state import ExpertState, imbalance_of
from simulator.model.micro_batch import MicroBatch
from simulator.serving.draws import stream_of
from simulator.serving.placing import Placing
from simulator.serving.popularity import by_score, drifted
from simulator.serving.steps import Load, StepTimes
from simulator.serving.uneven import Uneven

LEVELS = (1.0, 0.0)  # correlation of scores now with those that experts were placed for


class Levels:
    """As `StepTimes`, of loads that say the state of experts. times: of the step in one state."""

    def __init__(self, placing: Placing, times: Callable[[Uneven], StepTimes]) -> None:
        self._placing, self._new = placing, times
        self._times: dict[tuple[int, bool], StepTimes] = {}

    @property
    def simulated(self) -> int:
        """Steps that were."""
        return sum(times.simulated for times in self._times.values())

    def seconds(self, load: Load) -> float:
        """Of one step."""
        return float(self._slowed(load, lambda times: np.array([times.seconds(load)]))[0])

    def decode_seconds(self, load: Load, cached: np.Array) -> np.Array:
        """As of `StepTimes`; beside moving weights of one step alone."""
        return self._slowed(load, lambda times: times.decode_seconds(load, cached))

    def exact(self, groups: Sequence[MicroBatch], experts: Uneven | None = None) -> float:
        """Of one step with this very batch in this very state."""
        return self._at(0, moving=False).exact(groups, experts)

    def _slowed(self, load: Load, ask: Callable[[StepTimes], np.Array]) -> np.Array:
        """What a step takes of which a part is beside moving weights: as much of what is done in that part as there
        would be in as much of a step that is beside them from end to end."""
        assert load.experts is not None
        alone = self._between(load, ask, moving=False)
        if not load.experts.moving_s:
            return alone
        beside = self._between(load, ask, moving=True)
        moving_s = np.minimum(load.experts.moving_s, beside)
        found: np.Array = moving_s + alone * (1.0 - moving_s / beside)
        return found

    def _between(self, load: Load, ask: Callable[[StepTimes], np.Array], moving: bool) -> np.Array:
        assert load.experts is not None
        nodes = [state.imbalance for state in self.levels]
        return np.sum([weight * ask(self._at(level, moving))
                       for weight, level in weights(nodes, load.experts.state.imbalance)], axis=0)  # fmt: skip

    @cached_property
    def levels(self) -> tuple[ExpertState, ...]:
        """States by how uneven they are; the same for all seeds."""
        shape, skew = (len(self._placing.layers), self._placing.experts.routed), self._placing.skew
        now, before = (stream_of(0, "experts", number).standard_normal(shape) for number in range(2))
        found = [self._level(part, by_score(now, skew), by_score(drifted(now, before, part), skew)) for part in LEVELS]
        return tuple(sorted(found, key=lambda state: state.imbalance))

    def _level(self, part: float, asked: np.Array, before: np.Array) -> ExpertState:
        """Placed for what was asked before. Layers are in such an order that those that are simulated for all, the
        first ones, are as uneven as all."""
        placed = self._placing.placed(before)
        ratios = np.array([imbalance_of(own, one) for own, one in zip(asked.tolist(), placed, strict=True)])
        order = np.argsort(np.abs(ratios - ratios.mean()), kind="stable").tolist()
        return ExpertState(f"level {part}", self._placing.layers, asked[order], tuple(placed[row] for row in order),
                           float(ratios.mean()))  # fmt: skip

    def _at(self, level: int, moving: bool) -> StepTimes:
        if (level, moving) not in self._times:
            self._times[level, moving] = self._new(Uneven(self.levels[level], inf if moving else 0.0))
        return self._times[level, moving]


def weights(nodes: Sequence[float], x: float) -> list[tuple[float, int]]:
    """(weight, place) of the two nodes, which ascend, whose line is taken at a number; one below the first, where all
    is as level as can be."""
    if x <= nodes[0] or len(nodes) < 2:
        return [(1.0, 0)]
    place = next((place for place, (_, high) in enumerate(pairwise(nodes)) if x < high), len(nodes) - 2)
    share = (x - nodes[place]) / (nodes[place + 1] - nodes[place])
    return [(1.0 - share, place), (share, place + 1)]
