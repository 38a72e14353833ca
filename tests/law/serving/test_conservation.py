"""Blocks and tokens of a service are conserved, at every event and in the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.serving.engine import Engine
from simulator.serving.group import GROWN, Group
from simulator.serving.record import Served
from simulator.serving.requests import Requests
from simulator.serving.settings import Service
from tests.serving.services import drawn, groups_of, instances, served_watched, service, sharing, steps_by_formula

SMALL = 640  # tokens of a cache that a few requests fill
CASES: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm, small": {"tokens": SMALL},
    "vllm, long prompts": {"tokens": SMALL, "max_num_batched_tokens": 64, "long_prefill_token_threshold": 24},
    "vllm, whole prompts": {"tokens": SMALL, "max_num_batched_tokens": 64, "enable_chunked_prefill": False},
    "vllm, few": {"max_num_seqs": 3},
    "sglang": {"scheduler": "sglang", "tokens": SMALL},
    "sglang, chunks": {"scheduler": "sglang", "tokens": SMALL, "max_num_batched_tokens": 64},
    "trtllm": {"scheduler": "trtllm", "tokens": SMALL},
    "trtllm, chunks": {"scheduler": "trtllm", "tokens": SMALL, "max_num_batched_tokens": 64},
    "groups": {"mesh": "tp=1,dp=2", "tokens": SMALL},
}
APART = {"vllm, apart": {"prefill": instances(count=2, tokens=SMALL)},
         "small, apart": {"engines": instances(tokens=SMALL, count=2), "prefill": instances(tokens=SMALL)},
         "chunks, apart": {"engines": instances(tokens=SMALL),
                           "prefill": instances(tokens=SMALL, max_num_batched_tokens=48, count=2),
                           "transfer": {"rate_gb_s": 0.02}},
         "after, apart": {"engines": instances(tokens=SMALL, mesh="tp=1,dp=2"),
                          "prefill": instances(tokens=SMALL), "transfer": {"layer_by_layer": False}}}  # fmt: skip
SERVICES: dict[str, Service] = {name: service(instances(**case)) for name, case in CASES.items()} | {
    name: service(**case) for name, case in APART.items()}  # fmt: skip
REQUESTS = {"alone": drawn(60, 3), "sharing": sharing(60, 5)}


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


def one_by_one(group: Group) -> int:
    """Blocks that the requests of a group need, each for itself."""
    needed = [-(-group.length(one) // group.block) for one in group.decoding.values()]
    needed += [one.blocks for one in group.prefilling]
    needed += [-(-one.prompt // group.block) for one in (*group.coming.values(), *group.arrived)]
    return sum(needed)


def in_the_cache(group: Group) -> int:
    """Blocks in use, from what every holder holds: shared ones once."""
    cache = group.cache
    own = sum(held.blocks - len(held.hashed) * cache.hash_blocks for held in cache._held.values())
    return own + len({one for held in cache._held.values() for one in held.hashed}) * cache.hash_blocks


def count_the_cache(group: Group) -> None:
    """Every block is used or free, and somebody holds what is used."""
    cache = group.cache
    assert 0 <= cache.used <= cache.blocks
    assert cache.used + cache.free == cache.blocks
    assert cache.used == in_the_cache(group)


def look(engine: Engine) -> None:
    for group in engine.groups:
        cache = group.cache
        count_the_cache(group)
        running = [*group.decoding.values(), *group.prefilling, *group.coming.values(), *group.arrived]
        if engine.role != "prefill":
            shared = sum(len(held.hashed) for held in cache._held.values())
            assert cache.used == one_by_one(group) if not shared else cache.used <= one_by_one(group)
            assert set(cache._held) == {GROWN, *(one.request for one in running)}, "others hold nothing"
        assert set(cache._held).isdisjoint(one.request for one in group.waiting), "who gave way holds nothing"
        assert group.cached == sum(group.length(one) for one in group.decoding.values())
        assert len(group.decoding) == sum(group.growth._classes)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("name", SERVICES)
def test_blocks_and_tokens_are_conserved(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = REQUESTS[kind]
    loop, served = served_watched(SERVICES[name], requests, look, monkeypatch)
    np.testing.assert_array_equal(served.emitted, requests.output_tokens)
    for group in groups_of(loop):
        assert (group.cache.used, group.promised, group.to_come, group.cached, group.running) == (0, 0, 0, 0, 0)
    tokens_add_up(served, requests)
    if "trtllm" in name:
        assert not served.preemptions.any()
    if "small" in name and kind == "alone":
        assert served.preemptions.any(), "the case is of use"


def tokens_add_up(served: Served, requests: Requests) -> None:
    """A preempted request gets the next token of the step that computes it again, all others of steps that decode."""
    decoded = int(served.steps["decoding"].sum())
    again = int((served.preempted_ps > 0).sum())
    want = int((requests.output_tokens - 1).sum())
    assert want - int(served.preemptions.sum()) <= decoded <= want - again
    prompts = int((requests.input_tokens - served.cached_tokens).sum())
    if not served.preemptions.any():
        assert decoded == want
        assert int(served.steps["prefill_tokens"].sum()) == prompts
    elif not served.cached_tokens.any():
        assert int(served.steps["prefill_tokens"].sum()) > prompts
