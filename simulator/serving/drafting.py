"""What measured points say of drafts, in Braid's words: how many tokens are drafted, and how often one is accepted.

Campaigns publish no acceptance: it is what is published of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ACCEPTANCE = {
    # GLM-5's technical report (arXiv 2602.15763): a mean length of 2.76 with four drafts, 1 + p + p^2 + p^3 + p^4
    "glm-5": 0.7,
}
"""By family: of a token that a model's own MTP layer drafts, given those before it."""
MTP = re.compile(r"mtp, (\d+) draft tokens?")


def draft_settings(point: Mapping[str, Any]) -> dict[str, str] | None:
    """Settings of a step for what `speculative` says: none without drafts; None where they are not known."""
    said = point.get("speculative", "none")
    if said in ("none", None, False):
        return {}
    found, acceptance = MTP.fullmatch(str(said)), ACCEPTANCE.get(str(point.get("family")))
    if not found or acceptance is None:
        return None
    return {"batch.drafts": found[1], "batch.acceptance": str(acceptance)}
