"""H20 and H800: sources for all numbers, derived ones recomputed, and kernels against what their tables say in sum."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from simulator.calibrate.kernel_tables import solo_s
from simulator.die.kernels import cost_of
from simulator.model import ops
from simulator.spec.load import load_machine, override
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import SpecError, quantities

H20, H800 = load_machine("h20_node"), load_machine("h800_cluster")
NCCL = "collectives.nccl_background"


@pytest.mark.parametrize("machine", [H20, H800], ids=lambda machine: machine.name)
def test_every_number_says_where_it_comes_from_and_how_sure_it_is(machine) -> None:  # type: ignore[no-untyped-def]
    for key, number in quantities(machine):
        assert number.confidence, key
        assert len(number.source) > 15, key
        assert number.kind != "assumed" or number.confidence in ("L", "M"), key


def test_the_published_sizes() -> None:
    assert (H20.dies, H20.chip.cores["sm"].count, H20.chip.peak["sm"]["fp8"].si) == (8, 78, 296e12)
    assert (H800.chip.cores["sm"].count, H800.chip.peak["sm"]["bf16"].si) == (132, 989e12)
    assert (H20.chip.hbm.peak.si, H800.chip.hbm.peak.si) == (4e12, 3.35e12)
    assert [level.link_rate.si for level in (*H20.fabric, *H800.fabric)] == [450e9, 200e9, 50e9]


@pytest.mark.parametrize(("machine", "key", "value"), [
    (H800, "chip.hbm.capacity", 81559 * 94.6 / 97871 * 2**30),
    (H20, f"{NCCL}.rate_per_core", 340e9 / 16),
    (H20, f"{NCCL}.startup_per_peer", 10.4e-6 / 7),
])
def test_derived_numbers_follow_from_their_expressions(machine, key: str, value: float) -> None:  # type: ignore[no-untyped-def]
    assert dict(quantities(machine))[key].si == pytest.approx(value, rel=0.02)


def test_nvlink_of_h800_is_four_ninths_of_that_of_h20() -> None:
    for here, there in zip(H20.collectives["nccl_background"].ladder.default,
                           H800.collectives["nccl_background"].ladder.default, strict=True):
        assert there.rate.si / here.rate.si == pytest.approx(200 / 450, rel=0.02)


@pytest.mark.parametrize(("ctas", "gb_s"), [(1, 21), (4, 84), (12, 252), (16, 331), (24, 331)])
def test_bandwidth_grows_with_ctas_until_the_wire_limits(ctas: int, gb_s: float) -> None:
    engine = override(H20, {f"{NCCL}.cores.sm": str(ctas)}).collectives["nccl_background"]
    assert engine.rate_bytes_per_s("all_gather", 32 * 2**20) == pytest.approx(gb_s * 1e9, rel=0.02)


def test_fp8_products_of_an_h20_take_as_long_for_1_row_as_for_64_and_are_bound_by_compute() -> None:
    """Tiles have 64 rows; on 62 of 78 SMs they take as much longer."""
    kernels = H20.kernels["sglang_2025"]
    one, many = (cost_of(ops.gemm(rows, 24576, 1536, "fp8"), H20.chip, kernels) for rows in (1, 64))
    assert one.compute_s(78) == many.compute_s(78)
    assert one.compute_s(62) / one.compute_s(78) == pytest.approx(78 / 62, rel=0.1)
    assert one.compute_s(78) > 1.2 * one.hbm_bytes / H20.chip.hbm.peak.si


@pytest.mark.parametrize(("requests", "cached", "us"), [
    (1, 131072, 315), (16, 8192, 403), (32, 32768, 3176), (64, 8192, 1362), (128, 8192, 2711), (256, 8192, 4739)])
def test_mla_of_an_h20_is_as_uneven_as_its_plan(requests: int, cached: int, us: float) -> None:
    """Its table: 0.62 of peak with 16 and 32 requests, 0.73 with 64 and 128, 0.83 with 256; an SM's own is 0.88."""
    work = ops.latent_attention(((1, cached),) * requests, 128, 512, 64, "mla_decode")
    cost = cost_of(work, H20.chip, H20.kernels["sglang_2025"])
    assert solo_s(cost, H20.chip) == pytest.approx(us / 1e6, rel=0.03)


@pytest.mark.parametrize("machine", [H20, H800])
@pytest.mark.parametrize(("heads", "kv_heads", "cached"), [(8, 1, 1024), (64, 4, 4096), (32, 8, 1024)])
def test_one_request_more_costs_little_where_there_are_many(
    machine: MachineSpec, heads: int, kv_heads: int, cached: int
) -> None:
    """Keys are split in blocks that fill the SMs evenly: nowhere does a tile more cost a wave of whole requests."""
    def alone_s(requests: int) -> float:
        work = ops.grouped_attention(((1, cached),) * requests, heads, kv_heads, 128, 128, "gqa_decode")
        return solo_s(cost_of(work, machine.chip, machine.kernels["sglang_2025"]), machine.chip)

    times = [alone_s(requests) for requests in range(64, 200)]
    rises = [after / before for before, after in pairwise(times)]
    assert min(rises) > 1.0 - 1e-9
    assert max(rises) < 1.11


def test_planned_shares_of_keys_wait_for_sms_that_others_hold() -> None:
    """A share is a thread block's from start to end: on fewer SMs some begin when others have ended."""
    work = ops.latent_attention(((1, 3000),) * 64, 128, 512, 64, "mla_decode")
    cost = cost_of(work, H20.chip, H20.kernels["sglang_2025"])
    assert (cost.want, cost.compute_s(62)) == (78, 2 * cost.compute_s(78))


def test_keys_are_cut_in_one_way_only(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    keys = '{ value = 128, unit = "1", kind = "assumed", source = "a test" }'
    own.write_text(f'extends = "h20_node"\n[kernels.sglang_2025.mla_decode]\ntile_keys = {keys}\n', encoding="utf-8")
    with pytest.raises(SpecError, match="got 'tile_keys, plan_keys': at most one of them cuts keys"):
        load_machine(own)
