"""What the authors of three published deployments chose is what a search finds first: signs, not sizes.

Experts are loaded alike (`routing.skew` none) where the sources say so or say nothing, and drawn where waiting for the
slowest rank is what is at stake. Precision on Ascend is that of the sources: INT8, but for the key/value up-projection
and the router.
"""

from __future__ import annotations

from functools import cache

import pytest

from simulator.search.deployment import Ask, Engine, Found
from simulator.search.front import best, front
from simulator.search.kept import Kept
from simulator.search.search import Outcome, search
from simulator.search.space import axes_of, space_of
from simulator.study.processes import serial

Axes = dict[str, tuple[str, ...]]
INT8: Axes = {"precision": ("all=int8,kv_b=bf16,router=fp32",), "pp": ("1",), "ep": ("all",), "mode": ("apart",),
              "schedule": ("",), "drafts": ("1",)}  # fmt: skip
EVEN: Axes = {"routing.skew": ("none",)}
A2 = Ask("deepseek_r1", "atlas_a2", 48, 64, 2048, 2048, ttft_ms=1000, tpot_ms=100, acceptance=0.7)
CM384 = Ask("deepseek_r1", "cloudmatrix384", 16, 384, 3200, 2000, ttft_ms=20000, tpot_ms=50, acceptance=0.7)
DIES: Axes = {"tp": ("1",), "o_proj": ("2",), "dense": ("2",), "head": ("8",), "embedding": ("1",),
              "tokens": ("4096",)}  # fmt: skip
H20 = Ask("deepseek_r1", "h20_node", 8, 8, 1024, 2048, ttft_ms=60000, tpot_ms=200)


def searched(ask: Ask, changes: Axes) -> Outcome:
    axes = axes_of(ask, changes)
    return search(ask, space_of(ask, axes, changes), serial, Kept(None, pytest.fail))


def top(outcome: Outcome) -> list[Found]:
    return best(outcome.points, "tok_s_per_gpu", 20)


def said(engine: Engine | None, key: str) -> str:
    """A setting of an engine, or an axis of its mesh; "" where it is not told."""
    assert engine is not None
    axes = dict(part.split("=") for part in engine.mesh.split(","))
    return (axes | dict(engine.settings)).get(key, "")


def steps(outcome: Outcome, **wanted: str) -> dict[int, float]:
    """Seconds of a step by requests of a group, of the one engine of which this is said."""
    found = [one for one in outcome.sheets
             if one.decode and all(said(one.engine, key.replace("__", ".")) == value for key, value in wanted.items())]
    assert len(found) == 1
    return dict(found[0].decode)


# --- Atlas A2 -------------------------------------------------------------------------------------------------------


@cache
def a2_prefill() -> Outcome:
    """Heads or requests split over 16 or 32 cards, and what is gathered for attention: hidden states or latents."""
    return searched(A2, INT8 | EVEN | {"cards": ("16", "32"), "tp": ("1", "16"), "o_proj": ("2",), "dense": ("1",),
                                       "exchange": ("all_gather",), "residual": ("replicated", "split",
                                                                                 "split_latents"),
                                       "tokens": ("16384",)})  # fmt: skip


def test_a2_prefills_on_two_nodes_with_heads_split_and_parallelism_converted() -> None:
    first = top(a2_prefill())[0]
    assert (said(first.deployment.prefill, "tp"), said(first.deployment.prefill, "dp")) == ("16", "")
    assert said(first.deployment.prefill, "knobs.residual") == "split_latents"
    assert (said(first.deployment.engines, "dp"), said(first.deployment.engines, "ep")) == ("32", "32")


def test_each_step_that_a2_took_makes_prefill_shorter() -> None:
    """AllReduces, then FlashComm, then conversion, of eight prompts: each 10% or more; the last within a twentieth of
    the 631 ms that were published."""
    taken = [dict(one.prefill)[8] for residual in ("replicated", "split", "split_latents")
             for one in a2_prefill().sheets
             if (said(one.engine, "tp"), said(one.engine, "dp"), said(one.engine, "knobs.residual"))
             == ("16", "", residual)]  # fmt: skip
    assert taken[0] > 1.1 * taken[1] > 1.1**2 * taken[2]
    assert taken[2] == pytest.approx(0.631, rel=0.05)


def test_a2_decodes_on_32_cards_with_all_gather_and_reduce_scatter() -> None:
    """An All2All goes from peer to peer between nodes; on fewer cards experts leave no room for requests."""
    outcome = searched(A2._replace(ttft_ms=20000), INT8 | EVEN | {
        "cards": ("8", "16", "32"), "tp": ("1",), "dense": ("8",), "head": ("8",), "embedding": ("8",),
        "exchange": ("all_gather", "all_to_all"), "tokens": ("2048",)})  # fmt: skip
    first, *others = top(outcome)
    chosen = first.deployment.engines
    assert (said(chosen, "ep"), said(chosen, "knobs.exchange")) == ("32", "all_gather")
    assert {said(one.deployment.engines, "knobs.exchange") for one in others} == {"all_to_all"}
    assert first.tok_s_per_gpu > 2 * others[0].tok_s_per_gpu
    assert outcome.refused["memory"] == 4, "both exchanges on 8 and on 16 cards"


# --- CloudMatrix384 -------------------------------------------------------------------------------------------------


@cache
def cm384_exchanges() -> Outcome:
    return searched(CM384, INT8 | EVEN | DIES | {"cards": ("16", "144"),
                                                 "exchange": ("all_gather", "all_to_all", "put_collect")})


@pytest.mark.slow
def test_cloudmatrix_decodes_on_many_dies_with_fused_dispatch_and_combine() -> None:
    first, *others = top(cm384_exchanges())
    chosen = first.deployment.engines
    assert (said(chosen, "ep"), said(chosen, "knobs.exchange")) == ("288", "put_collect")
    assert (said(others[0].deployment.engines, "ep"), said(others[-1].deployment.engines, "knobs.exchange")) == (
        "288", "all_gather")


@pytest.mark.slow
def test_fused_dispatch_and_combine_are_shortest_with_few_requests_on_many_dies() -> None:
    """What they save is starts of exchanges, and that matters most where steps are short."""
    fused, rows, gathered = (steps(cm384_exchanges(), ep="288", knobs__exchange=one)
                             for one in ("put_collect", "all_to_all", "all_gather"))
    assert 1.05 * fused[1] < rows[1] < gathered[1]
    few = steps(cm384_exchanges(), ep="32", knobs__exchange="put_collect")
    assert all(seconds < few[count] for count, seconds in fused.items() if count in few)


@pytest.mark.slow
def test_two_micro_batches_win_above_some_batch_and_lose_below() -> None:
    """Attention of one beside experts of the other, each on cores of its own, hides waiting for uneven dies; with few
    requests kernels on fewer cores take longer than that. The hottest of 256 experts is assumed to get 1.6 times the
    mean, as in `cm384_decode:decode_50ms`."""
    outcome = searched(CM384, INT8 | DIES | {
        "cards": ("144",), "shared_places": ("32",), "exchange": ("put_collect",), "routing.skew": ("0.1",),
        "schedule": ("", "side_by_side"), "cores": ("16/8",)})  # fmt: skip
    schedules = [said(one.deployment.engines, "knobs.schedule") for one in front(outcome.points)]
    assert schedules[0] == "", "most tokens of a user"
    assert schedules[-1] == "side_by_side", "most tokens of a GPU"
    assert said(top(outcome)[0].deployment.engines, "knobs.schedule") == "side_by_side"
    one, two = (steps(outcome, knobs__schedule=schedule) for schedule in ("", "side_by_side"))
    assert two[2] > one[1] * 1.1
    assert two[48] < one[48]


# --- FlowMLA on H20 -------------------------------------------------------------------------------------------------


def test_h20_attends_data_parallel_with_an_output_projection_that_is_gathered() -> None:
    """All of attention on every card does not fit; with a share of the output projection 2.6 times as many requests do
    as were published to fit tensor parallel, and in all they get more tokens. The server has all memory that the
    machine's file gives it, by a published launch flag."""
    outcome = searched(H20, {
        "mode": ("together",), "cards": ("8",), "pp": ("1",), "ep": ("1",), "tp": ("1", "8"), "dense": ("8",),
        "head": ("8",), "shared": ("8",), "knobs.gathered.modules": ("", "o"),
        "knobs.gathered.engine": ("nccl_background",), "engines.cache.gpu_memory_utilization": ("1",),
        "tokens": ("8192",)})  # fmt: skip
    first, second = top(outcome)
    chosen = first.deployment.engines
    assert (said(chosen, "dp"), said(chosen, "knobs.gathered.modules")) == ("8", "o")
    assert said(second.deployment.engines, "tp") == "8"
    assert first.requests == 136
    assert first.requests > 2 * second.requests
    assert first.tok_s_per_gpu > 1.1 * second.tok_s_per_gpu
    assert outcome.refused["memory"] == 1, "without gathered weights"
