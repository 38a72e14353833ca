"""Steps of models with sparse attention (DSA): what a rank of many does, what it keeps, and what cannot be."""

from __future__ import annotations

import re

import pytest

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.transformer import kv_bytes
from simulator.study.scenario import Scenario
from simulator.study.simulate import prepare, simulate
from simulator.study.step import StepWords, memory_of, step_of

LAYERS = {"model.shapes.layers": "8"}


def step(mesh: str = "tp=8", phase: str = "decode", model: str = "glm_5", machine: str = "dgx_h200",
         stack: str = "vllm", **settings: str) -> Scenario:
    named = {key.replace("__", "."): text for key, text in settings.items()}
    return step_of(StepWords(model, machine, stack, mesh, phase, LAYERS | named))


def works(scenario: Scenario) -> dict[str, Work]:
    """The kernels of its last layer, by name."""
    tasks = prepare(scenario).world.programs[0].tasks
    return {task.name: task.work for task in tasks if isinstance(task.work, Work)}


def test_neither_the_indexer_nor_padded_heads_fall_with_more_ranks() -> None:
    """Eight heads of a rank are computed as 64, and scores are those of all 32 heads of the indexer."""
    four, eight = (works(step(f"tp={tp}", batch__requests="16")) for tp in (4, 8))
    for name in ("sparse", "index_logits_decode", "index_q", "index_top_k_decode"):
        assert four[f"attention.{name}"] == eight[f"attention.{name}"], name
    assert eight["attention.sparse"].heads == 64
    assert four["attention.absorb_k"].flops == 2 * eight["attention.absorb_k"].flops
    assert eight["attention.o"].flops * 2 == four["attention.o"].flops


def test_deepseek_v3_2_has_sixteen_heads_of_a_rank_and_twice_the_indexer() -> None:
    own = works(step(model="deepseek_v3_2"))
    assert own["attention.sparse"].heads == 64
    assert own["attention.index_logits_decode"].heads == 64


def test_prompts_and_decode_are_one_batch_for_attention_and_apart_for_the_indexer() -> None:
    mixed = works(step(phase="mixed", batch__requests="3", batch__context="5000", batch__prompt="4096"))
    assert sum(queries for queries, _, _ in mixed["attention.sparse"].scores) == 3 + 4096
    assert mixed["attention.index_logits_decode"].scores == ((1, 5000, False),) * 3
    assert mixed["attention.index_logits"].scores == ((4096, 4096, True),)
    assert sum(mixed["attention.index_top_k"].rows) == 2048


def test_a_step_grows_with_the_context_by_the_indexer_alone() -> None:
    short, long = (simulate(step(batch__requests="64", batch__context=text)) for text in ("2048", "32768"))
    assert 1.0 < long.metrics["tpot_ms"] / short.metrics["tpot_ms"] < 1.5
    dense = [simulate(step(model="deepseek_r1", batch__requests="64", batch__context=text)).metrics["tpot_ms"]
             for text in ("2048", "32768")]  # fmt: skip
    assert dense[1] / dense[0] > 2.0


def test_the_ledger_has_the_indexers_keys_and_its_weights_on_every_rank() -> None:
    ledger = memory_of(step(batch__requests="4", batch__context="10000"))
    cache = sum(item.size_bytes for item in ledger.items if item.category == "KV")
    assert cache == kv_bytes(load_transformer("glm_5"), 4 * 10_001) * 8 / 78 == 40_004 * 8 * (1152 + 132)
    attention = {tp: next(item.size_bytes for item in memory_of(step(f"tp={tp}")).items if item.name == "attention")
                 for tp in (4, 8)}  # fmt: skip
    whole = 8 * (6144 * (2048 + 576 + 128 + 32) + 2048 * 32 * 128)  # latents and indexer, on every rank
    assert 2 * attention[8] - attention[4] == pytest.approx(whole, rel=2e-3)


@pytest.mark.parametrize(("words", "says"), [
    ({"stack": "sglang"}, "no kernels of sparse attention are known of it"),
    ({"machine": "dgx_a100"}, "no kernels of sparse attention"),
    ({"mesh": "tp=4,cp=2"}, "layout.cp is 2: with sparse attention"),
])  # fmt: skip
def test_what_cannot_be_is_refused(words: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        simulate(step(**words))
