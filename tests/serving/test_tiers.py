"""Blocks below HBM: found, loaded over the links of the machine, waited for, and written back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.loop import Loop
from simulator.serving.outcome import outcome
from simulator.serving.requests import Requests
from simulator.serving.settings import Service
from simulator.serving.show import headline
from tests.serving.services import BLOCK, instances, run, service, steps_by_formula

GIB = 2**30
FAST = {"machine.host.memory.link": "1000000 TB/s", "machine.host.memory.rate": "1000000 TB/s"}


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


def engines(tokens: int, machine: dict[str, str] | None = None, count: int = 1, **cache: Any) -> dict[str, Any]:
    """Engines whose HBM has room for so many tokens, on a machine with changes."""
    made = instances(count=count, tokens=tokens)
    made["step"] = made["step"].replace(machine or {})
    made["cache"] |= cache
    return made


def prompts(families: list[int], tokens: int = 160, apart_s: float = 1.0) -> Requests:
    """One after the other, those of one family alike but for their last block."""
    count, blocks = len(families), tokens // BLOCK
    chains = [family * 1000 + np.arange(blocks) for family in families]
    for number, chain in enumerate(chains):
        chain[-1] = 10**6 + number
    none = np.zeros(count)
    return Requests(np.arange(count) * apart_s, np.full(count, tokens), np.full(count, 2), np.concatenate(chains),
                    np.arange(count + 1) * blocks, BLOCK, none - 1, none, none)  # fmt: skip


def token_bytes(of: Service) -> float:
    return Loop(of, prompts([1]))._kinds["together"].token_bytes


def gib(tokens: float) -> float:
    return tokens * token_bytes(service()) / GIB


def test_a_prompt_waits_for_its_blocks_as_long_as_their_bytes_take_over_the_link() -> None:
    """HBM has room for one prompt; the third is like the first, which lies in the host."""
    of = service(engines(176, kv_offloading_gib=1.0))
    served = run(of, prompts([1, 2, 1]))
    assert served.lower is not None
    assert served.lower.tokens["host"].tolist() == [0, 0, 144]
    assert served.cached_tokens.tolist() == [0, 0, 144]
    link = of.engines.step.machine_spec().host.memory
    assert link is not None
    want_s = 144 * token_bytes(of) / link.link.si
    np.testing.assert_allclose(served.waits()["load"], [0, 0, want_s], rtol=1e-6)
    assert served.lower.about["host"]["read_tokens"] == 144
    assert served.lower.about["host"]["written_tokens"] == 160 + 160 + 16
    np.testing.assert_allclose(sum(served.waits().values()),
                               (served.times["last_token"] - served.times["arrival"]) / 1e12, rtol=1e-9)  # fmt: skip


def test_what_is_loaded_is_not_computed_and_a_slow_link_is_waited_for() -> None:
    requests = prompts([1, 2, 1, 2, 1, 2])
    without = run(service(engines(176)), requests)
    assert not without.cached_tokens.any()
    waits = []
    for link in ("10 GB/s", "1 GB/s", "0.1 GB/s"):
        served = run(service(engines(176, {"machine.host.memory.link": link}, kv_offloading_gib=1.0)), requests)
        assert served.steps["prefill_tokens"].sum() == 6 * 160 - served.cached_tokens.sum()
        assert served.cached_tokens.tolist() == [0, 0, 144, 144, 144, 144]
        assert (served.waits()["prefill"] <= without.waits()["prefill"]).all()
        waits.append(served.waits()["load"].sum())
    assert waits[1] == pytest.approx(10 * waits[0], rel=1e-6)
    assert waits[2] == pytest.approx(100 * waits[0], rel=1e-6)


def test_loads_at_once_share_the_memory_of_their_host() -> None:
    """Two engines on one host, whose memory is slower than both of their links."""
    slow = {"machine.host.memory.rate": "1 GB/s"}
    both = service(engines(176, slow, count=2, kv_offloading_gib=1.0))
    alone = run(both, prompts([1, 3, 2, 3, 1], apart_s=1.0)).waits()["load"][4]
    pair = prompts([1, 2, 3, 4, 1, 2], apart_s=1.0)
    at_once = Requests(np.array([0.0, 0.1, 1.0, 1.1, 2.0, 2.0]), pair.input_tokens, pair.output_tokens, pair.hashes,
                       pair.hash_start, BLOCK, pair.after, pair.think_s, pair.priority)  # fmt: skip
    load = run(both, at_once).waits()["load"]
    np.testing.assert_allclose(load[4:], 2 * alone, rtol=1e-6)


def test_a_pool_is_shared_and_a_host_is_not() -> None:
    """Two engines in turn: what the first one computed the second one finds in the pool alone."""
    requests = prompts([1, 1, 1, 1])
    host = run(service(engines(0, count=2, kv_offloading_gib=1.0)), requests)
    assert host.cached_tokens.tolist() == [0, 0, 144, 144]
    of = service(engines(0, count=2), pool={"size_gib": 1.0})
    pool = run(of, requests)
    assert pool.lower is not None
    assert pool.lower.tokens["pool"].tolist() == [0, 144, 0, 0]
    assert pool.cached_by_tier()["hbm"].tolist() == [0, 0, 144, 144]
    assert pool.waits()["load"][1] > 0


def test_what_is_written_to_a_pool_shares_ports_with_keys_and_values_on_their_way() -> None:
    """Engines of eight cards each on a host of its own: half of what the pool gets leaves by the ports of the dies."""
    eight = {"step": instances("tp=8")["step"]}
    apart = {"prefill": eight, "transfer": {"layer_by_layer": False}}
    alone, beside = (run(service(eight, **apart, pool={"size_gib": size}), prompts([1, 2, 3], tokens=1600))
                     for size in (0.0, 1.0))  # fmt: skip
    assert not beside.cached_tokens.any()
    gained = beside.waits()["transfer"] / alone.waits()["transfer"]
    assert (gained > 1.1).all()
    assert (gained < 2.0).all()


def test_where_a_prompt_lies_is_told_apart() -> None:
    """The host has room for two prompts, the pool for all: what both lack is computed."""
    of = service(engines(176, kv_offloading_gib=gib(336)), pool={"size_gib": 1.0})
    served = run(of, prompts([1, 2, 3, 4, 4, 3, 1]))
    assert served.lower is not None
    assert served.cached_by_tier()["hbm"].tolist() == [0, 0, 0, 0, 144, 0, 0]
    assert served.lower.tokens["host"].tolist() == [0, 0, 0, 0, 0, 144, 0]
    assert served.lower.tokens["pool"].tolist() == [0, 0, 0, 0, 0, 0, 144]
    found = outcome(served)
    ratios = [found.whole.metrics[f"prefix_cache_hit_ratio_{tier}"]["avg"] for tier in ("hbm", "host", "pool")]
    assert ratios == [pytest.approx(144 / 7 / 160)] * 3
    assert sum(map(float, ratios)) == pytest.approx(float(found.whole.metrics["prefix_cache_hit_ratio"]["avg"]))
    lines = [line for line in headline(found) if line.startswith(("prompts cached", "host", "pool"))]
    assert lines[0] == "prompts cached: 12.9% hbm, 12.9% host, 12.9% pool"
    assert "144 read" in lines[1]
    assert "144 read" in lines[2]


def test_what_others_load_is_not_shared_before_it_is_there() -> None:
    """Two prompts alike at once, over a link that takes longer than the prompt: both load, none reads what is on its
    way."""
    slow = engines(1000, {"machine.host.memory.link": "0.001 GB/s"}, kv_offloading_gib=1.0)
    fill = prompts([1, 2, 3, 4, 5, 6, 7, 1, 1], apart_s=100.0)
    arrival = fill.arrival_s.copy()
    arrival[-1] = arrival[-2]
    at_once = Requests(arrival, fill.input_tokens, fill.output_tokens, fill.hashes, fill.hash_start, BLOCK, fill.after,
                       fill.think_s, fill.priority)  # fmt: skip
    served = run(service(slow), at_once)
    assert served.lower is not None
    assert served.lower.tokens["host"][-2] == served.lower.tokens["host"][-1] > 100
    assert served.cached_tokens[-2:].tolist() == [144, 144]
    assert (served.times["prefilled"][-2:] > served.times["admitted"][-2:] + 10**12).all()


FAMILIES = np.random.default_rng(5).zipf(1.3, 300).clip(max=40).tolist()


@pytest.mark.parametrize("host", [320, 800, 1600])
def test_written_back_over_a_fast_link_a_host_makes_hbm_larger(host: int) -> None:
    """HBM that gives what it evicts to a host finds what a cache of the sum of sizes finds."""
    requests = prompts(FAMILIES, apart_s=1.0)
    two = run(service(engines(480, FAST, kv_offloading_gib=gib(host + 1), write_policy="write_back")), requests)
    one = run(service(engines(480 + host)), requests)
    np.testing.assert_array_equal(two.cached_tokens, one.cached_tokens)
    assert two.lower is not None
    assert two.lower.tokens["host"].any()
    assert 0 < one.cached_tokens.sum() < 0.9 * 144 * len(requests)


def test_a_larger_host_finds_more() -> None:
    families = FAMILIES[:120]
    requests = prompts(families)
    for policy in ("write_through", "write_back"):
        found = [run(service(engines(320, kv_offloading_gib=gib(tokens + 1), write_policy=policy)), requests)
                 for tokens in (160, 480, 960, 1920, 3840, 15360)]  # fmt: skip
        sums = [int(one.cached_tokens.sum()) for one in found]
        assert sums == sorted(sums)
        assert sums[0] < sums[-1]
        assert sums[-1] == 144 * (len(families) - len(set(families))), "all that came before"


@pytest.mark.parametrize(("parts", "text"), [
    ({"engines": engines(0, kv_offloading_gib=1e-9)}, r"cache\.kv_offloading_gib is 1e-09; a block of 16 tokens"),
    ({"pool": {"size_gib": 1e-9}}, r"pool\.size_gib is 1e-09; a block of 16 tokens .* at least as much, or 0"),
    ({"engines": {"step": instances()["step"].replace({"machine": "h20_node"}), "cache": {"kv_offloading_gib": 1.0}}},
     r"h20_node: its file has no table \[host\.memory\]"),
])  # fmt: skip
def test_tiers_that_cannot_be_are_refused(parts: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        run(service(**parts), prompts([1]))


@pytest.mark.parametrize(("parts", "text"), [
    ({"engines": engines(0, kv_offloading_gib=1.0), "prefill": instances()}, "only decode look up no prompts"),
    ({"engines": {**instances(), "cache": {"enable_prefix_caching": False, "kv_offloading_gib": 1.0,
                                           "write_policy": "write_back"}}}, "HBM keeps nothing"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(parts: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        service(**parts)


@pytest.mark.parametrize("hash_tokens", [16, 32])
def test_a_pool_alone_is_read_where_hbm_keeps_nothing(hash_tokens: int) -> None:
    """As an engine with a connector and without prefix caching; a hash stands for one block, or for two."""
    fine = prompts([1, 2, 1, 1, 2])
    tokens = fine.input_tokens * hash_tokens // BLOCK
    requests = Requests(fine.arrival_s, tokens, fine.output_tokens, fine.hashes, fine.hash_start, hash_tokens,
                        fine.after, fine.think_s, fine.priority)  # fmt: skip
    served = run(service(engines(0, enable_prefix_caching=False), pool={"size_gib": 1.0}), requests)
    assert served.cached_by_tier()["hbm"].tolist() == [0] * 5
    assert served.cached_tokens.tolist() == [0, 0, *(9 * hash_tokens,) * 3]


def test_a_pool_on_two_kinds_of_machines_is_refused() -> None:
    other = instances()
    other["step"] = other["step"].replace({"machine": "dgx_h200"})
    of = service(other, prefill=engines(0), transfer={"rate_gb_s": 10.0}, pool={"size_gib": 1.0})
    with pytest.raises(InputError, match=r"no fabric joins them: pool\.hosts must be on .* pool\.size_gib must"):
        run(of, prompts([1]))
