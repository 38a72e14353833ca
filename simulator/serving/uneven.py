"""What a step asks of experts where that changes over time, and weights that move beside it."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.fabric.graph import Fabric
from simulator.model.expert_state import ExpertState
from simulator.spec.faults import Fault
from simulator.study.scenario import Scenario

SHARE = 0.5
"""Of a link's rate that a step has while weights move over it, and that weights have: flows share a link evenly, and
an exchange has as many flows on one as a move, one for every other rank. That weights do not get more where a step
leaves links idle is assumed: moves last a little too long."""


@dataclass(frozen=True, eq=False)
class Uneven:
    """What a step asks of experts. moving_s: so long from its beginning on weights are on their way beside it."""

    state: ExpertState
    moving_s: float = 0.0

    @property
    def name(self) -> str:
        """The same for the same."""
        return f"{self.state.name}{f' moving {self.moving_s!r}' if self.moving_s else ''} "

    def of(self, scenario: Scenario) -> Scenario:
        """The step in this state."""
        changed = scenario.variant(routing=scenario.routing.model_copy(update={"state": self.state}))
        if not self.moving_s:
            return changed
        machine = scenario.machine_spec()
        edges = Fabric(machine, scenario.cards * machine.dies_per_card.count).graph.edges
        slow = (Fault("link", f"{source} to {target}", "rate", 0.0, self.moving_s, SHARE) for source, target in edges)
        return changed.variant(faults=(*scenario.faults, *slow))
