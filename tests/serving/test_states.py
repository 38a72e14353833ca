"""States of linear attention take blocks of every request, and give blocks their size in vLLM's cache."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.build import kind_of
from simulator.serving.cache import BlockCache
from simulator.serving.loop import Loop
from simulator.serving.requests import independent
from simulator.serving.settings import Instances
from simulator.serving.states import paged, state_bytes_of
from simulator.study.step import StepWords, step_of
from tests.serving.services import instances, service


def hybrid(stack: str = "vllm", layers: int = 60, **cache: int) -> Instances:
    """Engines of Qwen3.5 on a node of H200."""
    step = step_of(StepWords("qwen3_5_397b", "dgx_h200", stack, "tp=8", "decode",
                             {"model.shapes.layers": str(layers)}))  # fmt: skip
    return Instances.model_validate({"step": step, "scheduling": {"scheduler": stack}, "cache": cache})


def test_a_block_holds_a_state_and_a_request_three_of_them() -> None:
    """The worked example of `serving.states`."""
    kind = kind_of(hybrid(), "lattice", 0, None)
    assert (kind.settings.cache.block_size, kind.state_blocks) == (528, 3)
    assert not kind.settings.cache.enable_prefix_caching
    assert kind.most_tokens == (kind.capacity // 528 - 3) * 528
    assert kind.token_bytes == 15 * 1024


def test_other_libraries_keep_the_size_of_their_blocks() -> None:
    kind = kind_of(hybrid("sglang", block_size=64), "lattice", 0, None)
    assert kind.settings.cache.block_size == 64
    assert kind.state_blocks == -(-45 * 533_504 // (64 * 15 * 1024))


def test_models_of_full_attention_alone_are_as_they_were() -> None:
    settings = Instances.model_validate(instances(tokens=320))
    assert state_bytes_of(settings) == 0.0
    assert paged(settings, 0.0, 1.0) is settings
    assert kind_of(settings, "lattice", 0, None).state_blocks == 0


@pytest.mark.parametrize("states", [0, 3])
def test_states_are_held_from_beginning_to_end(states: int) -> None:
    cache = BlockCache(10, 16, False, state_blocks=states)
    assert cache.take(-1, [], 0) == 0, "what decode steps have begun has none"
    assert cache.take(0, [], 2) == 0
    assert cache.used == 2 + states
    assert cache.grow(0, 1)
    assert (cache.take(1, [], 7 - states, spare=1), cache.used) == (None, 3 + states), "no room: nothing changed"
    cache.release(0)
    assert cache.used == 0


def test_prompts_are_cut_at_ends_of_blocks_where_states_are_kept_there() -> None:
    """1,500 tokens are two blocks and 444 more: a step to the last end, then the rest; fewer than a block are one."""
    engines = {"step": hybrid(layers=4).step, "cache": {"tokens": 64 * 528}}
    requests = independent(np.array([0.0, 1.0, 2.0]), np.array([1500, 1056, 400]), np.full(3, 2))
    cut = Loop(service({**engines, "scheduling": {"mamba_cache_mode": "align"}}), requests).run()
    tokens = cut.steps["prefill_tokens"]
    assert tokens[tokens > 0].tolist() == [1056, 444, 1056, 400]
    whole = Loop(service(engines), requests).run().steps["prefill_tokens"]
    assert whole[whole > 0].tolist() == [1500, 1056, 400]


def test_a_step_must_have_room_for_a_block() -> None:
    scheduling = {"mamba_cache_mode": "align", "max_num_batched_tokens": 256}
    engines = {"step": hybrid(layers=4).step, "scheduling": scheduling}
    with pytest.raises(InputError, match="it must be at least a block, 528 tokens"):
        kind_of(Instances.model_validate(engines), "lattice", 0, None)


def test_states_move_with_a_prompt_to_where_it_is_decoded() -> None:
    engines = {"step": hybrid(layers=4).step}
    apart = service(engines, prefill=engines, transfer={"layer_by_layer": False, "rate_gb_s": 1.0})
    loop = Loop(apart, independent(np.zeros(1), np.array([700]), np.array([4])))
    kind = loop._kinds["decode"]
    moved_bytes = 700 * kind.token_bytes + kind.state_bytes
    assert kind.state_bytes == 3 * 533_504
    assert loop.run().waits()["transfer"].tolist() == pytest.approx([8 * moved_bytes / 1e9], rel=1e-6)


def test_fewer_requests_run_at_once_where_each_has_states() -> None:
    """A cache of nine blocks has room for two requests of a block and three of states each, where it had for nine."""
    engines = {"step": hybrid(layers=4).step, "cache": {"tokens": 9 * 528}}
    requests = independent(np.zeros(4), np.full(4, 400), np.full(4, 8))
    served = Loop(service(engines), requests).run()
    assert served.done.all()
    assert served.steps["used_blocks"].max() == 8
    assert served.steps["decoding"].max() == 2
