"""Laws of what lies below HBM: blocks are conserved over the tiers at every event, and waits add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.serving.engine import Engine
from simulator.serving.requests import Requests, independent
from simulator.serving.settings import Service
from simulator.serving.store import Store
from tests.law.serving.test_conservation import count_the_cache
from tests.law.serving.test_same_bytes import digest
from tests.serving.services import (
    drawn,
    groups_of,
    instances,
    run,
    served_watched,
    service,
    sharing,
    step,
    steps_by_formula,
)

SMALL = 640
HOST = {"kv_offloading_gib": 0.002}  # about 500 tokens
BACK = {**HOST, "write_policy": "write_back"}
POOL = {"size_gib": 0.006}


def of(cache: dict[str, Any], **how: Any) -> dict[str, Any]:
    made = instances(**{"tokens": SMALL, **how})
    made["step"] = step(how.get("mesh", "tp=1")).replace({"machine.host.memory.link": "0.5 GB/s"})
    made["cache"] |= cache
    return made


SERVICES: dict[str, Service] = {
    "host": service(of(HOST)),
    "host, written back": service(of(BACK)),
    "pool": service(of({}, count=2), pool=POOL),
    "both": service(of(HOST, count=2), pool=POOL),
    "both, written back": service(of(BACK, count=2), pool=POOL),
    "chunks": service(of(BACK, max_num_batched_tokens=64)),
    "sglang": service(of(HOST, scheduler="sglang", max_num_batched_tokens=64), pool=POOL),
    "trtllm": service(of(BACK, scheduler="trtllm")),
    "ahead": service(of(HOST, async_scheduling=True)),
    "groups": service(of(HOST, mesh="tp=1,dp=2"), pool=POOL),
    "apart": service(of({}), prefill=of(BACK, count=2), pool=POOL),
}
REQUESTS = {"alone": drawn(60, 3), "sharing": sharing(80, 5, families=8)}


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


def in_the_store(store: Store) -> None:
    assert len(store) <= store.room
    assert not set(store._ready) & (set(store._reading) | store._writing)
    if not store.exclusive:
        assert store.written == len(store._ready) + len(store._reading) + store.evicted


def look(engine: Engine) -> None:
    for group in engine.groups:
        cache = group.cache
        count_the_cache(group)
        waiting = {one.request for one in group.waiting}
        assert set(group.loading) <= set(cache._held), "what is loaded holds its place"
        assert not waiting & set(group.loading)
        if group.below is not None:
            for store in group.below._stores.values():  # type: ignore[attr-defined]
                in_the_store(store)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("name", SERVICES)
def test_blocks_are_conserved_and_waits_add_up(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = REQUESTS[kind]
    loop, served = served_watched(SERVICES[name], requests, look, monkeypatch)
    for group in groups_of(loop):
        assert (group.cache.used, group.promised, group.to_come, group.running) == (0, 0, 0, 0)
    lower, times = served.lower, served.times
    assert lower is not None
    np.testing.assert_allclose(sum(served.waits().values()), (times["last_token"] - times["arrival"]) / 1e12, rtol=1e-9)
    assert all((wait >= 0).all() for wait in served.waits().values())
    by_tier = served.cached_by_tier()
    assert all((tokens >= 0).all() for tokens in by_tier.values())
    np.testing.assert_array_equal(sum(by_tier.values()), served.cached_tokens)
    assert (served.cached_tokens < requests.input_tokens).all()
    if not served.preemptions.any():
        assert served.steps["prefill_tokens"].sum() == (requests.input_tokens - served.cached_tokens).sum()
        np.testing.assert_array_equal(lower.load_ps > 0, sum(lower.tokens.values()) > 0)
    below = sum(int(tokens.sum()) for tokens in lower.tokens.values())
    assert sum(about["read_tokens"] for about in lower.about.values()) >= below
    assert (below > 0) == (kind == "sharing"), "the case is of use"
    for store in (one for stores in loop._tiers.stores.values() for one in stores):
        assert not store._reading
        assert not store._writing


def test_memory_below_hbm_that_nothing_is_found_in_changes_no_byte() -> None:
    """Neither without any, nor where prompts share nothing, and none is computed twice: what is written moves beside
    the steps."""
    plain = REQUESTS["alone"]
    unlike = Requests(plain.arrival_s, plain.input_tokens, plain.output_tokens, np.arange(len(plain)),
                      np.arange(len(plain) + 1), 16, plain.after, plain.think_s, plain.priority)  # fmt: skip
    for requests in (independent(plain.arrival_s, plain.input_tokens, plain.output_tokens), unlike):
        found = [digest(run(service(of(cache, tokens=6400), pool=pool), requests)) for cache, pool in
                 (({}, {}), ({"kv_offloading_gib": 0.0, "write_policy": "write_back"}, {}), (HOST, POOL))]  # fmt: skip
        assert len(set(found)) == 1


def test_a_service_of_nothing_below_hbm_has_no_trace_of_it() -> None:
    served = run(service(), REQUESTS["sharing"])
    assert served.lower is None
    assert "load" not in served.waits()
    assert not served.cached_by_tier()
