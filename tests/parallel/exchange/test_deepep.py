"""DeepEP's kernels: a pipeline of packing, wires and copies, with counts behind the rows, on the SMs that they have."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.program.world import record_shared
from simulator.study.library import load_scenario
from simulator.study.simulate import Result, prepare, simulate
from tests.law.timeline_laws import check_timeline

EVEN = {"routing.skew": "none"}
ROW = 7168 + 224 + 16
FEW_SMS = {"model.shapes.routed_experts": "16"}
ENDLESS = {"machine.collectives.deepep_normal.ladder.default.0.rate": "1000 TB/s",
           "machine.fabric.node.link_rate": "1000 TB/s", "machine.chip.hbm.peak": "1000 TB/s"}  # fmt: skip


@cache
def _run(name: str, changes: tuple[tuple[str, str], ...]) -> Result:
    result = simulate(load_scenario(name).replace(dict(changes)))
    check_timeline(result.columns)
    return result


def run(name: str, **changes: object) -> Result:
    return _run(name, tuple({**EVEN, **{key.replace("__", "."): str(text) for key, text in changes.items()}}.items()))


def times(name: str, **changes: object) -> tuple[float, float]:
    metrics = run(name, **changes).metrics
    return metrics["dispatch_us"], metrics["combine_us"]


def busy_us(columns: Any, *names: str, rank: int = 0) -> float:
    """Time of tasks of these names on a rank, one after the other."""
    rows = [name in names for name in columns["name"].tolist()]
    mine = (columns["rank"] == rank) & rows & (columns["kind"] != "receive")
    return float((columns["end_ps"][mine] - columns["start_ps"][mine]).sum()) / 1e6


# --- low latency ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 1])
def test_latency_grows_with_tokens_and_with_ranks(block: int) -> None:
    by_tokens = [times("deepep:ep16", batch__per_rank=tokens)[block] for tokens in (1, 8, 32, 128)]
    by_ranks = [times(f"deepep:ep{ranks}", batch__per_rank=8)[block] for ranks in (8, 16, 32)]
    for grows in (by_tokens, by_ranks):
        assert all(few < more for few, more in pairwise(grows))


@pytest.mark.parametrize(("name", "tokens"), [("deepep:ep8", 8), ("deepep:ep8", 512), ("deepep:ep16", 8),
                                              ("deepep:ep16", 128)])  # fmt: skip
def test_a_dispatch_is_no_faster_than_its_slowest_part_and_no_slower_than_all_in_turn(name: str, tokens: int) -> None:
    columns = run(name, batch__per_rank=tokens).columns
    took_us = times(name, batch__per_rank=tokens)[0]
    around = busy_us(columns, "dispatch.count") + busy_us(columns, "dispatch.shuffle")
    parts = [busy_us(columns, *names) for names in
             (("dispatch.pack",), ("dispatch.nvlink",), ("dispatch.tokens", "dispatch.counts"))]  # fmt: skip
    latency_us = 5.28 if parts[2] else 0.0
    assert around + max(parts[0], parts[1], parts[2] + latency_us) <= took_us + 1e-6
    incast_us = 1.0 + 0.2 * parts[2]
    assert took_us <= around + sum(parts) + latency_us + incast_us


def test_counts_of_every_expert_follow_the_rows_to_every_peer_even_without_tokens() -> None:
    """16 ranks of 16 experts; 8 of them have a token, the others none."""
    base = {"machine": "h800_cx7", "model": "deepseek_r1", "kernels": "pplx_2025", "cards": "16", "layout.tp": "1",
            "layout.dp": "16", "layout.ep": "16", "model.shapes.layers": "4", "batch.requests": "8",
            "machine.chip.hbm.capacity": "200 GB", "routing.skew": "0.0", "knobs.exchange": "deepep_ll"}  # fmt: skip
    columns = simulate(load_scenario("transformer:decode").replace(base)).columns
    for block in ("dispatch", "combine"):
        rows = (columns["kind"] == "send") & (columns["name"] == f"{block}.counts")
        assert set(columns["wire_bytes"][rows].tolist()) == {16 * 4.0}
        assert rows.sum() == 16 * 8, "to the 8 peers in the other node"
        tokens = (columns["kind"] == "send") & (columns["name"] == f"{block}.tokens")
        last = {rank: columns["start_ps"][rows & (columns["rank"] == rank)].min() for rank in range(8)}
        assert all(columns["end_ps"][tokens & (columns["rank"] == rank)].max(initial=0) <= last[rank] for rank in last)


def test_nothing_to_send_costs_what_does_not_grow_with_tokens() -> None:
    """On NVLink: begin, first turn, hop and grid barrier, and what one token has beyond."""
    scenario = load_scenario("deepep:h100_one_token")
    spec = scenario.machine_spec()
    kernels, engine = spec.exchange_kernels, spec.collectives["deepep_ll"]
    begin: Any = kernels["deepep_ll_dispatch"]
    floor_us = (begin.floor_s + 256 * begin.per_slot.si + engine.startup_s(1) + spec.fabric[0].latency.si + 1e-6) * 1e6
    assert floor_us < times("deepep:h100_one_token")[0] < floor_us + 0.5


def test_few_experts_have_few_sms() -> None:
    """16 experts are 16 thread blocks, which take 128 tokens in 8 turns; 256 are 128 blocks, which take one each."""
    turn_us = 2.57
    few, many = (run("deepep:h100_decode", **changes).columns for changes in (
        {key.replace(".", "__"): text for key, text in FEW_SMS.items()}, {}))  # fmt: skip
    assert busy_us(few, "dispatch.pack") == pytest.approx(8 * turn_us, rel=0.01)
    assert busy_us(many, "dispatch.pack") == pytest.approx(turn_us, rel=0.01)


def test_bf16_dispatch_moves_both_bytes_of_every_value() -> None:
    columns = run("deepep:ep16", knobs__dispatch_dtype="bf16", batch__per_rank=16).columns
    stack = run("deepep:ep16", batch__per_rank=16).columns
    sent = [float(one["wire_bytes"][(one["kind"] == "send") & (one["name"] == "dispatch.tokens")].sum())
            for one in (columns, stack)]  # fmt: skip
    assert sent[0] / sent[1] == pytest.approx((2 * 7168 + 16) / ROW, rel=1e-12)
    assert times("deepep:ep8", knobs__dispatch_dtype="bf16")[0] > 1.6 * times("deepep:ep8")[0]


# --- normal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 1])
def test_rate_by_sms_is_constant_until_the_wire(block: int) -> None:
    def beyond_floor(sms: int, **more: object) -> float:
        changes = {key.replace(".", "__"): text for key, text in more.items()}
        return times("deepep:h100_normal", batch__per_rank=8192, knobs__sms=sms, **changes)[block] - 23.7

    alone = [beyond_floor(sms, **ENDLESS) * sms for sms in (4, 8, 16, 24)]
    assert max(alone) < 1.05 * min(alone), "nothing but channels"
    assert beyond_floor(4) / beyond_floor(24) < 0.85 * 24 / 4, "NVLink decides before"
    assert beyond_floor(24) > 1.1 * beyond_floor(24, **ENDLESS)


def test_a_kernel_takes_its_sms_from_compute() -> None:
    """All while they wait for a chunk; while they work, those that send with NVLink, those that receive with a loop."""
    scenario = load_scenario("deepep:normal_ep16").replace({**EVEN, "knobs.sms": "24", "batch.per_rank": "1024"})
    program = prepare(scenario, record=record_shared).world.programs[0]
    kernels = scenario.machine_spec().exchange_kernels
    held: dict[str, set[int]] = {}
    for task in program.tasks:
        if isinstance(task.work, Work):
            if task.work.family.startswith("deepep_normal"):
                each = kernels[task.work.family].cores["sm"].count
                held.setdefault("loop", set()).add(each * len(task.work.rows))
        elif task.work.kind in ("wait_flag", "all_to_all"):
            held.setdefault(task.work.kind, set()).add(dict(task.work.cores)["sm"])
    assert held == {"wait_flag": {24}, "all_to_all": {12}, "loop": {12}}


@pytest.mark.parametrize("dtype", ["", "bf16"])
def test_skewed_tokens_arrive_as_they_left(dtype: str) -> None:
    columns = run("deepep:normal_ep16", routing__skew="0.6", batch__per_rank=256, knobs__dispatch_dtype=dtype).columns
    for name in ("dispatch.tokens", "combine.tokens"):
        sent = (columns["kind"] == "send") & (columns["name"] == name)
        received = (columns["kind"] == "receive") & (columns["name"] == name)
        assert sent.sum() == received.sum() > 0
    even = run("deepep:normal_ep16", batch__per_rank=256, knobs__dispatch_dtype=dtype)
    assert float(columns["end_ps"].max()) > float(even.columns["end_ps"].max()), "hot GPUs take longer"


# --- settings of a model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "key", "changes"), [
    ("transformer:decode", "knobs.exchange_sms", {
        "machine": "dgx_h100", "kernels": "vllm", "model": "qwen3_30b_a3b", "cards": "4", "layout.tp": "1",
        "layout.dp": "4", "layout.ep": "4", "model.shapes.layers": "1", "knobs.exchange": "deepep_normal"}),
    ("deepep:h100_normal", "knobs.sms", {"cards": "8", "batch.per_rank": "128"}),
])
def test_kernels_never_hold_all_sms_of_a_chip(scenario: str, key: str, changes: dict[str, str]) -> None:
    chosen = load_scenario(scenario).replace(changes)
    assert simulate(chosen.replace({key: "130"})).makespan_ps > 0
    for sms in (132, 200):
        right = rf"{key}={sms}: the chip of \w+ has 132 SMs; it must be 2 to 130, so that one is left for compute"
        with pytest.raises(InputError, match=right):
            simulate(chosen.replace({key: str(sms)}))


def test_settings_that_an_exchange_does_not_have_are_refused() -> None:
    scenario = load_scenario("transformer:decode")
    for changes, text in (({"knobs.exchange_sms": "24", "knobs.exchange": "deepep_ll"}, "takes no number of SMs"),
                          ({"knobs.dispatch_dtype": "bf16", "knobs.exchange": "all_to_all"}, "has none of its own")):
        with pytest.raises(InputError, match=text):
            simulate(scenario.replace({"machine": "dgx_h100", "model": "qwen3_30b_a3b", "kernels": "sglang",
                                       "cards": "8", "layout.dp": "8", "layout.ep": "8", "layout.tp": "1", **changes}))
