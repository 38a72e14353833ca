"""Some steps are simulated as they are, and what they take corrects the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simulator.model.micro_batch import MicroBatch
from simulator.serving.audit import Audit, Mode
from simulator.serving.steps import Load

BATCH = [MicroBatch(0, ((1, 100),))]


class Times:
    """The lattice says 1 ms, or 2 ms with prompts; in truth it is 3% and 10% more."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def seconds(self, load: Load) -> float:
        return 2e-3 if load.new else 1e-3

    def decode_seconds(self, _: Load, cached: Any) -> Any:
        return np.full(cached.shape[1], 1e-3)

    def exact(self, groups: Sequence[MicroBatch], _: object = None) -> float:
        prompts = bool(groups[0].prompts)
        self.asked.append(prompts)
        return 2.2e-3 if prompts else 1.03e-3


def made(mode: Mode, seed: int = 0) -> tuple[Times, Audit]:
    times = Times()
    return times, Audit(times, mode, seed)  # type: ignore[arg-type]


def decode(audit: Audit, most: int = 10**6) -> list[float]:
    """The next stretch, so many steps at most."""
    steps = min(audit.steps_together(), most)
    found = audit.decode_seconds(Load(1), np.arange(steps)[None], lambda: BATCH)
    audit.took_place(False, steps)
    return [float(one) for one in found]


def mixed(audit: Audit) -> float:
    found = audit.mixed_seconds(Load(1, new=5), lambda: [MicroBatch(0, (), ((5, 0),))])
    audit.took_place(True, 1)
    return float(found[0])


def test_the_first_audit_comes_soon_and_later_ones_ever_further_apart() -> None:
    times, audit = made("audit")
    at, steps = [], 0
    while steps < 10_000:
        before = len(times.asked)
        stretch = decode(audit)
        if len(times.asked) > before:
            assert len(stretch) == 1, "an audited step is asked for alone"
            at.append(steps + 1)
        steps += len(stretch)
    assert 1 <= at[0] <= 8
    assert all(2 * one <= other <= 4 * one + 2 for one, other in pairwise(at))
    assert audit.interpolated == steps


def test_steps_after_an_audit_are_corrected_by_the_mean_of_all_of_their_kind() -> None:
    _, audit = made("audit")
    found = [time for _ in range(40) for time in decode(audit, 5)]
    assert found[0] in (1e-3, 1.03e-3)
    assert found[8:] == pytest.approx([1.03e-3] * (len(found) - 8))
    mixes = [mixed(audit) for _ in range(30)]
    assert mixes[8:] == pytest.approx([2.2e-3] * 22), "steps with prompts have their own"


def test_stretches_however_cut_are_audited_at_the_same_steps() -> None:
    whole, cut = made("audit", 4)[1], made("audit", 4)[1]
    ones = [time for _ in range(500) for time in decode(whole, 1)]
    more: list[float] = []
    while len(more) < 500:
        more += decode(cut, 500 - len(more))
    assert ones == more


def test_lattice_simulates_none_and_exact_every_step() -> None:
    times, audit = made("lattice")
    assert [len(decode(audit, 1000)), mixed(audit), times.asked] == [1000, 2e-3, []]
    times, audit = made("exact")
    assert [decode(audit), mixed(audit)] == [[1.03e-3], 2.2e-3]
    assert (times.asked, audit.exact, audit.interpolated) == ([False, True], 2, 0)
