"""Effects that nobody coded, on Atlas A2: take the cause away and the effect goes with it."""

from __future__ import annotations

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
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
    assert iteration_ms(knobs__exchange="flat") > 1.25 * iteration_ms()


def test_scales_beside_the_activations_hide_their_start_up() -> None:
    slow = {f"machine__collectives__sdma__{start}": "200 us" for start in ("startup_eager", "startup")}
    gain = iteration_ms(knobs__scales_beside="false") - iteration_ms()
    assert gain > 0
    assert iteration_ms(knobs__scales_beside="false", **slow) - iteration_ms(**slow) > gain


def test_a_prefetch_without_bandwidth_buys_nothing() -> None:
    assert iteration_ms() < iteration_ms(knobs__prefetch_mb="0")
    mla = [run("a2_decode:decode_2k2k", **SMALL, **changes).metrics["block_attention_ms"]
           for changes in ({}, {"knobs__prefetch_gb_s": "5"}, {"knobs__prefetch_mb": "0"})]  # fmt: skip
    assert mla[0] < 0.99 * mla[2]
    assert mla[2] - mla[1] < 0.3 * (mla[2] - mla[0])


def mla_gain(**changes: str) -> float:
    """By how much the prefetch shortens MLA."""
    on, off = (run("a2_decode:decode_2k2k", **SMALL, **changes, **more).metrics["block_attention_ms"]
               for more in ({}, {"knobs__prefetch_mb": "0"}))  # fmt: skip
    return 1 - on / off


def test_the_prefetch_buys_the_more_the_more_weights_weigh() -> None:
    gains = [mla_gain(batch__per_card=requests) for requests in ("72", "48", "8")]
    assert gains == sorted(gains)
    assert mla_gain(batch__prompt_tokens="512") > gains[0]
    assert mla_gain(machine__chip__l2__rate="10 TB/s") > 1.5 * gains[0]  # then HBM alone holds these kernels back


def test_many_kernels_find_prefetched_weights_as_the_fused_one_does() -> None:
    assert mla_gain(knobs__fused_prolog="false") > 0.7 * mla_gain()


def test_prefetched_cache_helps_only_attention_that_memory_holds_back() -> None:
    """The published shares of peak leave MLA bound by compute; on cube cores ten times as fast it is not."""
    few, fast = {"batch__per_card": "8"}, {"machine__chip__peak__cube__bf16": "3539 TFLOPS"}
    cache = {"knobs__prefetch_cache_mb": "25"}
    assert iteration_ms(**few, **cache) > 0.99 * iteration_ms(**few)
    fast_ms, slow_ms = (
        run("a2_decode:decode_2k2k", **SMALL, **few, **fast, **more).metrics["attention_ms"] for more in (cache, {})
    )
    assert fast_ms < 0.95 * slow_ms


def times(name: str, **changes: str) -> list[tuple[int, int]]:
    """Start and end of this task on rank 0, layer by layer."""
    columns = run("a2_decode:decode_2k2k", **SMALL, **changes).columns
    rows = zip(*(columns[one] for one in ("rank", "name", "start_ps", "end_ps")), strict=True)
    return [(start, end) for rank, task, start, end in rows if rank == 0 and task == name]


def test_only_an_all_to_all_waits_for_the_gate() -> None:
    for exchange, waits in (("hierarchical", False), ("all_to_all", True)):
        sent, gated = (times(name, knobs__exchange=exchange) for name in ("dispatch.activations", "gate.top_k"))
        assert {gate[1] <= send[0] for gate, send in zip(gated, sent, strict=True)} == {waits}


def test_an_all_to_all_suffers_from_slow_links_between_nodes_and_from_hot_experts() -> None:
    """Twice the bytes between nodes, none of them hidden, and those of hot experts all at one port."""
    loss: dict[str, list[float]] = {}
    for exchange in ("hierarchical", "all_to_all"):
        here = {"knobs__exchange": exchange, "model__shapes__layers": "4"}
        even = iteration_ms(**here, routing__skew="0")
        hot = iteration_ms(**here, routing__skew="0.4")
        slow = iteration_ms(**here, routing__skew="0", machine__fabric__roce__link_rate="12.5 GB/s")
        loss[exchange] = [hot / even, slow / even]
    assert all(ours < 1.02 < theirs for ours, theirs in zip(*loss.values(), strict=True))
    assert iteration_ms(batch__per_card="4") < iteration_ms(batch__per_card="4", knobs__exchange="all_to_all")


def test_what_an_all_to_all_loses_is_the_latency_of_a_step_for_every_peer() -> None:
    """Half the bytes of AllGather and ReduceScatter, all in all: faster at once, slower from peer to peer."""
    quick = {"machine__fabric__roce__latency": "0.5 us"}  # no less than inside a node
    gathered, stepped, at_once = (
        iteration_ms(knobs__exchange=one) for one in ("hierarchical", "all_to_all", "all_to_all_at_once")
    )
    assert at_once < gathered < stepped
    assert iteration_ms(knobs__exchange="all_to_all", **quick) < iteration_ms(**quick)


def test_draft_passes_after_the_first_have_one_query_token() -> None:
    columns = run("a2_decode:decode_2k2k", **SMALL, batch__draft_tokens="2").columns
    rows = zip(*(columns[one] for one in ("rank", "name", "layer", "flops")), strict=True)
    flops = {layer: flops for rank, task, layer, flops in rows if (rank, task) == (0, "attention.core")}
    assert flops[5] == flops[6] == 3 * flops[7]


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
    from simulator.die.memory import DoesNotFit

    with pytest.raises(DoesNotFit, match="latent cache"):
        run("a2_decode:decode_2k2k", batch__prompt_tokens="65536")


def test_from_peer_to_peer_roles_give_the_unfolded_run_to_the_picosecond() -> None:
    scenario = load_scenario("a2_decode:even_all_to_all").replace({"model.shapes.layers": "5"})
    folded, unfolded = simulate(scenario), simulate(scenario, ranks="all")
    assert folded.header["classes"] < unfolded.header["classes"]
    assert folded.makespan_ps == unfolded.makespan_ps
