"""No step is shorter than its roofline, and no point of a family lies above all of its corners."""

from __future__ import annotations

from functools import cache

import pytest

from simulator.search.deployment import Ask, Engine, Found
from simulator.search.found import of_apart, of_together, options
from simulator.search.measure import sheets
from simulator.search.roofline import Roofline, roofline_of
from simulator.search.sheet import Sheet

INT8, EVEN = ("knobs.precision", "all=int8,kv_b=bf16,router=fp32"), ("routing.skew", "none")
ROLES = ("together", "decode", "prefill")
FAMILIES: dict[str, tuple[Ask, Engine]] = {
    "dense": (Ask("qwen3_8b", "dgx_h100", 1, 16, 2048, 512), Engine("vllm", "tp=1")),
    "dense, all its GPUs": (Ask("llama_3_1_8b", "dgx_h100", 1, 16, 4096, 256, tpot_ms=8), Engine("trtllm", "tp=8")),
    "few requests": (Ask("llama_3_1_8b", "dgx_h200", 1, 16, 60000, 400), Engine("sglang", "tp=1")),
    "many requests": (Ask("llama_3_1_8b", "dgx_b200", 1, 16, 64, 512), Engine("vllm", "tp=1", tokens=16384)),
    "drafts": (Ask("llama_3_1_8b", "dgx_a100", 1, 16, 1024, 512, acceptance=0.9),
               Engine("vllm", "tp=2", (("batch.drafts", "3"),))),
    "two stages": (Ask("llama_3_1_8b", "dgx_h100", 1, 16, 1024, 512), Engine("vllm", "pp=2")),
    "what is cached": (Ask("qwen3_8b", "dgx_h200", 1, 16, 8192, 128, 0.9), Engine("vllm", "tp=2", tokens=2048)),
    "experts": (Ask("gpt_oss_20b", "dgx_h100", 1, 16, 1024, 1024), Engine("vllm", "tp=1")),
    "experts spread": (Ask("gpt_oss_20b", "dgx_h200", 1, 16, 1024, 1024),
                       Engine("trtllm", "dp=2,ep=2", (("knobs.exchange", "all_gather"), EVEN))),
    "experts spread, few tokens": (Ask("qwen3_30b_a3b", "dgx_b200", 1, 16, 128, 128, tpot_ms=6),
                                   Engine("vllm", "tp=2,dp=2,ep=4", (("knobs.exchange", "all_gather"),))),
    "latents, MTP": (Ask("deepseek_r1", "dgx_h200", 1, 16, 2048, 512, acceptance=0.7),
                     Engine("sglang", "tp=8", (("batch.drafts", "2"),))),
    "Ascend": (Ask("deepseek_r1", "atlas_a2", 1, 64, 2048, 512, tpot_ms=100),
               Engine("cann_2025", "dp=32,ep=32", (("knobs.exchange", "all_gather"), INT8, EVEN))),
}  # fmt: skip


@cache
def looked_at(name: str) -> tuple[Ask, Roofline, Sheet]:
    ask, engine = FAMILIES[name]
    return ask, roofline_of(ask, engine), sheets(ask, [engine], ROLES)[0]


def points(ask: Ask, sheet: Sheet) -> list[Found]:
    """Together, and apart beside a like engine that prefills as fast as can be."""
    patient = ask._replace(ttft_ms=1e9)
    return [*of_together(patient, sheet), *of_apart(patient, sheet, options(patient, [sheet]))]


@pytest.mark.parametrize("name", FAMILIES)
def test_no_step_is_shorter_than_its_roofline(name: str) -> None:
    _, roofline, sheet = looked_at(name)
    assert not sheet.kind, sheet.refused
    assert len(sheet.decode) > 1
    assert all(roofline.step_s(count) <= seconds for count, seconds in sheet.decode)
    assert sheet.decode[-1][0] <= roofline.most


@pytest.mark.parametrize("name", FAMILIES)
def test_every_point_lies_under_a_corner(name: str) -> None:
    ask, roofline, sheet = looked_at(name)
    found = points(ask, sheet)
    assert found
    corners = roofline.corners(ask)
    for one in found:
        assert any(one.tok_s_per_user <= corner.tok_s_per_user and one.tok_s_per_gpu <= corner.tok_s_per_gpu
                   for corner in corners), (one, corners)


def test_a_roofline_is_of_bytes_then_of_products() -> None:
    """Few requests read weights and their cache at the peak of HBM; so many that products take longer do not."""
    _, roofline, _ = looked_at("dense")
    one_s = (roofline.dense_bytes + roofline.cache_bytes) / roofline.hbm_bytes_per_s
    assert roofline.step_s(1) == pytest.approx(one_s)
    assert roofline.dense_bytes == pytest.approx(2 * 7.57e9, rel=0.01), "8.19e9 parameters but the embedding, in BF16"
    flops_s = 1e6 * roofline.token_flops / roofline.flops_per_s
    assert roofline.mean_s(1, 1e6) == pytest.approx(flops_s, rel=1e-5)
    assert roofline.token_flops == pytest.approx(2 * 6.95e9, rel=0.01), "without embedding and head"
