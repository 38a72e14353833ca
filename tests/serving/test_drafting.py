"""What is known of drafts of measured points."""

from __future__ import annotations

import pytest

from simulator.serving.drafting import draft_settings


@pytest.mark.parametrize("point", [{}, *({"speculative": nothing} for nothing in ("none", None, False))])
def test_no_drafts_set_nothing(point: dict[str, object]) -> None:
    assert draft_settings({"family": "glm-5"} | point) == {}


@pytest.mark.parametrize(("said", "drafts"), [("mtp, 1 draft token", "1"), ("mtp, 3 draft tokens", "3")])
def test_drafts_and_how_often_one_is_accepted(said: str, drafts: str) -> None:
    settings = draft_settings({"family": "glm-5", "speculative": said})
    assert settings == {"batch.drafts": drafts, "batch.acceptance": "0.7"}


@pytest.mark.parametrize(("family", "said"), [("glm-5", "eagle3, 3 draft tokens"), ("another", "mtp, 1 draft token")])
def test_what_is_not_known_is_not_simulated(family: str, said: str) -> None:
    assert draft_settings({"family": family, "speculative": said}) is None
