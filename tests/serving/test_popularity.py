"""Popularity is the same power law at all times, its order drifts, and no token is lost in counting."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from simulator.serving.popularity import EPOCHS, Popularity, by_score, counted

SKEW = 0.6


def popularity(drift_s: float = 10.0, seed: int = 0) -> Popularity:
    return Popularity(6, 64, SKEW, drift_s, seed)


def test_every_layer_has_the_same_law_in_every_epoch_and_another_order() -> None:
    law = np.arange(1, 65) ** -SKEW
    one, orders = popularity(), set()
    for epoch in range(40):
        found = one.at(epoch)
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(-np.sort(-found, axis=1), np.tile(law / law.sum(), (6, 1)), rtol=1e-12)
        orders |= {tuple(np.argsort(-layer).tolist()) for layer in found}
    assert len(orders) == 6 * 40


def test_epochs_that_nothing_asked_for_change_nothing() -> None:
    every, few = popularity(), popularity()
    for epoch in range(20):
        every.at(epoch)
    assert (every.at(20) == few.at(20)).all()
    assert every.at(20) is every.at(20)
    with pytest.raises(ValueError, match="epoch 3 is over: it is 20"):
        few.at(3)


def test_scores_forget_with_the_time_constant() -> None:
    def likeness(epochs: int) -> float:
        found = []
        for seed in range(12):
            one = popularity(seed=seed)
            before = one._scores
            one.at(epochs)
            found.append(np.corrcoef(before.ravel(), one._scores.ravel())[0, 1])
        return float(np.mean(found))

    assert likeness(EPOCHS) == pytest.approx(exp(-1), abs=0.05)
    assert likeness(3 * EPOCHS) == pytest.approx(exp(-3), abs=0.05)


def test_epochs_follow_time_and_without_drift_there_is_one() -> None:
    one = popularity(16.0)
    assert [one.epoch(int(at_s * 1e12)) for at_s in (0.0, 0.99, 1.0, 31.5)] == [0, 0, 1, 31]
    assert one.until_ps(31) == 32 * 10**12
    still = popularity(0.0)
    assert still.epoch(10**18) == 0
    assert still.until_ps(0) is None


def test_what_is_counted_adds_up_and_is_exact_where_nothing_changed() -> None:
    one = popularity()
    first = one.at(0)
    assert counted([(3.0, first), (5.0, first)]) is first
    later = one.at(30)
    found = counted([(300.0, first), (100.0, later)])
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(found, 0.75 * first + 0.25 * later)


def test_by_score_gives_the_highest_score_the_highest_popularity() -> None:
    np.testing.assert_allclose(by_score(np.array([[0.1, 2.0, -1.0]]), 1.0), [[3 / 11, 6 / 11, 2 / 11]])
