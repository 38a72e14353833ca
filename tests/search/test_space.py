"""The layouts that are searched: which there are for a dense model and one with experts, and which are refused."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.errors import InputError
from simulator.search.asked import axes
from simulator.search.deployment import Ask
from simulator.search.space import Family, Space, axes_of, counted, space_of

DENSE = Ask("qwen3_8b", "dgx_h100", 1, 8, 1024, 128)
EXPERTS = Ask("qwen3_30b_a3b", "dgx_h100", 8, 8, 1024, 128)


def space(ask: Ask, *fixed: str, varied: tuple[str, ...] = ()) -> Space:
    named = axes(None, fixed, varied)
    return space_of(ask, axes_of(ask, named), named)


def meshes(found: Space) -> list[str]:
    return [one.engines[0].mesh for one in found.families]


def ways(found: Space) -> dict[tuple[str, str], tuple[str, ...]]:
    """Roles by exchange and schedule."""
    settings = [(dict(one.engines[0].settings), one.roles) for one in found.families]
    return {(some.get("knobs.exchange", ""), some.get("knobs.schedule", "")): roles for some, roles in settings}


def test_a_dense_model_is_tensor_parallel_within_a_node() -> None:
    found = space(DENSE, "stack=vllm")
    assert meshes(found) == ["tp=1", "tp=2", "tp=4", "tp=8"]
    assert all(not one.engines[0].settings and one.roles == ("together", "decode", "prefill") for one in found.families)
    assert [one.tokens for one in found.families[0].engines] == [2048, 8192, 16384]


def test_a_dense_model_on_two_nodes_has_stages_of_whole_nodes() -> None:
    found = space(DENSE._replace(most_gpus=16), "stack=vllm", "cards=16")
    assert meshes(found) == ["tp=8,pp=2", "tp=16"]


def test_experts_are_whole_or_on_all_ranks() -> None:
    found = space(EXPERTS, "stack=vllm", "cards=8")
    whole = ["dp=8", "tp=2,dp=4", "tp=4,dp=2"]
    assert Counter(meshes(found)) == {"tp=8": 1, "tp=8,ep=8": 1, **dict.fromkeys(whole, 1),
                                      **{f"{mesh},ep=8": 5 for mesh in whole}}


def test_each_framework_has_its_own_ways_to_experts() -> None:
    both = ("together", "decode", "prefill")
    deepep = {("deepep_ll", ""): ("decode",), ("deepep_ll", "two_batches"): ("decode",),
              ("deepep_normal", ""): ("prefill",), ("deepep_normal", "two_batches"): ("prefill",)}
    of_all = ("cards=8", "tp=1", "ep=all")
    assert ways(space(EXPERTS, "stack=vllm", *of_all)) == {("all_gather", ""): both} | deepep
    assert ways(space(EXPERTS, "stack=sglang", *of_all)) == {
        ("all_gather", ""): both, ("deepep_ll", "single_batch"): ("decode",)} | deepep
    assert ways(space(EXPERTS, "stack=trtllm", *of_all)) == {("all_gather", ""): both, ("all_to_all", ""): both}


def test_modes_are_roles() -> None:
    of_all = ("stack=vllm", "cards=8", "tp=1", "ep=all")
    assert ways(space(EXPERTS, "mode=together", *of_all)) == {("all_gather", ""): ("together",)}
    apart = ways(space(EXPERTS, "mode=apart", *of_all))
    assert set(apart.values()) == {("decode", "prefill"), ("decode",), ("prefill",)}


def test_what_is_named_is_taken_as_it_is() -> None:
    """Whatever the framework offers: an exchange, two stages in a node, an order of pieces."""
    assert ways(space(EXPERTS, "stack=vllm", "cards=8", "tp=1", "ep=all", "exchange=put_collect", "schedule=hooks",
                      "mode=together")) == {("put_collect", "hooks"): ("together",)}
    assert meshes(space(DENSE, "stack=vllm", "cards=8", "pp=2")) == ["tp=4,pp=2"]
    (one,) = space(DENSE, "stack=vllm", "cards=1", "cores=1/2", "knobs.micro_batches=2", "tokens=4096").families
    assert one.engines[0].settings == (("knobs.cores", "1/2"), ("knobs.micro_batches", "2"))
    assert [engine.tokens for engine in one.engines] == [4096]


@pytest.mark.parametrize(("fixed", "refused"), [
    (("tp=3",), "tp x cp x pp do not divide the ranks of an engine"),
    (("tp=2", "apart=8"), "tp x cp x pp do not divide the ranks of an engine"),
    (("tp=2",), "data-parallel groups of a model without experts are engines of their own"),
    (("cards=16",), "an engine has more cards than there are GPUs"),
])
def test_what_cannot_be_is_refused_by_reason(fixed: tuple[str, ...], refused: str) -> None:
    with pytest.raises(InputError, match="there is nothing to search: ") as error:
        space(DENSE, "stack=vllm", "cards=8", "pp=1", *fixed)
    assert refused in str(error.value)


def test_stages_do_not_have_to_be_whole_ranks() -> None:
    """Three stages of eight ranks leave two that would do nothing."""
    with pytest.raises(InputError, match="do not divide"):
        space(DENSE, "stack=vllm", "cards=8", "tp=2", "pp=3")


def test_experts_apart_lie_on_ranks_of_their_own() -> None:
    (mesh,) = set(meshes(space(EXPERTS, "stack=vllm", "cards=8", "tp=1", "apart=2", "ep=all", "redundant=0")))
    assert mesh == "dp=6,ep=2,apart=2"


def test_all_of_trtllms_attention_is_data_parallel_or_none() -> None:
    found = space(EXPERTS, "stack=trtllm", "cards=8", "ep=1", "pp=1")
    assert meshes(found) == ["dp=8", "tp=8"]
    assert found.refused["TensorRT-LLM has attention data parallel over all ranks, or not at all"] == 2 * 3


def test_drafts_are_looked_at_where_they_are_accepted() -> None:
    ask = Ask("deepseek_r1", "dgx_h200", 8, 8, 1024, 128)
    assert "drafts" not in axes_of(ask, {})
    assert axes_of(ask._replace(acceptance=0.7), {})["drafts"] == ("0", "1", "2", "3")
    drafts = space(ask._replace(acceptance=0.7), "stack=vllm", "cards=8", "tp=8", "ep=1", "pp=1")
    assert [one.engines[0].settings for one in drafts.families] == [
        (), *((("batch.drafts", number),) for number in "123")]


def test_families_are_told_apart() -> None:
    found = space(EXPERTS)
    assert len({one.engines for one in found.families}) == len(found.families)
    assert all(isinstance(one, Family) and one.roles for one in found.families)
    assert (counted(1), counted(1234)) == ("1 layout", "1,234 layouts")
