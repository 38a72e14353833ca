"""Micro-batches hold what the batch held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.model.micro_batch import MicroBatch, parted

pairs = st.tuples(st.integers(1, 40), st.integers(0, 500))


@given(st.lists(pairs, max_size=8), st.lists(pairs, max_size=8), st.integers(1, 4))
def test_parts_hold_every_request_and_token_once(decodes: list[tuple[int, int]], prompts: list[tuple[int, int]],
                                                 parts: int) -> None:
    batch = MicroBatch(0, tuple(decodes), tuple(prompts), len(prompts))
    try:
        cut = parted(batch, parts)
    except ValueError:
        assert len(decodes) < parts
        return
    assert sorted(one for part in cut for one in part.decodes) == sorted(decodes)
    assert sum(new for part in cut for new, _ in part.prompts) == sum(new for new, _ in prompts)
    assert sum(part.ends for part in cut) == len(prompts)
    assert sum(part.sampled for part in cut) == batch.sampled
    assert [part.number for part in cut] == list(range(parts))


def test_a_prompt_that_is_cut_sees_what_was_before() -> None:
    first, second = parted(MicroBatch(prompts=((10, 3),), ends=1), 2)
    assert (first.prompts, first.ends) == (((5, 3),), 0)
    assert (second.prompts, second.ends) == (((5, 8),), 1)


def test_a_part_without_work_is_refused() -> None:
    with pytest.raises(ValueError, match="2 micro-batches need 2 requests on every data-parallel rank"):
        parted(MicroBatch(decodes=((1, 5),)), 2)


def test_padding_counts_as_tokens() -> None:
    batch = MicroBatch(decodes=((2, 9),) * 3, padded=8)
    assert (batch.tokens, batch.sampled, batch.drafting(1, 4).tokens) == (8, 6, 4)
