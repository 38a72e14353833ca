"""How public tables are read where they do not say everything."""

from __future__ import annotations

from pathlib import Path

from simulator.calibrate.hopper import L2_BYTES, Layer, fit_sorting, left_in_l2, sorting_misfit
from simulator.calibrate.kernel_tables import FEW_EXPERTS, infersim_grouped
from simulator.model import ops

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


def test_what_sorting_takes_is_found_again() -> None:
    """Per local expert and per row, beyond products and passes."""
    sizes = [(slots, rows) for slots in (8, 256) for rows in (100, 10_000)]
    layers = [Layer(1e-4 + slots * 125e-9 + rows * 37e-9, 1e-4, slots, rows) for slots, rows in sizes]
    slot_s, row_s, error = fit_sorting(layers)
    assert (round(slot_s * 1e9), round(row_s * 1e9)) == (125, 37)
    assert error.loss < 1e-9 < sorting_misfit(layers, 0.0, 0.0).loss
