"""Step times between levels of imbalance against steps with the very state, and beside weights that move."""

from __future__ import annotations

from functools import cache
from math import inf

import numpy as np
import pytest

from simulator.model.expert_state import ExpertState, imbalance_of
from simulator.model.micro_batch import MicroBatch
from simulator.serving.kept import Kept
from simulator.serving.levels import Levels, weights
from simulator.serving.placing import Placing
from simulator.serving.popularity import by_score, drifted
from simulator.serving.settings import Instances
from simulator.serving.steps import StepTimes
from simulator.serving.uneven import Uneven
from tests.serving.drifting import EXPERTS, LAYERS, PLACES, engines, steps_by_imbalance
from tests.serving.services import load_of

BATCHES = {"decode": MicroBatch(0, ((1, 1500),) * 32, padded=32),
           "mixed": MicroBatch(0, ((1, 256),) * 8, ((2048, 0),) * 4, 4)}  # fmt: skip


def new_levels() -> Levels:
    settings = Instances.model_validate(engines("0.8", drift_s=1.0))
    step, kept = settings.step, Kept(settings.step, None)
    return Levels(Placing(settings), lambda experts: StepTimes(step, settings.capture, 60000, kept, {}, experts))


levels = cache(new_levels)


def state(part: float, seed: int) -> ExpertState:
    """Placed for a popularity that has so much in common with the present one."""
    random, placing = np.random.default_rng(seed), levels()._placing
    now, other = random.standard_normal((2, LAYERS, EXPERTS))
    asked, placed = by_score(now, placing.skew), placing.placed(by_score(drifted(now, other, part), placing.skew))
    ratios = [imbalance_of(own, one) for own, one in zip(asked.tolist(), placed, strict=True)]
    return ExpertState(f"test {part} {seed}", placing.layers, asked, placed, float(np.mean(ratios)))


@pytest.mark.parametrize("kind", BATCHES)
def test_a_state_takes_what_is_said_between_levels(kind: str) -> None:
    batch, exact, said = [BATCHES[kind]] * PLACES, [], []
    for number, part in enumerate((1.0, 0.97, 0.8, 0.4, 0.0)):
        experts = Uneven(state(part, number))
        exact.append(levels().exact(batch, experts))
        said.append(levels().seconds(load_of(batch)._replace(experts=experts)))
    ratios = np.array(said) / exact
    np.testing.assert_allclose(ratios, 1.0, atol=0.005)
    assert np.ptp(ratios) < 0.003  # what is off depends on the batch, hardly on the state
    if kind == "mixed":
        assert exact[-1] > 1.05 * exact[0]


def test_levels_reach_from_level_to_stale() -> None:
    found = [one.imbalance for one in levels().levels]
    assert found == sorted(found)
    assert 1.0 <= found[0] < 1.05 < 1.2 < found[-1]


def test_weights_go_on_beyond_the_last_node_and_stop_at_the_first() -> None:
    assert weights([1.0, 1.5], 1.25) == [(0.5, 0), (0.5, 1)]
    assert weights([1.0, 1.5], 2.0) == [(-1.0, 0), (2.0, 1)]
    assert weights([1.0, 1.5], 0.9) == weights([1.0], 3.0) == [(1.0, 0)]


def test_beside_moving_weights_a_step_takes_longer_as_far_as_they_go() -> None:
    batch, at = [BATCHES["mixed"]] * PLACES, state(0.8, 9)
    alone, whole = (levels().exact(batch, Uneven(at, moving_s)) for moving_s in (0.0, inf))
    assert whole > 1.01 * alone
    for moving_s in (0.0, alone / 3, inf):
        exact = levels().exact(batch, Uneven(at, moving_s))
        said = levels().seconds(load_of(batch)._replace(experts=Uneven(at, moving_s)))
        assert said == pytest.approx(exact, rel=0.015)
        assert alone <= exact <= whole


def test_half_of_a_step_beside_them_costs_half(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_imbalance(monkeypatch)
    own = new_levels()
    load = load_of([BATCHES["decode"]] * PLACES)
    alone, whole = (own.seconds(load._replace(experts=Uneven(state(0.8, 9), moving_s))) for moving_s in (0.0, inf))
    half = own.seconds(load._replace(experts=Uneven(state(0.8, 9), whole / 2)))
    assert half == pytest.approx((alone + whole) / 2)
