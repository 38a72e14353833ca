"""A prefetch of the next layer's attention on models and machines that no paper has: without cause, no effect."""

from __future__ import annotations

import pytest

from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate

BASE = {"machine": "cloudmatrix384", "kernels": "cann_decode_2025", "knobs.precision": "all=int8"}
LLAMA = {**BASE, "model": "llama_3_1_70b", "cards": "4", "layout.tp": "8", "batch.requests": "16"}
QWEN = {"machine": "atlas_a2", "kernels": "cann_2025", "knobs.precision": "all=int8", "model": "qwen3_235b",
        "cards": "16", "layout.dp": "16", "layout.ep": "16", "layout.tp": "1", "knobs.exchange": "all_gather",
        "batch.requests": "256"}  # fmt: skip


def run(changes: dict[str, str], **more: str) -> Result:
    settings = {key.replace("__", "."): text for key, text in more.items()}
    return simulate(load_scenario("transformer:decode").replace({**changes, **settings}))


@pytest.mark.parametrize("changes", [LLAMA, QWEN], ids=["dense", "experts"])
def test_weights_that_come_under_a_collective_shorten_attention(changes: dict[str, str]) -> None:
    with_it, without = (run(changes, knobs__prefetch_mb=size) for size in ("150", "0"))
    assert with_it.metrics["tpot_ms"] < 0.99 * without.metrics["tpot_ms"]
    assert with_it.metrics["block_attention_ms"] < 0.97 * without.metrics["block_attention_ms"]


def test_without_room_in_l2_it_buys_nothing() -> None:
    small = {"machine__chip__l2__capacity": "1 MB"}
    with_it, without = (run(LLAMA, knobs__prefetch_mb=size, **small).metrics["tpot_ms"] for size in ("150", "0"))
    assert with_it > 0.998 * without


def test_the_first_of_two_micro_batches_brings_it_for_both() -> None:
    def prefetched(schedule: str) -> float:
        world = run(LLAMA, knobs__prefetch_mb="150", knobs__schedule=schedule).world
        return sum(task.name.startswith("prefetch") for task in world.programs[0].tasks)

    assert prefetched("two_batches") == prefetched("one_stream") > 0
