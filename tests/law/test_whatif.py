"""What is free never saves more than its share of the critical path, unless the table says why."""

from __future__ import annotations

import pytest

from simulator.study.library import load_scenario
from simulator.study.whatif import Base, answered, base_of
from simulator.study.whatif_faster import FREE, TWICE, faster_rows, fasters

SMALL = {"model.shapes.layers": "4", "batch.requests": "32", "cards": "1", "layout.expert_parallel": "2"}


def base(name: str, changes: dict[str, str]) -> Base:
    return base_of(load_scenario(name).replace(changes))


@pytest.mark.parametrize(("name", "changes", "hows"), [
    ("contention:staging", {"batch.gemms": "3"}, (FREE, TWICE)), ("a3_prefill:dp", SMALL, (FREE,))])  # fmt: skip
def test_what_saves_more_than_its_share_says_so(name: str, changes: dict[str, str], hows: tuple[str, ...]) -> None:
    """And all blocks, hosts and waits of a path together are the whole path."""
    one = base(name, changes)
    asked = list(fasters(one, hows))
    rows = faster_rows(one, asked, answered(one, [each.settings for each in asked]))
    rounding = (len(one.result.critical.segments) + 2) / one.result.makespan_ps
    assert not [row.what for row in rows if row.reason]
    for row in rows:
        assert row.saved is not None
        if row.saved < -rounding or row.saved > row.share + rounding:
            assert row.remark, f"{row.what} saves {row.saved:.2%} of a share of {row.share:.2%}"
        else:
            assert not row.remark
    for each in asked:
        assert 0.0 <= each.promised <= each.most + 1e-9 <= 1.0 + 2e-9
    blocks = sum(each.share for each in asked if not each.settings[0][0].startswith("machine."))
    others = one.result.critical.shares(lambda segment: segment.what)
    assert blocks + others.get("host", 0.0) + others.get("wait", 0.0) == pytest.approx(1.0)
