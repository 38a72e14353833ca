"""Effects that nobody coded: take the cause away and the effect goes with it (Atlas A3 prefill)."""

from __future__ import annotations

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.published.runs import latency_ms, run

MICRO, ONE = "a3_prefill:microbatch", "a3_prefill:dp"


def stretch(**changes: str) -> float:
    return run(MICRO, **changes).metrics["compute_stretch"]


def test_communication_on_vector_cores_makes_micro_batching_worse() -> None:
    """Mixed kernels need cube and vector cores 1:2, so vector cores that copy cost cube cores; SDMA takes none."""
    gain_sdma = latency_ms(ONE) / latency_ms(MICRO)
    gain_aiv = latency_ms(ONE, knobs__engine="aiv") / latency_ms(MICRO, knobs__engine="aiv")
    assert gain_aiv < gain_sdma
    assert latency_ms(MICRO, knobs__engine="aiv") > latency_ms(MICRO)


def test_vector_cores_that_copy_slow_the_mixed_kernels_beside_them() -> None:
    """A GEMM that starts beside an AIV exchange gets half of its cores; beside SDMA it gets all."""
    columns = run(MICRO, knobs__engine="aiv").columns
    rows = (columns["name"] == "attention.q_b") & (columns["micro_batch"] == 0)
    assert columns["solo_ps"][rows].max() > 1.3 * columns["solo_ps"][rows].min()
    columns = run(MICRO).columns
    rows = (columns["name"] == "attention.q_b") & (columns["micro_batch"] == 0)
    assert len(set(columns["solo_ps"][rows].tolist())) == 1


def test_a_host_ten_times_slower_makes_two_streams_lose() -> None:
    slow = {"machine__host__launch_eager": "530 us"}
    assert latency_ms(MICRO) < latency_ms(ONE)
    assert latency_ms(MICRO, **slow) > latency_ms(ONE, **slow)
    assert run(MICRO, **slow).measured.host_bound_ps > 100 * run(MICRO).measured.host_bound_ps


def test_a_host_that_costs_nothing_and_never_blocks_gains_little_here() -> None:
    """With 53 us per launch the host is ahead of the device: taking it away changes less than 2%."""
    free = latency_ms(MICRO, machine__host__launch_eager="0 us", knobs__read_sizes="false")
    assert 0.98 * latency_ms(MICRO) < free <= latency_ms(MICRO) * 1.001


def test_hbm_without_limit_reduces_the_stretch_and_with_l2_removes_it() -> None:
    hbm = {"machine__chip__hbm__peak": "inf B/s"}
    both = {**hbm, "machine__chip__l2__rate": "inf B/s"}
    assert 1.0 < stretch(**hbm) < stretch()
    assert stretch(**both) == pytest.approx(1.0, abs=1e-6)


def test_an_in_order_communication_stream_wants_dispatches_before_combines() -> None:
    assert latency_ms(MICRO, knobs__enqueue="in_order") > 1.05 * latency_ms(MICRO)


def test_zero_copy_collectives_stretch_compute_less() -> None:
    copied = "machine__collectives__sdma__copy_bytes"
    assert stretch(**{copied: "0"}) < stretch()


def test_a_faster_bus_shortens_communication_but_not_the_work_that_it_costs() -> None:
    """Twice the All2All rate halves dispatch and combine on one stream; under two streams memory is what counts."""
    fast = {"machine__collectives__sdma__ladder__default__0__rate": "178.4 GB/s"}
    assert latency_ms(ONE, **fast) < 0.88 * latency_ms(ONE)
    assert latency_ms(MICRO, **fast) > 0.97 * latency_ms(MICRO)


def test_prompts_and_their_order_do_not_matter_to_sequence_parallelism_only() -> None:
    uneven = ",".join(["16384"] + ["4096"] * 12 + ["1024"] * 48)
    even = ",".join(["1871"] * 61)
    assert latency_ms(ONE, batch__prompt_lengths=uneven) > 2 * latency_ms(ONE, batch__prompt_lengths=even)
    split = "a3_prefill:sp_tp_sp_one_stream"
    assert latency_ms(split, batch__prompt_lengths=uneven) < 1.3 * latency_ms(split, batch__prompt_lengths=even)


@pytest.mark.parametrize("name", [ONE, MICRO, "a3_prefill:sp_tp_sp", "a3_prefill:dp_few_prompts"])
def test_roles_give_the_unfolded_run_to_the_picosecond(name: str) -> None:
    scenario = load_scenario(name).replace({"model.shapes.layers": "6"})
    folded, unfolded = simulate(scenario), simulate(scenario, ranks="all")
    assert folded.makespan_ps == unfolded.makespan_ps
    for rank in set(folded.columns["rank"].tolist()):
        ours, theirs = folded.columns["rank"] == rank, unfolded.columns["rank"] == rank
        for column in ("issued_ps", "ready_ps", "start_ps", "end_ps", "solo_ps", "bound_by"):
            assert (folded.columns[column][ours] == unfolded.columns[column][theirs]).all(), column


@pytest.mark.slow
def test_roles_give_the_unfolded_run_to_the_picosecond_at_full_size() -> None:
    scenario = load_scenario(MICRO)
    assert simulate(scenario).makespan_ps == simulate(scenario, ranks="all").makespan_ps


def test_pairwise_flows_give_the_same_times_where_everything_is_symmetric() -> None:
    scenario = load_scenario(MICRO).replace({"model.shapes.layers": "5"})
    assert simulate(scenario).makespan_ps == simulate(scenario, exchange="pairwise").makespan_ps


def test_drawn_routing_makes_ranks_wait_for_the_slowest() -> None:
    small = {"model.shapes.layers": "5", "cards": "4", "layout.expert_parallel": "8", "batch.requests": "16"}
    even = simulate(load_scenario(ONE).replace(small))
    skewed = simulate(load_scenario(ONE).replace({**small, "routing.skew": "0.3"}))
    assert skewed.metrics["waiting_comm_ms"] > even.metrics["waiting_comm_ms"] + 0.1
    assert skewed.metrics["latency_ms"] > even.metrics["latency_ms"]
    again = simulate(load_scenario(ONE).replace({**small, "routing.skew": "0.3"}), seed=0)
    other = simulate(load_scenario(ONE).replace({**small, "routing.skew": "0.3"}), seed=1)
    assert again.makespan_ps == skewed.makespan_ps != other.makespan_ps
