"""What measured points say of drafts, in Braid's words: how many tokens are drafted, and how often one is accepted.

Campaigns publish no acceptance: it is what is published of the model, or of the release that ran it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Acceptance(NamedTuple):
    """Of a token that a model's own MTP layer drafts, given those before it. framework, since, until: of whose releases
    between these dates (none: all)."""

    family: str
    probability: float
    framework: str = ""
    since: str = ""
    until: str = ""


ACCEPTANCES = (
    # vllm-project/vllm: from 0.15.0 (issue 33497 of 2026-02-01, with one draft token) until pull request 36561 of
    # 2026-03-10 at least, which measures a mean length of 1.04, the MTP layer of DeepSeek's kind drafted nearly in vain
    Acceptance("glm-5", 0.04, "vllm", "2026-01-29", "2026-03-11"),
    # GLM-5's technical report (arXiv 2602.15763): a mean length of 2.76 with four drafts, 1 + p + p^2 + p^3 + p^4
    Acceptance("glm-5", 0.7),
)
"""The first that fits a point counts."""
MTP = re.compile(r"mtp, (\d+) draft tokens?")


def draft_settings(point: Mapping[str, Any], framework: str) -> dict[str, str] | None:
    """Settings of a step for what `speculative` says: none without drafts; None where they are not known."""
    said = point.get("speculative", "none")
    if said in ("none", None, False):
        return {}
    found = MTP.fullmatch(str(said))
    known = [one.probability for one in ACCEPTANCES if _is_of(point, framework, one)]
    if not found or not known:
        return None
    return {"batch.drafts": found[1], "batch.acceptance": str(known[0])}


def _is_of(point: Mapping[str, Any], framework: str, one: Acceptance) -> bool:
    date = str(point.get("date") or "")
    dated = not one.since or one.since <= date < one.until
    return point.get("family") == one.family and one.framework in ("", framework) and dated
