"""What an engine may be: of what its stack has kernels for, and of what it is fast enough for."""

from __future__ import annotations

import pytest

from simulator.parallel.exchange.ways import driven_by
from simulator.search.deployment import Ask, Engine
from simulator.search.engine import service_of, words_of
from simulator.search.measure import sheets
from simulator.search.space import axes_of, space_of
from simulator.spec.load import load_machine

INT8 = {"precision": ("all=int8",)}
ROLES = ("together", "decode", "prefill")


@pytest.mark.parametrize(("machine", "roles"), [
    ("cloudmatrix384", {"cann_decode_2025": {("decode",)}, "cann_recipes_2025": {("prefill",)}}),
    ("atlas_a2", {"cann_2025": {ROLES}}),
])  # fmt: skip
def test_roles_are_those_that_a_stack_has_kernels_for(machine: str, roles: dict[str, set[tuple[str, ...]]]) -> None:
    ask = Ask("deepseek_r1", machine, 8, 16, 2048, 512)
    found: dict[str, set[tuple[str, ...]]] = {}
    for family in space_of(ask, axes_of(ask, INT8), INT8).families:
        found.setdefault(family.engines[0].stack, set()).add(family.roles)
    assert found == roles


def test_a_stack_without_kernels_of_a_precision_says_so_when_it_is_looked_at() -> None:
    ask = Ask("deepseek_r1", "atlas_a2", 32, 32, 2048, 512)
    family = space_of(ask, axes_of(ask, {}), {}).families[0]
    assert family.roles == ROLES
    assert "set knobs.precision, as all=int8" in sheets(ask, family.engines, family.roles)[0].refused


def test_an_engine_that_is_too_slow_to_decode_may_prefill() -> None:
    ask, engine = Ask("llama_3_1_8b", "dgx_h100", 1, 8, 1024, 256, tpot_ms=2.0), Engine("vllm", "tp=1")
    slow, prefills = (sheets(ask, [engine], roles)[0] for roles in (ROLES[:2], ROLES))
    assert (slow.kind, slow.prefill) == ("TPOT", ())
    assert (prefills.kind, prefills.decode) == ("", ())
    assert len(prefills.prefill) == 2


def test_prompts_of_a_step_fit_in_the_cache() -> None:
    """One of 60,000 tokens does, of the eight that a step has tokens for."""
    ask, engine = Ask("llama_3_1_8b", "dgx_h100", 1, 8, 180_000, 256, tpot_ms=100.0), Engine("vllm", "tp=1", (), 10**6)
    (sheet,) = sheets(ask, [engine], ("prefill",))
    held = sheet.capacity // ask.input_tokens
    assert 1 < held < engine.tokens // ask.input_tokens
    assert [count for count, _ in sheet.prefill] == [1, held]


def test_settings_of_engines_are_theirs_and_not_of_a_step() -> None:
    ask = Ask("llama_3_1_8b", "dgx_h100", 1, 8, 1024, 256)
    engine = Engine("sglang", "tp=1", (("engines.cache.gpu_memory_utilization", "0.7"), ("knobs.precision", "kv=fp8")))
    assert words_of(ask, engine).settings == {"knobs.precision": "kv=fp8"}
    assert service_of(ask, engine).engines.cache.gpu_memory_utilization == 0.7


def test_rows_are_written_by_kernels_of_their_own_where_there_are_such() -> None:
    there, gpu = load_machine("cloudmatrix384").collectives, load_machine("dgx_h100").collectives
    assert driven_by("put_collect", "", there) == ("fused_both", "fused_both_combine")
    assert driven_by("put_collect", "fused_push", there) == ("fused_push", "fused_push_combine")
    assert driven_by("put_collect", "", gpu) == driven_by("all_to_all", "", there) == ("", "")
