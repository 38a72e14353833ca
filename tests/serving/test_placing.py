"""Where experts are, what moves when they are placed anew, and what cannot change over time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.model.eplb import Placement
from simulator.parallel.ledger import weights_of
from simulator.serving.build import kind_of
from simulator.serving.library import load_service
from simulator.serving.placing import Placing, moves_between
from simulator.serving.settings import Instances, changed
from simulator.study.step import StepWords, step_of
from tests.serving.drifting import EXPERTS, LAYERS, PLACES, engines
from tests.serving.services import instances


def placing(mesh: str = "dp=4,ep=4", skew: str = "0.6") -> Placing:
    return Placing(Instances.model_validate(engines(skew, mesh, drift_s=1.0)))


def test_only_what_a_place_did_not_have_comes_to_it() -> None:
    before = Placement(((0, 1), (2, 3), (0, 2)))
    after = Placement(((1, 0), (0, 3), (3, 2)))
    assert moves_between(before, after) == {(0, 1): 1, (1, 2): 1}
    assert not moves_between(before, before)


def test_senders_of_an_expert_take_turns() -> None:
    before = Placement(((0,), (0,), (1,), (2,), (3,)))
    after = Placement(((0,), (1,), (0,), (0,), (0,)))
    assert moves_between(before, after) == {(0, 2): 1, (1, 3): 1, (0, 4): 1, (2, 1): 1}


@pytest.mark.parametrize("mesh", ["dp=4,ep=4", "dp=4,ep=4,redundant=2"])
def test_placed_for_a_load_every_expert_is_there_and_dies_are_level(mesh: str) -> None:
    one = placing(mesh)
    loads = np.random.default_rng(1).dirichlet(np.full(EXPERTS, 2.0), LAYERS)
    spare = 2 * ("redundant" in mesh)
    for own, placed, order in zip(loads.tolist(), one.placed(loads), one.in_order(), strict=True):
        for placement in (placed, order):
            assert set(placement.copies) == set(range(EXPERTS))
            assert {len(slots) for slots in placement.slots} == {EXPERTS // PLACES + spare}
            assert sum(placement.loads(own)) == pytest.approx(1.0)
        assert max(placed.loads(own)) * PLACES < 1.02 < max(order.loads(own)) * PLACES


def test_where_tokens_keep_to_groups_a_group_is_on_one_node() -> None:
    step = step_of(StepWords("deepseek_r1", "dgx_h200", "sglang", "dp=16,ep=16", "decode", {
        "model.shapes.layers": "5", "routing.skew": "0.6"}))  # fmt: skip
    one = Placing(Instances.model_validate({"step": step, "experts": {"drift_s": 1.0}}))
    loads = np.random.default_rng(2).dirichlet(np.full(256, 2.0), len(one.layers))
    for placement in one.placed(loads):
        halves = placement.slots[:8], placement.slots[8:]
        nodes = [{expert // 32 for die in dies for expert in die} for dies in halves]
        assert [len(groups) for groups in nodes] == [4, 4]
        assert not nodes[0] & nodes[1]


def test_redundant_slots_hold_the_first_experts_again() -> None:
    last = placing("dp=4,ep=4,redundant=2").in_order()[0].slots
    assert last[0][:3] == (0, 1, 2)
    assert last[3] == (*range(102, 128), *range(8))


def test_neighbours_that_split_an_expert_send_a_part_each() -> None:
    moves = {(0, 1): 3, (1, 0): 1}
    whole, halves = placing(), placing("dp=4,ep=2")
    assert whole.flows(2, moves) == {(0, 1): 3 * whole.expert_bytes[2], (1, 0): whole.expert_bytes[2]}
    found = halves.flows(2, moves)
    assert set(found) == {(0, 2), (1, 3), (2, 0), (3, 1)}
    assert sum(found.values()) == pytest.approx(4 * halves.expert_bytes[2])


def test_experts_weigh_what_the_ledger_says() -> None:
    one, step = placing(), engines()["step"]
    weights: Counter[str] = Counter()
    for title, _, size in weights_of(step.transformer(), step.layout, 0, drafts=False):
        weights[title] += size
    assert sum(one.expert_bytes) * EXPERTS / PLACES == pytest.approx(weights["routed experts"])


def test_a_buffer_for_a_layer_is_taken_from_the_cache() -> None:
    def kind(**experts: Any) -> Any:
        return kind_of(Instances.model_validate(engines(**experts) | {"cache": {}}), "lattice", 0, None)

    with_buffer, without = kind(step_interval=100), kind(drift_s=1.0)
    less = (without.capacity - with_buffer.capacity) * without.token_bytes
    assert less == pytest.approx(placing().buffer_bytes, abs=2 * without.token_bytes)
    assert placing().buffer_bytes == EXPERTS / PLACES * placing().expert_bytes[0]


@pytest.mark.parametrize(("settings", "why"), [
    (engines("none", drift_s=3.0), r"experts.drift_s is 3.0, but step.routing.skew is none: .* more than 0 is right"),
    (engines("0", drift_s=3.0), "step.routing.skew is 0"),
    (engines(mesh="tp=4", step_interval=10), r"experts.step_interval is 10, but step.layout.ep is 1: .* 2 places"),
    (engines(mesh="dp=4,ep=4,pp=2", drift_s=3.0), "step.layout.pp is 2: it must be 1"),
    (instances() | {"experts": {"init_expert_location": "counted"}}, "location is counted, but .* no routed experts"),
])  # fmt: skip
def test_what_cannot_change_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        Placing(Instances.model_validate(settings))


def test_other_workloads_and_bad_values_are_refused() -> None:
    dies = load_service("cloudmatrix384:service")
    with pytest.raises(InputError, match=r"experts.drift_s is 60.0, but its step is no transformer:... scenario"):
        Placing(changed(dies, {"engines.experts.drift_s": "60"}).engines)
    for key, value, why in (("drift_s", "-1", "greater than or equal to 0"), ("window_size", "0", "greater than 0"),
                            ("init_expert_location", "best", "'trivial' or 'counted'")):  # fmt: skip
        with pytest.raises(InputError, match=rf"--set engines.experts.{key}: got '{value}': .*{why}"):
            changed(dies, {f"engines.experts.{key}": value})
