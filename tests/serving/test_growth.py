"""Requests grow by a token a step, or by what their drafts yield."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.model.drafts import tokens_per_iteration
from simulator.serving.cache import BlockCache
from simulator.serving.group import Group
from simulator.serving.growth import Drafted
from simulator.serving.sequences import Sequence


def joined(group: Group, request: int, prompt: int, output: int) -> Sequence:
    """A request whose prompt is computed, with its first token."""
    one = Sequence(request, prompt, output, [])
    group.waiting.append(one)
    blocks = -(-prompt // group.block)
    assert group.cache.take(request, [], blocks) == 0
    group.begin(prompt, blocks)
    one.emitted = 1
    group.join(one)
    return one


@pytest.mark.parametrize(("drafts", "acceptance"), [(1, 0.7), (3, 0.5), (2, 0.0), (2, 1.0)])
def test_steps_are_those_of_the_expected_yield(drafts: int, acceptance: float) -> None:
    """4000 requests of 400 tokens: the mean is within 1%, and the last step may yield more than is asked for."""
    growth, tokens = Drafted(16, drafts, acceptance, seed=3), 400
    steps = []
    for request in range(4000):
        one = Sequence(request, 10, tokens, [])
        growth.join(one, 0)
        steps.append(one.steps)
    assert sum(steps) / len(steps) == pytest.approx(tokens / tokens_per_iteration(acceptance, drafts), rel=0.01)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 70), st.integers(2, 90)), min_size=1, max_size=12), st.integers(1, 7))
def test_nothing_is_left_when_all_have_gone(requests: list[tuple[int, int]], stride: int) -> None:
    group = Group(BlockCache(10_000, 16, False), Drafted(16, 2, 0.6, seed=0))
    ended = []
    for number, (prompt, output) in enumerate(requests):
        joined(group, number, prompt, output)
        ended += group.decode(min(stride, group.steps_to_end()))
    while group.decoding:
        assert group.cached == pytest.approx(sum(map(group.length, group.decoding.values())), abs=len(requests) + 1)
        ended += group.decode(group.steps_to_end())
    assert sorted(one.request for one in ended) == list(range(len(requests)))
    assert all(one.emitted == one.output for one in ended)
    assert (group.cache.used, group.promised, group.to_come, group.cached) == (0, 0, 0, 0)


def test_what_is_drawn_is_the_requests_own() -> None:
    alone, among = Drafted(16, 2, 0.6, seed=1), Drafted(16, 2, 0.6, seed=1)
    for request in range(5):
        among.join(Sequence(request, 5, 50, []), 0)
    one, other = Sequence(9, 5, 50, []), Sequence(9, 5, 50, [])
    alone.join(one, 0)
    among.join(other, 7)
    assert one.steps == other.steps
