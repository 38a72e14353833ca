"""How public tables are read where they do not say everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.calibrate.hopper import L2_BYTES, Layer, families, fit, layers_misfit, left_in_l2
from simulator.calibrate.kernel_tables import FEW_EXPERTS, infersim_grouped, solo_s
from simulator.die.kernels import cost_of
from simulator.model import ops
from simulator.spec.load import load_machine
from simulator.stack.sglang_2025 import fetching

HEAD = "num_experts,num_gpus,num_local_experts,topk,hidden_size,intermediate_size,batch_size_per_gpu,tokens_per_expert,"
ROWS = ("128,1,128,8,2048,768,1024,64,300,0.5,200,0.5", "4,1,4,8,2048,768,32,64,30,0.5,20,0.5",
        "128,1,128,8,2048,768,16,1,300,0.5,200,0.5")  # fmt: skip


def test_rows_of_experts_are_spread_around_the_mean_of_the_table(tmp_path: Path) -> None:
    """Few experts and means of one row are left out: what they had is not known."""
    (tmp_path / "infersim").mkdir()
    text = "\n".join((HEAD + "up_proj_us,up_mfu,down_proj_us,down_mfu", *ROWS))
    (tmp_path / "infersim" / "grouped_gemm.decode.h20.data.csv").write_text(text + "\n")
    (up, up_s), (down, down_s) = infersim_grouped(tmp_path, "h20", "decode")
    assert (up_s, down_s) == (300e-6, 200e-6)
    assert (up.n, up.k, down.n, down.k) == (1536, 2048, 2048, 768)
    assert len(up.rows) == 128 >= FEW_EXPERTS
    assert (min(up.rows), max(up.rows), sum(up.rows)) == (45, 83, 128 * 64)
    assert sum(rows > 64 for rows in up.rows) == 62  # half of them fill a second tile of 64 rows


def test_a_repeated_product_is_read_from_l2_as_far_as_it_fits() -> None:
    small, large = ops.batched_gemm(1, 128, 512, 128), ops.batched_gemm(512, 128, 512, 128)
    assert small.hbm_bytes < 0.8 * L2_BYTES < large.hbm_bytes
    assert left_in_l2(small).hbm_bytes == 0.0
    assert left_in_l2(small).cached_bytes == small.hbm_bytes
    assert left_in_l2(large) is large


def test_numbers_of_products_inside_a_layer_are_found_again() -> None:
    """From the time of whole layers, of which they are a part."""
    machine = load_machine("h800_cluster")
    family = next(one for one in families() if one.compare is layers_misfit)
    kernel = machine.kernels["sglang_2025"][family.name]
    works = [fetching((rows,) * 64, 1024, 4096, "fp8", 8 * rows) for rows in (4, 64, 512, 4096)]
    layers = [Layer(2e-5, (work,), 2e-5 + solo_s(cost_of(work, machine.chip, {work.family: kernel}), machine.chip))
              for work in works]  # fmt: skip
    assert layers_misfit(machine.chip, kernel, layers).loss < 1e-9
    slower = {"cs": 0.8 * kernel.compute_share.si}
    found = replace(family, start=slower, free=("cs",))
    assert family.misfit(slower, layers).loss > 0.05
    assert fit(found, layers)[0]["cs"] == pytest.approx(kernel.compute_share.si, rel=0.03)
