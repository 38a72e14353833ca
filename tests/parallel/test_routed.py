"""Rows are conserved on their way to experts, whatever draws them and wherever copies of an expert lie."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.model.transformer import Experts
from simulator.parallel.routed import ENOUGH, SAMPLE, Routed, Routing, drawn_by_step

EXPERTS = Experts(routed=32, per_token=4, intermediate=64)


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=8).filter(any), st.sampled_from([None, 0.0, 0.5]),
       st.sampled_from([1, 2, 4, 5, 8, 64]), st.integers(0, 2), st.integers(0, 3))
def test_every_token_reaches_its_experts(tokens: list[int], skew: float | None, places: int, redundant: int,
                                         number: int) -> None:
    routed = Routed(EXPERTS, tuple(tokens), Routing(skew, 7, places, redundant), 3, number)
    assert len(routed.rows) == places
    assert sum(map(sum, routed.rows)) == sum(tokens) * EXPERTS.per_token
    assert {len(slots) for slots in routed.rows} == {-(-32 // places) + redundant}
    if skew is None:
        assert max(map(sum, routed.rows)) - min(map(sum, routed.rows)) <= 1
    if skew is not None:
        sent = [sum(row) for row in routed.sizes(16.0)]
        for count, size in zip(tokens, sent, strict=True):
            assert abs(size - count * EXPERTS.per_token * 16.0) <= places


def test_no_token_chooses_an_expert_twice() -> None:
    routed = Routed(EXPERTS, (1,), Routing(0.9, 1, 1), 0, 0)
    assert sorted(routed.rows[0])[-4:] == [1, 1, 1, 1]


def test_tokens_alone_touch_their_own_experts_and_no_others() -> None:
    """With even routing too, which spreads choices of many tokens over all experts."""
    rows = [Routed(EXPERTS, (tokens,), Routing(None, 0, 1), 0, 0).rows[0] for tokens in (1, 4, 8, 9)]
    assert [sum(map(bool, one)) for one in rows] == [4, 16, 32, 32]


def test_of_many_tokens_of_one_source_a_sample_stands_for_all() -> None:
    """Those of later tokens are as popular; more experts than a token may choose twice are no mistake."""
    sample, many = (Routed(EXPERTS, (tokens,), Routing(2.0, 3, 1), 0, 0).counts[0] for tokens in (ENOUGH, 4 * ENOUGH))
    assert (many == 4 * sample).all()


def test_micro_batches_draw_other_tokens_of_the_same_popularity() -> None:
    def popular(number: int) -> list[int]:
        rows = Routed(EXPERTS, (1000,), Routing(1.0, 5, 1), 0, number).rows[0]
        return sorted(range(32), key=lambda expert: -rows[expert])[:3]

    first, second = (Routed(EXPERTS, (1000,), Routing(1.0, 5, 1), 0, number) for number in (0, 1))
    assert first.rows != second.rows
    assert popular(0) == popular(1)


def test_many_tokens_have_the_popularity_of_few() -> None:
    few = Routed(EXPERTS, (SAMPLE,), Routing(0.8, 5, 1), 2, 0).rows[0]
    many = Routed(EXPERTS, (8 * SAMPLE,), Routing(0.8, 5, 1), 2, 0).rows[0]
    hottest = sorted(range(32), key=lambda expert: -few[expert])[:2]
    assert hottest == sorted(range(32), key=lambda expert: -many[expert])[:2]


def test_redundant_slots_even_out_popular_experts() -> None:
    def fullest(redundant: int) -> int:
        return max(map(sum, Routed(EXPERTS, (2000,), Routing(1.0, 5, 8, redundant), 0, 0).rows))

    assert fullest(1) < 0.8 * fullest(0)


@pytest.mark.parametrize("tokens", [(64,) * 4, (1,) * 4])
def test_even_routing_sends_as_much_to_all(tokens: tuple[int, ...]) -> None:
    routed = Routed(EXPERTS, tokens, Routing(None, 0, 4), 0, 0)
    assert routed.even
    assert len({size for row in routed.sizes(16.0) for size in row}) == 1


def test_steps_of_a_benchmark_draw_popularities_of_their_own() -> None:
    def popular(layer: int, number: int, first: int = 0) -> int:
        routing = Routing(0.5, 7, 8, draw=partial(drawn_by_step, first=first))
        counts = Routed(EXPERTS, (4000,) * 8, routing, layer, number).counts
        assert (counts.sum(axis=1) == 4000 * EXPERTS.per_token).all()
        return int(counts.sum(axis=0).argmax())

    assert len({popular(layer, number) for layer in range(4) for number in range(2)}) > 4
    assert popular(2, 0, first=1) == popular(2, 1)
