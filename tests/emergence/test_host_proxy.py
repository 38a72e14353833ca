"""Host-proxy RDMA: take a cause away, and its effect goes with it and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.die.memory import DoesNotFit
from simulator.errors import InputError, RunError
from simulator.spec.faults import faults_of
from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate
from tests.published.runs import run

EFA, CX7, EFA32, CX32 = "pplx:efa_ep16", "pplx:cx7_ep16", "pplx:efa_ep32", "pplx:cx7_ep32"
NO_POSTING = {"machine__nic__post": "0 us", "machine__nic__message_rate": "1 GHz"}
NO_LATENCY = {"machine__nic__latency": "0 us", "machine__nic__acknowledge": "0 us",
              "machine__nic__standing_queue": "0 kB"}
FREE_POLLING = {"machine__proxy__poll": "0 us", "machine__proxy__completion": "0 us"}


def total(name: str, **changes: str) -> float:
    return run(name, **changes).metrics["dispatch_combine_us"]


def dispatch(name: str, **changes: str) -> float:
    return run(name, **changes).metrics["dispatch_us"]


def busy_us(result: Result, stream: str) -> float:
    """Work of a stream (by the start of its name) on an average rank, in us."""
    columns = result.columns
    rows = np.char.startswith(columns["stream"].astype(str), stream)
    return float((columns["end_ps"] - columns["start_ps"])[rows].sum()) / 1e6 / result.header["ranks"]


def sent_bytes(result: Result) -> float:
    rows = result.columns["kind"] == "send"
    return float(result.columns["wire_bytes"][rows].sum())


@pytest.mark.slow
def test_posting_that_costs_nothing_shortens_dispatch_by_the_scatter_of_routes() -> None:
    """Routes stand before the tokens in the worker's queue: 31 posts of 0.5 us; later posts hide under the wire."""
    gain = dispatch(EFA32) - dispatch(EFA32, **NO_POSTING)
    assert 10 < gain < 22
    assert total(EFA32) - total(EFA32, **NO_POSTING) < 1.6 * gain
    assert total(CX32) - total(CX32, **NO_POSTING) < 0.5 * gain  # ConnectX-7 posts three times as fast
    free = run(EFA32, **NO_POSTING)
    assert sent_bytes(free) == sent_bytes(run(EFA32))
    assert busy_us(free, "nic 0 out") == pytest.approx(busy_us(run(EFA32), "nic 0 out"), rel=1e-9)


def test_a_wire_without_latency_saves_it_once_per_exchange() -> None:
    """On ConnectX-7 there is no latency under load: dispatch and combine each save one way, and no bytes."""
    near = run(CX7, **NO_LATENCY)
    saved = total(CX7) - near.metrics["dispatch_combine_us"]
    assert saved == pytest.approx(2 * 5.28, rel=0.25)
    assert busy_us(near, "nic 0 out") == pytest.approx(busy_us(run(CX7), "nic 0 out"), rel=1e-9)


def test_polling_that_costs_nothing_changes_little() -> None:
    saved = total(EFA) - total(EFA, **FREE_POLLING)
    assert 0 < saved < 3


def test_one_card_instead_of_two_sends_everything_through_half_the_bytes_a_second() -> None:
    two, one = run(EFA), run(EFA, machine__nic__per_die="1")
    assert sent_bytes(one) == sent_bytes(two)
    wire = (busy_us(two, "nic 0 out") + busy_us(two, "nic 1 out")) / 2
    assert busy_us(one, "nic 0 out") == pytest.approx(2 * wire, rel=1e-6)
    assert one.metrics["dispatch_combine_us"] - two.metrics["dispatch_combine_us"] == pytest.approx(wire, rel=0.25)
    assert run("point_to_point:efa").metrics["paged_64KiB_gbit_s"] == pytest.approx(
        2 * run("point_to_point:efa", machine__nic__per_die="1").metrics["paged_64KiB_gbit_s"], rel=0.01
    )


def test_a_write_per_token_instead_of_one_per_peer_costs_posting_and_not_bytes() -> None:
    few = {"batch__per_rank": "32"}
    batched, single = run(EFA, **few), run("pplx:uccl_ep16", knobs__threads="1", **few)
    tokens = (single.columns["kind"] == "send").sum()
    assert tokens > 10 * (batched.columns["name"][batched.columns["kind"] == "send"] == "dispatch.tokens").sum()
    assert single.metrics["dispatch_us"] > 3 * batched.metrics["dispatch_us"]
    quick = run("pplx:uccl_ep16", knobs__threads="1", machine__proxy__command="0 us", machine__nic__post="0 us",
                machine__nic__message_rate="0.01 GHz", **few)
    assert quick.metrics["dispatch_us"] < 1.05 * batched.metrics["dispatch_us"]


def test_a_generic_proxy_is_slower_by_its_serial_commands_at_both_ends_of_their_cost() -> None:
    few = {"batch__per_rank": "32"}
    low, high = (dispatch("pplx:uccl_ep16", knobs__threads="1", machine__proxy__command=f"{cost} us", **few)
                 for cost in (0.9, 1.7))
    commands = 32 * 8 / 2
    assert high - low == pytest.approx(0.8 * commands, rel=0.05)
    assert dispatch("pplx:uccl_ep16", machine__proxy__command="1.7 us", **few) < high / 2  # four threads share them


@pytest.mark.slow
def test_private_buffers_hide_the_exchange_of_routes_and_nothing_without_latency() -> None:
    none = {"knobs__private_tokens": "0"}
    exposed = dispatch(EFA32, **none) - dispatch(EFA32)
    assert exposed > 10
    free = {**NO_LATENCY, **NO_POSTING}
    assert dispatch(EFA32, **none, **free) - dispatch(EFA32, **free) < 0.4 * exposed
    assert dispatch(EFA32, knobs__private_tokens="128") == pytest.approx(dispatch(EFA32), rel=0.03)


@pytest.mark.slow
def test_templates_save_about_twenty_microseconds_that_grow_with_the_peers() -> None:
    saved = {ranks: total(f"pplx:cx7_ep{ranks}", knobs__templates="false") - total(f"pplx:cx7_ep{ranks}")
             for ranks in (16, 64)}
    assert 10 < saved[64] < 30
    assert saved[16] < 0.5 * saved[64]


def test_nvlink_takes_the_node_s_share_of_the_wire() -> None:
    without = run(EFA, knobs__nvlink="false")
    assert sent_bytes(without) > 1.6 * sent_bytes(run(EFA))
    assert without.metrics["dispatch_combine_us"] > 1.3 * total(EFA)


def test_senders_in_the_same_order_make_their_own_incast() -> None:
    assert total(EFA, knobs__rotated="false") > 1.1 * total(EFA)


def test_a_smaller_model_moves_fewer_bytes() -> None:
    large, small = run(EFA), run(EFA, model="qwen3_235b")
    assert sent_bytes(small) / sent_bytes(large) == pytest.approx(4096 / 7168, rel=0.03)
    assert small.metrics["dispatch_combine_us"] < 0.85 * large.metrics["dispatch_combine_us"]


def test_uneven_routing_makes_ranks_wait_for_the_fullest_one() -> None:
    even, drawn, skewed = (total(EFA, routing__skew=skew) for skew in ("none", "0", "0.5"))
    assert even < drawn < 1.15 * even
    assert skewed > 1.05 * drawn


def test_a_host_that_cannot_be_reached_in_time_hides_under_nothing() -> None:
    """Slower flags over PCIe are paid once per flag on the way: two to the host and one back in dispatch."""
    slow = {"machine__proxy__flag_to_host": "10.5 us", "machine__proxy__flag_to_gpu": "10.5 us"}
    assert dispatch(CX7, **slow) - dispatch(CX7) == pytest.approx(20, abs=3)


@pytest.mark.parametrize("ranks", [8, 16, 32])
def test_every_group_size_works_and_moves_what_it_must(ranks: int) -> None:
    result = simulate(load_scenario(EFA).replace({"cards": str(ranks)}))
    if ranks == 8:
        assert not (result.columns["wire_bytes"][result.columns["kind"] == "send"] > 1024).any()
        return
    expected = 128 * 8 * (1 - 8 / ranks) * ranks * (7408 + 14336) + ranks * (ranks - 1) * 1024
    assert sent_bytes(result) == pytest.approx(expected, rel=0.01)


def test_prefill_sends_overflow_once_routes_are_known() -> None:
    result = run("pplx:prefill")
    columns = result.columns
    overflow = columns["wire_bytes"][(columns["name"] == "dispatch.overflow") & (columns["kind"] == "send")].sum()
    assert overflow > 0.9 * columns["wire_bytes"][np.char.startswith(columns["name"].astype(str), "dispatch")
                                                  & (columns["kind"] == "send")].sum()


def test_the_hops_of_the_slowest_rank_add_up_to_its_latency() -> None:
    metrics, columns = run(EFA).metrics, run(EFA).columns
    for block, last in (("dispatch", "dispatch.shuffle"), ("combine", "combine.sum")):
        hops = sum(value for name, value in metrics.items() if name.startswith(f"{block}_hop_"))
        ends = columns["end_ps"][columns["name"] == last].max() / 1e6
        starts = columns["start_ps"][np.char.startswith(columns["name"].astype(str), block)].min() / 1e6
        assert 0.8 * (ends - starts) < hops <= ends - starts + 1e-6


def test_the_critical_path_leads_over_the_wire() -> None:
    path = run(EFA).critical
    assert len({segment.rank for segment in path.segments}) > 1
    assert {"post", "send", "receive", "poll"} <= {segment.kind for segment in path.segments}
    names = [row["name"] for row in run(EFA).parameters]
    assert "nic.goodput" in names
    assert "nic.standing_queue" in names


# --- uses and faults --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_micro_batches_gain_only_at_a_large_batch() -> None:
    large = {"batch__per_rank": "256", "batch__cached_tokens": "2048"}
    for batch, low, high in (({}, 0.95, 1.4), (large, 0.5, 0.85)):
        one, two = (run("pplx_decode:ep16", knobs__micro_batches=str(parts), knobs__layers="3", **batch)
                    for parts in (1, 2))
        assert low < two.metrics["layer_us"] / one.metrics["layer_us"] < high


def test_kimi_k2_does_not_fit_one_node() -> None:
    with pytest.raises(DoesNotFit, match="routed experts"):
        run("pplx_decode:kimi_k2_one_node")


def test_kv_layer_by_layer_leaves_nothing_and_all_at_the_end_leaves_everything() -> None:
    assert run("pplx_kv:long_prompt").metrics["kv_exposed_us"] == 0
    at_the_end = run("pplx_kv:at_the_end").metrics["kv_exposed_us"]
    pages = 8 * 4096 * 576 * 2 / 43.2e9 * 1e6
    assert at_the_end > pages


def test_a_thread_that_is_away_costs_less_than_its_absence_and_a_slow_card_slows_its_peers() -> None:
    away = run("pplx_faults:proxy_away").metrics["dispatch_us"] - dispatch(EFA)
    assert 30 < away < 105
    slow = run("pplx_faults:slow_card")
    rows = (slow.columns["name"] == "combine.sum") & (slow.columns["rank"] >= 8)
    assert slow.columns["end_ps"][rows].min() / 1e6 > 1.2 * total(EFA)


@pytest.mark.parametrize(("fault", "named"), [
    ("dead_card", ["dead: rank 0's nic 0", "never completed: write 'dispatch.tokens' from rank 0 to rank 14",
                   "engine: 13 of 24 immediates", "waits for its host to set flag"]),
    ("lost_host", ["dead: rank 0's nic 0, rank 0's nic 1", "never completed: write"]),
])  # fmt: skip
def test_what_can_never_complete_is_an_error_that_names_it(fault: str, named: list[str]) -> None:
    with pytest.raises(RunError) as error:
        run(f"pplx_faults:{fault}")
    for part in named:
        assert part in str(error.value)


@pytest.mark.parametrize(("fault", "words"), [
    ("50 us: link rank16.nic0 cut", "strikes nobody: ranks are 0 to 15"),
    ("50 us: link rank0.nic2 rate 0.1", "strikes nobody: cards are 0 to 1"),
    ("50 us: proxy 16 paused for 1 us", "strikes nobody: ranks are 0 to 15"),
    ("50 us: node 2 lost", "strikes nobody: nodes are 0 to 1"),
    ("50 us: rank 0 lost for 1 us", "a lost rank does not come back"),
])  # fmt: skip
def test_a_fault_that_strikes_nobody_is_refused(fault: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        simulate(load_scenario(EFA).variant(faults=faults_of([fault])))
    assert f"fault '{fault}'" in str(error.value)


def test_a_card_that_flaps_sends_again_and_moves_what_it_must() -> None:
    """What is lost is sent again after a millisecond, in dispatch and in combine, and its peers count it once."""
    flapping = run("pplx_faults:flapping_card")
    assert 500 < flapping.metrics["dispatch_combine_us"] - total(EFA) < 2500
    again = sent_bytes(flapping) - sent_bytes(run(EFA))
    assert again > 0
    assert flapping.metrics["sent_again_mb"] == again / 1e6
    assert "sent_again_mb" not in run(EFA).metrics
    received = [np.sum(result.columns["kind"] == "receive") for result in (flapping, run(EFA))]
    assert received[0] == received[1]


def test_failover_ends_what_is_a_deadlock_without_after_one_time_to_give_up_for_each_who_learns_of_it() -> None:
    """Rank 0 and its peers lose writes of dispatch and learn of the dead card at 537 ms; peers that lost none of theirs
    by then learn of it in combine, 537 ms later. Once they know, both halves of each write leave through one card."""
    struck = run("pplx_faults:dead_card_failover")
    give_up_ps = 537e9
    errors = struck.columns["start_ps"][struck.columns["kind"] == "error"]
    assert len(errors)
    assert errors.min() >= give_up_ps
    assert 2 * give_up_ps < struck.makespan_ps < 2 * give_up_ps + 2e9
    dead = (struck.columns["rank"] == 0) & (struck.columns["stream"] == "nic 0 out")
    assert struck.columns["start_ps"][dead].max() <= 50e6
