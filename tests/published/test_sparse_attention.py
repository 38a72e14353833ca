"""Kernels of sparse attention on Hopper against what is published of each."""

from __future__ import annotations

import pytest

from simulator.die.kernels import Work, cost_of
from simulator.die.timing import KernelTimings
from simulator.model import sparse_kernels as sparse
from simulator.model.indexer import Indexer
from simulator.model.transformer import Latent
from simulator.spec.load import load_machine

V32 = Latent(128, 1536, 512, 64, 128, 128, Indexer(64, 128, 2048))
GLM = Latent(64, 2048, 512, 64, 192, 256, Indexer(32, 128, 2048))
H20_SMS, H200_SMS = 78, 132


def alone_us(work: Work, machine: str = "dgx_h200") -> float:
    """With the chip to itself."""
    spec = load_machine(machine)
    cost = cost_of(work, spec.chip, spec.kernels["vllm"])
    timings = KernelTimings(spec.chip.hbm.peak.si * spec.chip.hbm.efficiency.si, spec.chip.l2.rate.si)
    return timings[cost, cost.want, 0.0].solo_ps / 1e6


def test_sparse_prefill_of_flashmla_reaches_its_published_rate() -> None:
    """README of deepseek-ai/FlashMLA: up to 640 TFLOPS on H800, which has as many SMs as H100."""
    work = sparse.attention(V32, (), ((16384, 131072),), 128, "bf16")
    assert work.flops / alone_us(work, "dgx_h100") / 1e6 == pytest.approx(640, rel=0.02)


def test_few_tokens_take_as_long_as_one() -> None:
    """A thread block goes through all keys of its token: nothing splits them, nor are fewer than top_k faster."""
    one, many, more = (alone_us(sparse.attention(GLM, (), ((count, 4096),), 64, "bf16")) for count in (1, 132, 133))
    assert one == pytest.approx(many, rel=0.02)
    assert one == pytest.approx(alone_us(sparse.attention(GLM, ((1, 100),), (), 64, "bf16")), rel=0.02)
    assert more > 1.8 * many


@pytest.mark.parametrize(("queries", "keys", "h20_us"), [
    (64, 4096, 87.8), (256, 4096, 175.8), (1024, 4096, 585.9), (2048, 4096, 1151.4), (1024, 8192, 1164.4),
    (4096, 8192, 4411.8)])  # fmt: skip
def test_scores_are_as_fast_on_an_sm_as_measured_on_h20(queries: int, keys: int, h20_us: float) -> None:
    """flagos-ai/FlagGems, pull request 4092: DeepGEMM's kernel, every query over all keys; waves of 78 and 132 SMs."""
    indexer = Indexer(64, 128, 2048)
    strips = queries // 2
    waves = {sms: -(-strips // sms) for sms in (H20_SMS, H200_SMS)}
    work = sparse.decode_logits(indexer, ((queries, keys),))
    whole = Work(**{field: getattr(work, field) for field in work.__slots__} | {"family": "index_logits"})
    assert alone_us(whole) == pytest.approx(h20_us * waves[H200_SMS] / waves[H20_SMS], rel=0.08)


@pytest.mark.parametrize(("logits", "h20_us"), [
    (4096, 17.3), (8192, 17.9), (16384, 20.5), (32768, 25.7), (129280, 59.7)])  # fmt: skip
def test_a_row_is_chosen_from_as_fast_as_measured(logits: int, h20_us: float) -> None:
    """flagos-ai/FlagGems, pull request 3431: vLLM's top_k_per_row_decode."""
    assert alone_us(sparse.choice(GLM.indexer or V32.indexer, [(1, logits, False)])) == pytest.approx(h20_us, rel=0.1)
