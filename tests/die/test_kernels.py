"""Laws of kernels: tiles, waves, bytes and latency from shapes, on the tiny machine and on Atlas A3's published points.

Tiny: 4 cube cores of 1 TFLOP/s (BF16), tiles of 100 x 200, 400 GB/s on chip, 100 GB/s of HBM.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.die.kernels import Cost, Work, cost_of, score_elements, units_of
from simulator.model import ops
from simulator.program.rank import Rank
from simulator.spec.load import load_machine
from tests.replay.small import TINY, run, tiny

A3 = load_machine("atlas_a3")
ROUND = TINY.kernels["round"]


def tiny_cost(work: Work) -> Cost:
    return cost_of(work, TINY.chip, ROUND)


def a3_cost(work: Work) -> Cost:
    return cost_of(work, A3.chip, A3.kernels["cann_recipes_2025"])


def solo_s(cost: Cost, units: int, rates: tuple[float, float]) -> float:
    """The ideal roofline: the longest of compute, ports, L2 and HBM; rates: of L2 and HBM."""
    ports = cost.onchip_bytes / (units * cost.unit_rate_bytes_per_s)
    return max(cost.compute_s(units), ports, cost.onchip_bytes / rates[0], cost.hbm_bytes / rates[1])


# products -------------------------------------------------------------------------------------------------------------


def test_the_worked_example_of_the_module() -> None:
    cost = a3_cost(ops.gemm(8192, 8192, 8192))
    assert cost.onchip_bytes == 8192**3 * (1 / 128 + 1 / 256) + 2 * 8192**2
    assert cost.onchip_bytes == pytest.approx(6.58e9, rel=1e-3)
    assert cost.compute_s(24) == pytest.approx(1.46e-3 * 86 / 85.3, rel=2e-3)  # 2048 tiles on 24 cores
    assert cost.onchip_bytes / 3.5e12 == pytest.approx(1.88e-3, rel=1e-3)
    assert cost.compute_s(24) / (cost.onchip_bytes / 3.5e12) == pytest.approx(0.78, abs=0.006)


@pytest.mark.parametrize(("m", "n", "tiles", "want"), [
    (1, 1, 1, 1), (100, 200, 1, 1), (101, 200, 2, 2), (100, 201, 2, 2), (300, 400, 6, 4), (1000, 2000, 100, 4)])
def test_a_product_is_padded_to_tiles_and_wants_no_more_cores_than_tiles(m: int, n: int, tiles: int, want: int) -> None:
    cost = tiny_cost(ops.gemm(m, n, 500, dtype="bf16"))
    assert (cost.tiles, cost.want, cost.at_least) == (tiles, want, 1)
    assert cost.tile_s == pytest.approx(2 * 100 * 200 * 500 / 1e12)  # one core's time for a full tile, however empty


@pytest.mark.parametrize(("units", "waves"), [(1, 6), (2, 3), (3, 2), (4, 2), (6, 1)])
def test_compute_time_is_whole_waves(units: int, waves: int) -> None:
    cost = tiny_cost(ops.gemm(600, 200, 500, dtype="bf16"))
    assert cost.compute_s(units) == pytest.approx(waves * 20e-6)


def test_filling_and_draining_a_tile_takes_as_long_as_so_many_elements_of_k() -> None:
    """A ramp of 100: half as long again at K = 200, a fifth at K = 500; bytes are the same."""
    family = TINY.kernels["round"]["gemm_bf16"]
    ramped = family.model_copy(update={"tile_ramp": family.tile_m.model_copy(update={"value": 100.0})})
    for k, factor in ((200, 1.5), (500, 1.2)):
        work = ops.gemm(300, 400, k, dtype="bf16")
        flat, steep = (cost_of(work, TINY.chip, {"gemm_bf16": one}) for one in (family, ramped))
        assert steep.tile_s == pytest.approx(factor * flat.tile_s)
        assert (steep.onchip_bytes, steep.latency_s) == (flat.onchip_bytes, flat.latency_s)


def test_latency_is_a_floor_and_the_depth_of_one_tile() -> None:
    assert tiny_cost(ops.gemm(1, 1, 4000, dtype="bf16")).latency_s == pytest.approx(2e-6 + 4e-6)


def test_every_tile_reads_its_strips_of_both_operands() -> None:
    cost = tiny_cost(ops.gemm(300, 400, 500, dtype="bf16", out="fp32"))
    assert cost.onchip_bytes == (300 * 500 * 2 + 400 * 500 * 3) * 2 + 300 * 400 * 4
    assert cost.hbm_bytes == (300 * 500 + 400 * 500) * 2 + 300 * 400 * 4


def test_groups_are_padded_one_by_one() -> None:
    one = tiny_cost(replace(ops.gemm(100, 200, 500, dtype="bf16"), family="grouped_gemm_bf16"))
    each = tiny_cost(ops.grouped_gemm((1, 0, 101), 200, 500, dtype="bf16"))
    assert (one.tiles, each.tiles) == (1, 1 + 2)
    assert each.weight_bytes == 2 * 200 * 500 * 2  # the group without rows reads no weights


def test_a_kernel_without_work_costs_its_latency_alone() -> None:
    for work in (ops.grouped_gemm((0, 0), 200, 500, dtype="bf16"), ops.passes(0, 0),
                 ops.flash_attention((), 4, 64, 64, "flash", "bf16")):
        cost = tiny_cost(work)
        assert (cost.compute_s(cost.want), cost.onchip_bytes, cost.hbm_bytes) == (0.0, 0.0, 0.0)
        assert cost.latency_s > 0
        assert cost.want >= 1


def test_an_unknown_family_lists_those_there_are() -> None:
    with pytest.raises(KeyError, match="no kernel family 'gemm_fp4': this generation has gemm_bf16, gemm_int8"):
        tiny_cost(ops.gemm(1, 1, 1, dtype="fp4"))


# cores and ports ------------------------------------------------------------------------------------------------------


def test_a_unit_is_what_runs_out_first() -> None:
    assert units_of(TINY.chip, ROUND["gemm_bf16"]) == 4
    assert units_of(tiny({"chip.cores.vector": "6"}).chip, ROUND["gemm_int8"]) == 3
    assert tiny_cost(ops.gemm(999, 999, 10)).need == (("cube", 1), ("vector", 2))


@pytest.mark.parametrize(("family", "port"), [("gemm_bf16", 200e9), ("gemm_int8", 200e9), ("vector", 100e9)])
def test_a_unit_moves_no_more_than_its_widest_ports(family: str, port: float) -> None:
    work = ops.passes(1e6, 0) if family == "vector" else ops.gemm(100, 200, 10, dtype=family[5:])
    cost = tiny_cost(work)
    assert cost.unit_rate_bytes_per_s == port
    assert cost.limit_bytes_per_s(3, 0.0) <= 3 * port


# attention and vector kernels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sequence", "elements"), [
    ((4, 10, False), 40), ((4, 4, True), 1 + 2 + 3 + 4), ((1, 10, True), 10), ((2, 10, True), 9 + 10)])
def test_score_elements(sequence: tuple[int, int, bool], elements: int) -> None:
    assert score_elements(sequence) == elements


def test_causal_attention_computes_whole_tiles_on_the_diagonal() -> None:
    assert score_elements((20, 20, True), tile=10) == 10 * 10 + 10 * 20
    assert score_elements((20, 50, True), tile=10) == 10 * 40 + 10 * 50
    assert score_elements((4, 4, True), tile=10) == 4 * 4


def test_attention_by_hand() -> None:
    cost = tiny_cost(ops.flash_attention(((20, 20, True), (5, 100, False)), 2, 64, 32, "flash", "bf16"))
    scores = 2 * (300 + 1000)  # five queries fill a tile of ten rows
    assert (cost.tiles, cost.want) == (2 * (2 + 1), 4)
    assert cost.tiles * cost.tile_s == pytest.approx(4 * 2 * scores * 96 / 4e12)  # four cores' time for all tiles
    assert cost.onchip_bytes == pytest.approx(scores * (8 + 96 * 2 / 10) + 2 * 25 * 32 * 2)
    assert cost.hbm_bytes == 2 * (25 * 64 + 120 * 96 + 25 * 32) * 2


@pytest.mark.parametrize(("machine", "family"), [
    ("dgx_b200", "mla"), ("h20_node", "gqa_decode"), ("h20_node", "mla_decode")])
def test_requests_without_queries_or_keys_compute_nothing(machine: str, family: str) -> None:
    """A rank may have no requests in an iteration, whether its kernel cuts keys by size or by a plan."""
    spec = load_machine(machine)
    kernels = next(kernels for kernels in spec.kernels.values() if family in kernels)

    def compute_s(*sequences: tuple[int, int]) -> float:
        return cost_of(ops.latent_attention(sequences, 16, 512, 64, family), spec.chip, kernels).compute_s(1)

    assert compute_s() == compute_s((0, 100)) == compute_s((4, 0)) == 0.0
    assert compute_s((1, 100), (0, 50)) == compute_s((1, 100)) > 0.0


def test_a_vector_kernel_spreads_over_cores_by_its_bytes() -> None:
    small, large = tiny_cost(ops.passes(15_000, 10_000)), tiny_cost(ops.passes(1e6, 0))
    assert (small.want, large.want) == (3, 8)  # pieces of 10 kB
    work = replace(ops.passes(80_000, 0), vector_flops=8e6)
    assert tiny_cost(work).compute_s(8) == pytest.approx(8e6 / 800e9)
    assert tiny_cost(work).compute_s(4) == pytest.approx(2 * 8e6 / 800e9)


# the roofline of a lone kernel ----------------------------------------------------------------------------------------

shapes = st.tuples(st.integers(1, 700), st.integers(1, 900), st.integers(1, 6000))


def lone(work: Work, changes: dict[str, str]) -> float:
    """How long a kernel takes on an NPU of its own, in seconds, without its latency."""
    done = run(lambda npu: npu.launch(work, "kernel"), machine=tiny(changes))
    row = done.row("kernel")
    assert row["end_ps"] - row["start_ps"] == pytest.approx(row["solo_ps"], abs=3)
    return float(row["end_ps"] * 1e-12 - tiny_cost(work).latency_s)


@settings(deadline=None, max_examples=40)
@given(shapes, st.sampled_from([50e9, 200e9, 4e12]), st.sampled_from([100e9, 400e9, 8e12]))
def test_a_lone_kernel_takes_the_longest_of_compute_l2_and_hbm(
    shape: tuple[int, int, int], hbm: float, l2: float
) -> None:
    work = ops.gemm(*shape, dtype="bf16")
    cost = tiny_cost(work)
    took = lone(work, {"chip.hbm.peak": f"{hbm} B/s", "chip.l2.rate": f"{l2} B/s"})
    assert took == pytest.approx(solo_s(cost, cost.want, (l2, hbm / 2)), rel=1e-9, abs=2e-12)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(400, 200, 500), (400, 200, 5), (100, 200, 50)])
def test_the_unoverlapped_share_of_the_shorter_time_comes_on_top(share: float, shape: tuple[int, int, int]) -> None:
    work = ops.gemm(*shape)  # INT8
    cost = tiny_cost(work)
    compute = cost.compute_s(cost.want)
    memory = solo_s(replace(cost, tile_s=0.0), cost.want, (400e9, 100e9))
    took = lone(work, {"kernels.round.gemm_int8.unoverlapped": str(share)})
    assert took == pytest.approx(max(compute, memory) + share * min(compute, memory), rel=1e-6)


def test_memory_without_limits_leaves_compute_and_ports() -> None:
    work = ops.gemm(400, 200, 500, dtype="bf16")
    assert lone(work, {"chip.hbm.peak": "inf B/s", "chip.l2.rate": "inf B/s"}) == pytest.approx(20e-6)


def test_a_kernel_without_bytes_is_a_delay() -> None:
    work = Work("vector", "vector", dtype="fp32", vector_flops=8e6)
    assert lone(work, {}) == pytest.approx(8e6 / 100e9)  # one piece on one core of 100 GFLOP/s


# published points of Atlas A3 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4096, 7168, 2048), (8192, 4096, 7168), (8192, 8192, 8192)])
def test_large_int8_products_reach_the_published_share_of_peak(shape: tuple[int, int, int]) -> None:
    done = run(lambda npu: npu.launch(ops.gemm(*shape), "gemm"), machine=A3)
    row = done.row("gemm")
    floor_s = a3_cost(ops.gemm(*shape)).latency_s
    share = row["flops"] / 752e12 / ((row["end_ps"] - row["start_ps"]) * 1e-12 - floor_s)
    assert 0.74 <= share <= 0.83


def half_of_the_cores(npu: Rank) -> None:
    npu.confine("half", {"cube": 12, "vector": 24})
    with npu.stream("half"):
        npu.launch(ops.gemm(8192, 7168, 7168), "gemm")


def test_half_of_the_cores_cost_less_than_twice_the_time() -> None:
    whole = run(lambda npu: npu.launch(ops.gemm(8192, 7168, 7168), "gemm"), machine=A3)
    half = run(half_of_the_cores, machine=A3)
    assert 1.23 <= half.makespan_ps / whole.makespan_ps <= 1.6


def test_costs_know_no_infinite_numbers() -> None:
    for work in (ops.gemm(1, 1, 1), ops.passes(1, 0), ops.flash_attention(((1, 1, True),), 1, 1, 1)):
        cost = a3_cost(work)
        assert max(cost.latency_s, cost.tile_s, cost.onchip_bytes, cost.limit_bytes_per_s(1, 0.0)) < inf


def loop_cost(family: str, pieces: int, rows: int, row_bytes: float = 0.0, width: int = 0) -> Cost:
    machine = load_machine("dgx_h100")
    moved = rows * row_bytes
    return cost_of(ops.loop(family, pieces, rows, moved, moved, width), machine.chip, machine.exchange_kernels)


@pytest.mark.parametrize(("experts", "blocks"), [(8, 8), (128, 128), (132, 132), (160, 80), (256, 128), (512, 128)])
def test_thread_blocks_are_as_few_as_have_equally_many_pieces(experts: int, blocks: int) -> None:
    cost = loop_cost("deepep_ll_send", experts, 3 * blocks)
    assert cost.want == blocks
    assert cost.compute_s(cost.want) == pytest.approx(3 * 2.57e-6)


def test_a_channel_takes_turns_and_passes_a_chunk_on_before_anything_overlaps() -> None:
    """8 channels, 80 tokens of 10 KB: 10 turns of 228 ns + 10 KB / 45.1 GB/s each, and the chunk of 6 once more."""
    cost = loop_cost("deepep_normal_dispatch", 8, 80, 10e3)
    assert cost.compute_s(8) == pytest.approx((10 + 6) * (228e-9 + 10e3 / 45.1e9))
    assert loop_cost("deepep_normal_dispatch", 8, 8, 10e3).compute_s(8) == pytest.approx(cost.compute_s(8) / 8)


def test_few_copies_wait_for_the_warps_that_sum_them() -> None:
    """23 warps of a channel sum a token of 5120 elements each; the last one's time is latency."""
    cost = loop_cost("deepep_normal_combine", 2, 460, 100.0, 5120)
    assert cost.compute_s(2) == pytest.approx(230 / 23 * 5120 * 3.56e-9)
    assert cost.latency_s == pytest.approx(5120 * 3.56e-9)
    assert loop_cost("deepep_normal_combine", 2, 0, 0.0, 5120).latency_s == 0.0
