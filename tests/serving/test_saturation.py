"""More requests than a service can serve are told of."""

from __future__ import annotations

import pytest

from simulator.serving.saturation import Saturation


def test_the_worked_example() -> None:
    looked = Saturation()
    looked.look(30.0, 60, 4)
    assert looked.found is None
    looked.look(60.0, 120, 34)
    assert looked.found == {"rate_per_s": 2.0, "stable_per_s": 1.0}
    assert "2 requests a second come" in looked.text
    assert "1 a second would be stable" in looked.text


@pytest.mark.parametrize(("before", "after"), [((60, 4), (120, 9)), ((600, 300), (1200, 320)), ((60, 40), (120, 20))])
def test_a_queue_that_stays_is_none(before: tuple[int, int], after: tuple[int, int]) -> None:
    looked = Saturation()
    looked.look(30.0, *before)
    looked.look(60.0, *after)
    assert looked.found is None
