"""Effects that nobody coded, on Atlas A2: take the cause away and the effect goes with it."""

from __future__ import annotations

import pytest

from tests.published.runs import run

SMALL = {"model__shapes__layers": "6", "batch__length_spread": "0"}


def iteration_ms(**changes: str) -> float:
    return run("a2_decode:decode_2k2k", **{**SMALL, **changes}).metrics["iteration_ms"]


def test_the_part_between_nodes_is_hidden_until_its_links_are_too_slow() -> None:
    rate, port = "machine__collectives__sdma__ladder__send__0__rate", "machine__fabric__roce__link_rate"
    free = iteration_ms(**{rate: "inf B/s", port: "inf B/s"})
    assert iteration_ms() == pytest.approx(free, rel=1e-3)
    assert iteration_ms(**{rate: "5 GB/s"}) > 1.05 * free


def test_flat_collectives_are_bound_by_the_links_between_nodes() -> None:
    assert iteration_ms(knobs__exchange="flat") > 1.3 * iteration_ms()


def test_scales_beside_the_activations_hide_their_start_up() -> None:
    slow = {"machine__collectives__sdma__startup": "200 us"}
    gain = iteration_ms(knobs__scales_beside="false") - iteration_ms()
    assert gain > 0
    assert iteration_ms(knobs__scales_beside="false", **slow) - iteration_ms(**slow) > gain


def test_a_prefetch_without_bandwidth_buys_nothing() -> None:
    assert iteration_ms() < iteration_ms(knobs__prefetch_mb="0")
    mla = [run("a2_decode:decode_2k2k", **SMALL, **changes).metrics["block_attention_ms"]
           for changes in ({}, {"knobs__prefetch_gb_s": "5"}, {"knobs__prefetch_mb": "0"})]  # fmt: skip
    assert mla[0] < 0.99 * mla[2]
    assert mla[2] - mla[1] < 0.3 * (mla[2] - mla[0])


def test_uneven_lengths_cost_waiting_and_length_aware_placement_gives_it_back() -> None:
    even, uneven = iteration_ms(), iteration_ms(batch__length_spread="0.5")
    placed = iteration_ms(batch__length_spread="0.5", batch__placement="length_aware")
    assert even < placed < uneven
    waits = [run("a2_decode:decode_2k2k", **{**SMALL, "batch__length_spread": "0.5", **more}).metrics["waiting_comm_ms"]
             for more in ({}, {"batch__placement": "length_aware"})]  # fmt: skip
    assert waits[1] < 0.5 * waits[0]


def test_hot_experts_make_their_peers_wait_and_transfers_no_longer() -> None:
    even = run("a2_decode:decode_2k2k", **SMALL, routing__skew="0")
    hot = run("a2_decode:decode_2k2k", **SMALL, routing__skew="0.6")
    assert hot.metrics["waiting_comm_ms"] > even.metrics["waiting_comm_ms"] + 0.1
    assert hot.metrics["reduce_scatter_ms"] == pytest.approx(even.metrics["reduce_scatter_ms"], rel=0.02)


def test_rearranging_experts_takes_the_waiting_back() -> None:
    """EPLB: replicas of the hottest, packed by load; spare slots cost weights to read."""
    hot = {**SMALL, "routing__skew": "0.6"}
    placed = {**hot, "knobs__placement": "eplb", "knobs__spare_experts": "1"}
    waits = [run("a2_decode:decode_2k2k", **changes).metrics["waiting_comm_ms"] for changes in (hot, placed)]
    assert waits[1] < 0.5 * waits[0]


def test_kv_that_does_not_fit_is_refused_with_the_ledger() -> None:
    from simulator.machine.memory import DoesNotFit

    with pytest.raises(DoesNotFit, match="latent cache"):
        run("a2_decode:decode_2k2k", batch__prompt_tokens="65536")
