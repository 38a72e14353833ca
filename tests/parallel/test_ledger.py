"""What follows from the modules' sizes, in the whole model and in its stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.model.library import load_transformer
from simulator.parallel.ledger import cache_bytes
from simulator.parallel.mesh import Mesh

R1 = load_transformer("deepseek_r1")
TOKENS = [1000, 24]


def test_draft_layers_have_a_cache_too_where_they_are_loaded() -> None:
    whole, drafting = (cache_bytes(R1, Mesh(), TOKENS, drafts=drafts) for drafts in (False, True))
    assert whole == 1024 * 61 * 576 * 2
    assert drafting == pytest.approx(whole * 62 / 61)
    assert cache_bytes(replace(R1, drafts=()), Mesh(), TOKENS, drafts=True) == whole


def test_stages_keep_what_the_model_does_and_the_last_one_the_drafts() -> None:
    stages = [cache_bytes(R1, Mesh(pp=4), TOKENS, stage, drafts=True) for stage in range(4)]
    assert sum(stages) == cache_bytes(R1, Mesh(), TOKENS, drafts=True)
    assert stages[3] == stages[0]  # 61 layers and a draft: 16, 15, 15, and 15 with the draft
