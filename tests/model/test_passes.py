"""Passes hold what the groups have to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.model.passes import decode_batches, prefill_passes, prompt_batches

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=6)


@given(st.lists(lengths, min_size=1, max_size=4), st.integers(0, 50), st.integers(0, 200))
def test_every_prompt_token_is_in_one_pass_behind_those_before_it(groups: list[list[int]], prefix: int,
                                                                  budget: int) -> None:
    made = prefill_passes(groups, prefix, budget)
    for number, prompts in enumerate(groups):
        own = [one[number] for one in made if one[number].prompts]
        assert sum(new for one in own for new, _ in one.prompts) == sum(prompts)
        assert sum(one.ends for one in own) == len(prompts)
        assert not budget or max(one.tokens for one in own) <= budget
        ends = [before + new for one in own for new, before in one.prompts]
        assert {prefix + length for length in prompts} <= set(ends)


def test_a_group_without_prompts_left_takes_part_with_a_token() -> None:
    first, second = prefill_passes([[100, 100], [50]], 0, 100)
    assert [one.tokens for one in first] == [100, 50]
    assert [(one.tokens, one.prompts) for one in second] == [(100, ((100, 0),)), (1, ())]


def test_requests_are_padded_to_the_fullest_group() -> None:
    assert [one.tokens for one in decode_batches([(9, 8, 7), (5,)], 2)] == [6, 6]
    assert [one.tokens for one in prompt_batches([(60, 0), (40, 9), (20, 0)], 2)] == [60, 60]
