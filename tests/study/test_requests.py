"""Requests in decode on cards of several dies."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.study.scenario import Requests

SPREAD = Requests(per_card=8, prompt_tokens=1000, output_tokens=200, length_spread=0.5)


def test_requests_of_a_card_divide_over_its_dies() -> None:
    assert SPREAD.per_die(cards=4, dies=8) == 4
    with pytest.raises(InputError, match=r"batch\.per_card is 8: .* multiple of machine\.dies_per_card, 3"):
        SPREAD.per_die(cards=4, dies=12)


def test_placement_moves_lengths_and_draws_no_others() -> None:
    arriving, packed = (SPREAD.model_copy(update={"placement": placement}).lengths(4, 8, 8, seed=1)
                        for placement in ("arrival", "length_aware"))
    assert [len(held) for held in packed] == [4] * 8
    assert sorted(sum(arriving, ())) == sorted(sum(packed, ()))
    assert max(map(sum, packed)) < max(map(sum, arriving))
    assert set(SPREAD.model_copy(update={"length_spread": 0.0}).lengths(4, 8, 8, seed=1)) == {(1100,) * 4}
