"""What is kept of a search belongs to all that its steps depend on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.search.deployment import Ask, Engine
from simulator.search.level import together
from simulator.search.search import name_of, steps_of
from simulator.search.sheet import Sheet
from simulator.search.space import Family

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
          "head_dim": 128, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu",
          "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "attention_bias": False}  # fmt: skip
FAMILY = Family((Engine("vllm", "tp=1"),), ("together",))
ASK = Ask("llama_3_1_8b", "dgx_h100", 1, 1, 1024, 128)


def name(ask: Ask) -> str:
    return name_of(steps_of(ask), FAMILY)


def test_a_config_that_was_changed_is_another_model(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    names = []
    for layers in (32, 16, 32):
        file.write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}), encoding="utf-8")
        names.append(name(ASK._replace(model=str(file))))
    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize("change", [{"ttft_ms": 100.0}, {"tpot_ms": 10.0}, {"input_tokens": 7}, {"prefix_share": 0.5}])
def test_what_batches_are_chosen_by_is_in_the_name(change: dict[str, float]) -> None:
    assert name(ASK._replace(**change)) != name(ASK)  # type: ignore[arg-type]


def test_the_number_of_gpus_is_not() -> None:
    assert name(ASK._replace(most_gpus=8)) == name(ASK)


@pytest.mark.parametrize("alone", [False, True])
def test_a_prompt_as_long_as_a_step_takes_two_beside_requests_that_decode(alone: bool) -> None:
    sheet = Sheet(Engine("vllm", "tp=1", (), 2048), cards=1, decode=((64, 0.01),), chunk=(0.1, 0.1), alone=alone)
    ask = ASK._replace(output_tokens=1024, ttft_ms=1e4, tpot_ms=1e4)
    equal, shorter = (together(ask._replace(input_tokens=tokens), sheet, 64, 0.01) for tokens in (2048, 1984))
    assert equal is not None
    assert shorter is not None
    assert (equal.ttft_s > 1.5 * shorter.ttft_s) != alone


def test_tokens_of_drafts_leave_less_for_prompts() -> None:
    sheet = Sheet(Engine("vllm", "tp=1", (), 256), cards=1, decode=((64, 0.01),), chunk=(0.1, 0.1))
    ask = ASK._replace(input_tokens=2048, output_tokens=1024, ttft_ms=1e4, tpot_ms=1e4)
    assert together(ask, sheet, 64, 0.01) is not None
    assert together(ask, sheet._replace(queries=4), 64, 0.01) is None
