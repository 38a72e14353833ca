"""What the lattice says of a batch against the timeline's word, and how it finds the nodes around one."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest

from simulator.model.micro_batch import MicroBatch
from simulator.serving import steps
from simulator.serving.kept import Kept
from simulator.serving.settings import Instances
from simulator.serving.steps import Load, StepTimes, between, heaviest, lengths_about, prompts_of
from simulator.study.scenario import Scenario
from simulator.study.step import StepWords, step_of
from tests.serving.services import load_of, step, steps_by_formula

SIZES = Instances.model_fields["capture"].default


def test_what_matters_of_a_batch() -> None:
    groups = [MicroBatch(0, ((1, 100), (1, 50)), ((20, 0), (10, 30)), 1, 4), MicroBatch(0, ((1, 300),), (), 0, 4)]
    mean = (20 * 10 + 10 * 35) / 30
    assert load_of(groups) == Load(2, 4, 150, 0.75, 30, mean, 0.5, fewer=((1, 300),))
    assert load_of([groups[0], MicroBatch(0, ((1, 140),), (), 0, 4)]) == Load(2, 4, 150, 0.75, 30, mean, 0.5)
    assert load_of([MicroBatch(0, (), ((8, 0),), 1)]) == Load(0, 0, 0, 1.0, 8, 4.0, 1.0)


def test_groups_count_in_the_steps_in_which_they_have_more_tokens_than_those_with_more_requests() -> None:
    decoding, cached = np.array([4, 2, 0, 4, 1, 3]), np.array([50, 66, 900, 60, 65, 20])
    found = heaviest(decoding, cached, decoding.astype(float), 4)
    assert [(count, tokens.tolist()) for count, tokens in found] == [(4, [60, 64, 68, 72]), (2, [66, 68, 70, 72])]
    assert [count for count, _ in heaviest(np.zeros(2, int), np.zeros(2, int), np.zeros(2), 1)] == [0]


@pytest.mark.parametrize("new", [1, 16, 100, 4096, 5000])
@pytest.mark.parametrize("attended", [64, 512, 8192])
def test_prompts_of_a_node_have_its_tokens_and_attend_to_as_many(new: int, attended: int) -> None:
    prompts = prompts_of(new, attended)
    assert sum(count for count, _ in prompts) == new
    load = load_of([MicroBatch(0, (), prompts, len(prompts))])
    assert load.attended == pytest.approx(attended, rel=0.3 if len(prompts) > 1 else 0.01)


def test_weights_between_nodes_add_up_to_the_number() -> None:
    for x in (0.5, 1.0, 1.5, 3.0, 7.0, 8.0, 9.0):
        weights = between([1, 2, 4, 8], x)
        assert sum(weight for weight, _ in weights) == pytest.approx(1.0)
        assert sum(weight * node for weight, node in weights) == pytest.approx(min(max(x, 1), 8))


@pytest.mark.parametrize(("count", "padded", "want"), [
    (60, 64, [(60, 64)]), (62, 64, [(60, 64), (64, 64)]), (64, 64, [(64, 64)]), (57, 64, [(57, 64)]), (3, 4, [(3, 4)]),
    (1, 1, [(1, 1)]), (60, 0, [(56, 56), (64, 64)]), (600, 0, [(599, 599), (674, 674)]),
    (473, 0, [(473, 473)])])  # fmt: skip
def test_requests_are_between_those_that_a_graph_pads_alike(count: int, padded: int, want: list[tuple[int, int]],
                                                            monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    steps_by_formula(monkeypatch)
    rows = list(StepTimes(step(), SIZES, 10_000, Kept(step(), None))._rows(Load(count, padded)))
    assert [(first, rows) for _, first, rows in rows] == want
    assert sum(weight for weight, _, _ in rows) == pytest.approx(1.0)
    assert sum(weight * first for weight, first, _ in rows) == pytest.approx(count)


def test_a_jump_between_numbers_of_requests_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second wave of a kernel from 62 requests on."""
    def waves(_: Scenario, groups: list[MicroBatch]) -> float:
        return 1e-3 + (5e-4 if len(groups[0].decodes) > 61 else 0.0)

    monkeypatch.setattr(steps, "step_seconds", waves)
    times = StepTimes(step(), SIZES, 100_000, Kept(step(), None))
    assert [times.seconds(Load(count, 64, count * 900)) for count in (57, 60, 61, 62, 64)] == pytest.approx(
        [1e-3, 1e-3, 1e-3, 1.5e-3, 1.5e-3])  # fmt: skip


def test_the_slowest_group_counts_at_the_rows_of_the_fullest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All groups compute as many rows as the fullest; attention is each group's own, and slower of few requests."""
    def uneven(_: Scenario, groups: list[MicroBatch]) -> float:
        rows = max(len(one.decodes) for one in groups)
        return 1e-3 + 1e-5 * rows + max(sum(one.held) * 1e-7 * (2.0 if len(one.decodes) < 4 else 1.0) for one in groups)

    monkeypatch.setattr(steps, "step_seconds", uneven)
    scenario = step("tp=1,dp=2")
    times = StepTimes(scenario, SIZES, 100_000, Kept(scenario, None))
    for fewer in (3, 5, 7):
        groups = [MicroBatch(0, ((1, 500),) * 8, padded=8), MicroBatch(0, ((1, 1500),) * fewer, padded=8)]
        assert times.seconds(load_of(groups)) == pytest.approx(uneven(scenario, groups), rel=0.01), fewer


@pytest.mark.parametrize(("cached", "count"), [(1024, 1), (1024, 2), (1024, 7), (4096, 64), (16, 5)])
def test_lengths_of_a_node_lie_around_a_number(cached: int, count: int) -> None:
    lengths = lengths_about(cached, count)
    assert len(lengths) == count
    assert abs(np.mean(lengths) - cached) < 4
    assert max(lengths) - min(lengths) < min(128, cached)


def test_nodes_are_asked_once_and_near_batches_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)
    times = StepTimes(step(), SIZES, 100_000, Kept(step(), None))
    first = times.seconds(Load(62, 64, 62 * 1500))
    asked = times.simulated
    assert 0 < asked <= 12
    assert times.seconds(Load(62, 64, 62 * 1500)) == first
    for held in range(1400, 1600, 20):
        times.seconds(Load(63, 64, 63 * held))
    assert times.simulated == asked
    stretch = times.decode_seconds(Load(62, 64, 0), 62 * np.arange(1400, 1600)[None])
    assert stretch[100] == pytest.approx(first, rel=1e-12)
    assert (np.diff(stretch) >= 0).all()


# --- against every rank of every batch simulated ----------------------------------------------------------------------


def batches(count: int, groups: int, most: int, seed: int) -> list[list[MicroBatch]]:
    """Uneven ones: lengths log-normal, a few requests more or fewer in a group, four in ten with prompts in some."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        base = int(random.integers(1, most, endpoint=True))
        sizes = np.clip(base + random.integers(-2, 2, groups, endpoint=True), 1, most) if groups > 1 else [base]
        decodes = [tuple((1, int(held)) for held in np.maximum(random.lognormal(7, 0.6, size), 1)) for size in sizes]
        if random.random() < 0.4:
            prompt = (int(random.integers(1, 4000)), int(random.choice([0, 0, 2048])))
            some = random.random(groups) < (0.5 if groups > 1 else 2.0)
            some[0] = True
            found.append([MicroBatch(0, one, (prompt,) if with_prompt else (), int(with_prompt))
                          for one, with_prompt in zip(decodes, some.tolist(), strict=True)])  # fmt: skip
        else:
            padded = SIZES[bisect_left(SIZES, max(sizes))]
            found.append([MicroBatch(0, one, padded=padded) for one in decodes])
    return found


def experts() -> Scenario:
    """Eight layers of experts over eight data-parallel ranks."""
    words = {"model.shapes.layers": "8"}
    return step_of(StepWords("qwen3_30b_a3b", "dgx_h100", "vllm", "dp=8,ep=8", "decode", words))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("dense", 1), ("experts", 1), ("experts", 2)])
def test_the_lattice_is_near_the_timeline_of_uneven_batches(name: str, seed: int) -> None:
    scenario, groups, most = (step(layers=8), 1, 128) if name == "dense" else (experts(), 8, 64)
    times = StepTimes(scenario, SIZES, 400_000, Kept(scenario, None))
    errors = [times.seconds(load_of(one)) / times.exact(one) - 1 for one in batches(50, groups, most, seed)]
    assert np.abs(errors).mean() <= 0.005
    assert np.abs(errors).max() <= 0.03


def test_steps_that_are_known_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)
    kept = Kept(step(), None)
    StepTimes(step(), SIZES, 100_000, kept).seconds(Load(60, 64, 60 * 1500))
    monkeypatch.setattr(steps, "step_seconds", None)
    again = StepTimes(step(), SIZES, 100_000, kept)
    assert again.seconds(Load(60, 64, 60 * 1500)) > 0
    assert again.simulated == 0


def test_where_shares_are_given_no_others_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four groups, of which the fullest has twice what they have on average."""
    asked: list[list[MicroBatch]] = []

    def noted(_: Scenario, groups: list[MicroBatch]) -> float:
        asked.append(groups)
        return 1e-3 * len(groups[0].decodes) + 1e-6

    monkeypatch.setattr(steps, "step_seconds", noted)
    four = step().replace({"cards": "4", "layout.dp": "4", "layout.tp": "1"})
    load = Load(8, 8, 8 * 256, 0.5)
    alike = StepTimes(four, SIZES, 10_000, Kept(four, None), shares=(1.0,))
    assert alike.seconds(load) == pytest.approx(8e-3, rel=1e-3)
    assert all(len(set(groups)) == 1 and len(groups) == 4 for groups in asked)
    asked.clear()
    StepTimes(four, SIZES, 10_000, Kept(four, None)).seconds(load)
    assert any(len(set(groups)) > 1 for groups in asked)
