"""Draft layers, and the passes in which they run."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.model.drafts import check_drafts, draft_layers, passes, tokens_per_iteration
from simulator.model.library import transformer_of
from simulator.spec.model import load_model


def test_the_last_draft_layer_runs_again_and_the_first_pass_catches_up() -> None:
    model = transformer_of(load_model("deepseek_r1"))
    assert [(list(numbers), queries) for numbers, _, queries in passes(model, 2, range(61))] == [
        (list(range(61)), 3), ([61], 3), ([62], 1)]
    assert draft_layers(model, 3) == model.drafts * 3
    assert len(list(passes(model, 0, range(61)))) == 1


def test_without_an_mtp_layer_a_dense_layer_drafts_or_none_does() -> None:
    dense, mixed = (transformer_of(load_model(name)) for name in ("llama_3_1_70b", "qwen3_235b"))
    assert draft_layers(dense, 2) == dense.layers[-1:] * 2
    with pytest.raises(InputError, match="qwen3_235b has no draft layer of its own"):
        draft_layers(mixed, 1)
    with pytest.raises(InputError, match="asked is 1, but llama_3_1_70b has no MTP layer to draft with: it must be 0"):
        check_drafts(dense, 1, "asked")


def test_drafts_that_are_all_accepted_are_all_yielded() -> None:
    assert tokens_per_iteration(1.0, 3) == 4
    assert tokens_per_iteration(0.5, 2) == 1.75
    assert tokens_per_iteration(0.9, 0) == 1
