"""Exchanges with a copy per node: chunks overlap the wire with NVLink, and fewer nodes per token cross less."""

from __future__ import annotations

from random import Random

import pytest

from simulator.study.library import load_scenario
from tests.published.runs import run
from workloads.moe_exchange import copies

EP16, EP32 = "deepep:normal_ep16", "deepep:normal_ep32"
ENDLESS = {"machine__collectives__deepep_normal__ladder__default__0__rate": "1000 TB/s",
           "machine__fabric__node__link_rate": "1000 TB/s"}  # fmt: skip


def times(name: str, **changes: str) -> tuple[float, float]:
    metrics = run(name, **changes).metrics
    return metrics["dispatch_us"], metrics["combine_us"]


@pytest.mark.parametrize("block", [0, 1])
def test_chunks_let_the_wire_and_nvlink_work_at_the_same_time(block: int) -> None:
    """In one piece each waits for the other; in many the slower one of the two is what is left."""
    whole, chunks = (times(EP32, knobs__chunk_tokens=tokens)[block] for tokens in ("4096", "320"))
    alone = times(EP32, **ENDLESS)[block]
    assert whole > 1.25 * chunks
    assert alone < chunks < 1.25 * alone


def test_inside_two_nodes_nvlink_has_more_to_do_than_the_cards() -> None:
    assert times(EP16, **ENDLESS)[0] < 0.75 * times(EP16)[0]
    assert times(EP32, **ENDLESS)[0] > 0.85 * times(EP32)[0]


def test_tokens_that_keep_to_fewer_nodes_cross_less() -> None:
    """Two of four nodes instead of four: half a copy leaves for each of three nodes, instead of 0.9."""
    sent = {}
    for nodes in ("2", "4"):
        columns = run(EP32, knobs__nodes_per_token=nodes).columns
        rows = (columns["kind"] == "send") & (columns["name"] == "dispatch.tokens")
        sent[nodes] = float(columns["wire_bytes"][rows].sum())
    assert sent["2"] / sent["4"] == pytest.approx(2 * (1 - 0.5**8) / (4 * (1 - 0.75**8)), rel=0.01)
    assert times(EP32, knobs__nodes_per_token="2")[0] < 0.75 * times(EP32)[0], "NVLink has as much to do"


def test_few_tokens_cross_as_well() -> None:
    columns = run(EP16, batch__per_rank="4").columns
    rows = (columns["kind"] == "send") & (columns["rank"] == 0)
    assert columns["wire_bytes"][rows].sum() == 4 * (7168 + 224 + 16) + 4 * 2 * 7168


def test_one_node_needs_no_card() -> None:
    result = run(EP16, cards="8")
    assert not (result.columns["kind"] == "send").any()
    assert result.metrics["dispatch_us"] > 0


def test_copies_are_those_of_drawn_experts() -> None:
    scenario = load_scenario(EP32)
    found, random, tokens = copies(scenario.case(scenario.machine_spec(), 0)), Random(1), 20_000
    drawn = [random.sample(range(256), 8) for _ in range(tokens)]  # 8 experts on each of 32 GPUs
    nodes, gpus = (sum(len({expert // each for expert in experts}) for experts in drawn) / tokens for each in (64, 8))
    assert found.returning / found.tokens == pytest.approx(nodes, rel=0.003)
    assert found.inside.leaving / found.tokens == pytest.approx(gpus, rel=0.003)
    assert found.leaving == pytest.approx(found.returning * 3 / 4)
