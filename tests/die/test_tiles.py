"""Laws of library kernels: closed forms, and what they do beyond all tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import np
from simulator.calibrate.kernel_tables import solo_s
from simulator.calibrate.library import chip_of
from simulator.calibrate.library_families import chip_numbers
from simulator.die import tiles
from simulator.die.kernels import Cost, Work, cost_of
from simulator.model import library_kernels as lib
from simulator.spec.kernels import KernelSpec, SplitAttentionKernel, StreamGemmKernel
from simulator.units import Quantity

CHIP = chip_of("h100_sxm")
CORE = 989e12 / 132
GEMM = {"floor": 2e-6, "serial_per_k": 5e-10, "split_k": 4096.0, "hbm_share": 0.9, "compute_share": 0.9,
        "tile_ramp": 128.0, "stream_k": 512.0, "unoverlapped": 0.1, "tile_m": 128.0, "tile_n": 256.0,
        "granule": 16.0}  # fmt: skip
SPLIT = {"floor": 8e-6, "hbm_share": 0.9, "compute_share": 0.5, "unoverlapped": 0.1, "tile_m": 64.0, "granule": 64.0,
         "tile_keys": 128.0, "split_keys": 128.0, "combine": 2e-6, "tile_latency": 2e-6}  # fmt: skip
PROMPT = {"floor": 1e-5, "hbm_share": 0.6, "compute_share": 0.7, "unoverlapped": 0.3, "tile_m": 128.0, "granule": 16.0,
          "softmax_dims": 20.0, "per_query": 5e-10}  # fmt: skip
SECONDS = ("floor", "serial_per_k", "combine", "tile_latency", "per_query")


def kernel(numbers: dict[str, float], law: str) -> KernelSpec:
    """A family with these numbers."""
    given = {name: quantity(value, "s" if name in SECONDS else "1") for name, value in numbers.items()}
    made = StreamGemmKernel if law == "stream_gemm" else SplitAttentionKernel
    return made.model_validate({"law": law, "cores": {"sm": quantity(1)}, **given})


def quantity(value: float, unit: str = "1") -> Quantity:
    return Quantity(value=value, unit=unit, kind="assumed", source="this test")


@cache
def families() -> dict[str, KernelSpec]:
    gemm = kernel(GEMM, "stream_gemm")
    return {"gemm_bf16": gemm, "grouped_gemm_bf16": gemm, "generation_attention": kernel(SPLIT, "split_attention"),
            "context_attention": kernel(PROMPT, "split_attention")}


def cost(work: Work) -> Cost:
    return cost_of(work, CHIP, families())


def alone_s(work: Work) -> float:
    return solo_s(cost(work), CHIP)


def decode(requests: int, keys: int, heads: int = 32, kv_heads: int = 8) -> Work:
    return lib.generation_attention(((1, keys),) * requests, heads, kv_heads, 128)


# products -------------------------------------------------------------------------------------------------------------


def test_a_product_is_cut_into_pieces_of_its_tiles_loops() -> None:
    found = cost(lib.linear(16, 8192, 8192))
    assert (found.tiles, found.want) == (1 * 32 * 16, 132)
    assert found.tile_s == pytest.approx(2 * 16 * 256 * (8192 + 128) / 16 / (0.9 * CORE))
    assert found.latency_s == pytest.approx(2e-6 + 5e-10 * 4096)
    assert found.onchip_bytes == 2.0 * (16 * 8192 * 32 + 8192 * 8192 + 16 * 8192)


def test_a_last_strip_costs_its_rows_and_no_whole_tile() -> None:
    whole, more = (tiles.rows_of(np.array([rows]), GEMM) for rows in (256.0, 257.0))
    assert (whole.strips[0], more.strips[0], more.padded[0]) == (2, 3, 272)


def test_tiles_are_as_high_as_the_mean_rows_of_a_group() -> None:
    v = {**GEMM, "least_tile": 8.0}
    for rows, height in ((1.0, 8.0), (8.0, 8.0), (9.0, 16.0), (100.0, 128.0), (5000.0, 128.0)):
        assert tiles.height_of(np.array(rows), v) == (height, height)


def test_a_pass_that_quantises_the_input_is_latency() -> None:
    rows = tiles.rows_of(np.array(4096.0), GEMM)
    fast = tiles.product(rows, 1024, 2048, (1.0, 1.0, 2.0), CORE, GEMM)
    slow = tiles.product(rows, 1024, 2048, (1.0, 1.0, 2.0), CORE, {**GEMM, "input_rate": 1e12})
    assert slow.latency_s - fast.latency_s == pytest.approx(4096 * 2048 / 1e12)


@settings(max_examples=60)
@given(st.integers(1, 200_000), st.integers(1, 300), st.integers(1, 300))
def test_more_of_anything_never_takes_less(m: int, columns: int, depth: int) -> None:
    """But for strips: where one more is begun all are lower, and idle cores take the new one, so that a few rows more
    may take less; twice as many take as long, less at most the rows that fill the last granule."""
    n, k = 256 * columns, 512 * depth
    here = alone_s(lib.linear(m, n, k))
    assert alone_s(lib.linear(2 * m, n, k)) >= 0.88 * here
    assert alone_s(lib.linear(m, n + 256, k)) >= here * (1 - 1e-9)
    assert alone_s(lib.linear(m, n, 2 * k)) >= 0.9 * here  # the ramp of a tile is shared by more pieces


@settings(max_examples=60)
@given(st.integers(1, 4096))
def test_one_row_more_is_no_jump(m: int) -> None:
    """The largest step is a strip of tiles that need one more wave of pieces: far from a whole wave of tiles."""
    assert alone_s(lib.linear(m + 1, 8192, 8192)) <= 1.09 * alone_s(lib.linear(m, 8192, 8192))


def test_far_beyond_every_table_a_product_takes_its_share_of_the_peak() -> None:
    m = n = k = 1 << 17
    ideal = 2.0 * m * n * k / (0.9 * 989e12)
    assert alone_s(lib.linear(m, n, k)) == pytest.approx(1.1 * ideal, rel=0.1)  # the unoverlapped tenth of its bytes


def test_decode_of_a_huge_matrix_takes_its_share_of_hbm() -> None:
    n = k = 1 << 17
    assert alone_s(lib.linear(1, n, k)) == pytest.approx(2.0 * n * k / (0.9 * 3.35e12), rel=0.05)


# attention ------------------------------------------------------------------------------------------------------------


def test_keys_are_split_where_strips_are_fewer_than_cores() -> None:
    few, many = cost(decode(1, 16384)), cost(decode(64, 16384))
    assert (few.tiles, many.tiles) == (8 * 16, 8 * 64)  # 132 cores hold 16 pieces of 8 strips, and no second of 512
    assert few.latency_s - many.latency_s == pytest.approx(2e-6)  # the second kernel that sums up
    assert few.tile_s == pytest.approx(2 * 64 * 1024 * 256 / (0.5 * CORE) + 2e-6)


def test_an_uneven_batch_takes_as_long_as_its_keys_and_not_as_its_longest_request() -> None:
    even, uneven = decode(64, 8192), lib.generation_attention(((1, 4096),) * 32 + ((1, 12288),) * 32, 32, 8, 128)
    assert even.streamed_bytes == uneven.streamed_bytes
    assert alone_s(uneven) == pytest.approx(alone_s(even), rel=0.02)


def test_a_window_is_read_with_the_tile_that_it_begins_in() -> None:
    seen = [tiles.sequences(1.0, keys, False, 128, 8.0, 1.0, SPLIT).strip_keys for keys in (64.0, 128.0, 4096.0)]
    assert seen == [128, 128, 256]


def test_causal_prompts_with_a_prefix() -> None:
    """512 queries in strips of 128 see 128, 256, 384 and 512 of their own keys, and 1024 before them."""
    found = tiles.sequences(512.0, 1536.0, True, 0, 1.0, 1.0, PROMPT)
    assert found.scores == pytest.approx(512 * 1024 + 128 * (128 + 256 + 384 + 512))
    assert found.strips == 4


@pytest.mark.parametrize(("queries", "keys", "window"), [
    (4096, 4096, 128), (300, 5000, 128), (64, 64, 128), (8, 90, 128)])
def test_flops_of_a_window_are_those_of_the_keys_seen(queries: int, keys: int, window: int) -> None:
    work = lib.context_attention(((queries, keys - queries),), 1, 1, 128, window)
    seen = sum(min(place, window) for place in range(keys - queries + 1, keys + 1))
    assert work.flops == 2.0 * 256 * seen


@settings(max_examples=60)
@given(st.integers(1, 512), st.integers(1, 200_000))
def test_more_keys_never_take_less(requests: int, keys: int) -> None:
    """But for pieces: with a tile of keys more they may be shared out better."""
    assert alone_s(decode(requests, keys + 1024)) >= 0.98 * alone_s(decode(requests, keys))


def test_far_beyond_every_table_attention_takes_its_share() -> None:
    long = decode(64, 1 << 20)
    assert alone_s(long) == pytest.approx(long.streamed_bytes / (0.9 * 3.35e12), rel=0.1)
    prompt = lib.context_attention(((1 << 18, 0),), 32, 8, 128)
    ideal = prompt.flops * (256 + 40) / 256 / (0.7 * 989e12)
    assert alone_s(prompt) == pytest.approx(ideal, rel=0.15)


# numbers and columns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 100, 5000])
def test_columns_are_costed_as_single_kernels_are(m: int) -> None:
    """What a fit compares is what a run costs."""
    chip, n, k = chip_numbers(CHIP), np.array([512.0, 12288.0]), np.array([8192.0, 1024.0])
    tiled = tiles.product(tiles.rows_of(np.full(2, float(m)), GEMM), n, k, (2.0, 2.0, 2.0), CORE, GEMM)
    found = tiles.alone_s(tiled, 2.0 * (n * k + m * k + m * n), chip, GEMM)
    for place in range(2):
        assert found[place] == pytest.approx(alone_s(lib.linear(m, int(n[place]), int(k[place]))), rel=1e-12)


def test_the_port_share_limits_what_cores_read() -> None:
    work, slow = lib.linear(1, 256, 512), kernel({**GEMM, "port_share": 0.5}, "stream_gemm")
    assert cost_of(work, CHIP, {"gemm_bf16": slow}).unit_rate_bytes_per_s == 0.5 * cost(work).unit_rate_bytes_per_s
    assert solo_s(cost_of(work, CHIP, {"gemm_bf16": slow}), CHIP) > alone_s(work)


def test_an_empty_product_and_a_warm_one() -> None:
    idle = cost(replace(lib.linear(1, 256, 512), rows=()))
    assert (idle.tiles, idle.latency_s) == (1, pytest.approx(2e-6 + 5e-10 * 512))
    assert alone_s(replace(lib.linear(1, 8192, 8192), weight_bytes=0.0)) < 0.5 * alone_s(lib.linear(1, 8192, 8192))
