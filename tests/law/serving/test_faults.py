"""Faults of a service: what is conserved, what costs nothing, and whom they slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from simulator.serving.engine import Engine
from simulator.serving.loop import Loop
from simulator.serving.record import DONE, LOST, NEVER, TIMES, Served
from simulator.serving.requests import Requests
from simulator.serving.settings import Service
from simulator.serving.tokens import chunks_of, tokens_between
from simulator.spec.faults import faults_of
from tests.law.serving.test_conservation import count_the_cache
from tests.serving.drifting import engines as engines_of_experts
from tests.serving.services import drawn, groups_of, instances, run, service, sharing, steps_by_formula, watched

SMALL = 640
SOON = {"start_s": 0.02, "load_gb_s": 1e9, "capture_s": 0.0}
FRONT = {"request_ms": 0.0, "health_check_interval_s": 0.02, "health_check_timeout_s": 0.005,
         "retry_initial_backoff_ms": 1.0, "retry_max_retries": 50}  # fmt: skip


def engines(count: int = 2, **scheduling: Any) -> dict[str, Any]:
    return instances(count=count, **scheduling) | {"restart": SOON}


SERVICES: dict[str, Service] = {
    "together": service(engines(), front=FRONT),
    "small": service(engines(tokens=SMALL), front=FRONT | {"router": "kv"}),
    "sglang": service(engines(tokens=SMALL, scheduler="sglang"), front=FRONT | {"router": "power_of_two"}),
    "trtllm": service(engines(tokens=SMALL, scheduler="trtllm"), front=FRONT | {"router": "cache_aware"}),
    "shared queue": service(engines(mesh="tp=1,dp=2", shared_queue=True, async_scheduling=True), front=FRONT),
    "groups": service(engines(mesh="tp=1,dp=2", tokens=SMALL), front=FRONT | {"router": "length_aware"}),
    "apart": service(engines(), prefill=engines(max_num_batched_tokens=128), front=FRONT),
    "slow transfers": service(engines(tokens=SMALL), prefill=engines(tokens=SMALL), transfer={"rate_gb_s": 0.2},
                              front=FRONT),
    "after": service(engines(), prefill=engines(), transfer={"layer_by_layer": False, "rate_gb_s": 0.2}, front=FRONT),
}  # fmt: skip
APART = ("apart", "slow transfers", "after")
REQUESTS = {"alone": drawn(60, 3), "sharing": sharing(60, 5)}
SHORT = drawn(60, 3, outputs=(1, 3))


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


def struck(of: Service, requests: Requests, *faults: str, **how: Any) -> Served:
    return run(of, requests, faults=faults_of(faults), **how)


def columns(served: Served) -> list[np.ndarray]:
    return [*(served.times[name] for name in TIMES), *served.steps.values(), served.emitted, served.status,
            served.decode_engine, served.preempted_ps]  # fmt: skip


def same(one: Served, other: Served) -> bool:
    return all(np.array_equal(mine, its) for mine, its in zip(columns(one), columns(other), strict=True))


def losses(name: str) -> Sequence[str]:
    """Of every kind of engine, of a process, and of a host that is silent."""
    roles = ("prefill", "decode") if name in APART else ("engine",)
    return [text for place, role in enumerate(roles) for text in (
        f"{30 + 7 * place} ms: engine {role}.0 lost", f"{70 + 5 * place} ms: engine {role}.1 silent",
        f"about every 40 ms: engine {role}.* lost for 10 ms")]  # fmt: skip


def look(engine: Engine) -> None:
    for group in engine.groups:
        count_the_cache(group)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("name", SERVICES)
def test_requests_tokens_and_blocks_are_conserved(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request ends once, with what it asked for; what is cached on a lost engine is computed again, and nothing
    else is."""
    requests = REQUESTS[kind]
    watched(monkeypatch, look)
    loop = Loop(SERVICES[name], requests, steps="lattice", faults=faults_of(losses(name)))
    served = loop.run()
    assert (served.status == DONE).all()
    np.testing.assert_array_equal(served.emitted, requests.output_tokens)
    for group in groups_of(loop):
        assert (group.cache.used, group.promised, group.to_come, group.cached, group.running) == (0, 0, 0, 0, 0)
        assert not group.prompt_tokens
        assert not group.queued_tokens
    assert not loop._moves
    whole = (served.start_ps, served.end_ps + 1)
    assert tokens_between(served, chunks_of(served), *whole) == pytest.approx(requests.output_tokens.sum())
    assert sum(one.rerouted for one in served.struck) > 10, "the case is of use"
    if kind == "alone" and not served.preemptions[~rerouted(served)].any() and "small" not in name:
        without = int((requests.input_tokens + requests.output_tokens - 1).sum())
        again = sum(one.recomputed_tokens for one in served.struck)
        assert again
        if name in ("together", "shared queue", "apart", "after"):  # nobody is preempted for want of room
            assert int(served.steps["prefill_tokens"].sum() + served.steps["decoding"].sum()) == without + again


def rerouted(served: Served) -> np.ndarray:
    return np.isin(np.arange(len(served)), served.again_ps[:, 0])


@pytest.mark.parametrize("name", SERVICES)
def test_without_faults_and_with_faults_of_no_length_nothing_moves(name: str) -> None:
    role = "decode" if name in APART else "engine"
    plain = run(SERVICES[name], REQUESTS["alone"])
    nothing = struck(SERVICES[name], REQUESTS["alone"], f"10 ms: engine {role}.0 lost for 0 s",
                     f"20 ms: engine {role}.1 clock 0.5 for 0 s", f"30 ms: engine {role}.0 silent for 0 s")  # fmt: skip
    assert same(plain, nothing)
    assert not plain.struck
    assert [one.rerouted for one in nothing.struck] == [0, 0, 0]


@pytest.mark.parametrize("name", ["together", "apart"])
def test_tokens_of_short_answers_are_counted_too(name: str) -> None:
    """Where the last one comes with the prompt that is computed again no step decoded."""
    served = struck(SERVICES[name], SHORT, *(f"about every 3 ms: engine {role}.* lost for 2 ms" for role in
                    (("prefill", "decode") if name in APART else ("engine",))))  # fmt: skip
    chunks = chunks_of(served)
    assert (served.done & (served.emitted > 1) & (chunks.count == 0)).any(), "the case is of use"
    whole = (served.start_ps, served.end_ps + 1)
    assert tokens_between(served, chunks, *whole) == pytest.approx(SHORT.output_tokens.sum())


@pytest.mark.parametrize("router", ["round_robin", "kv", "power_of_two", "length_aware"])
def test_two_engines_of_which_one_is_lost_from_the_start_are_one_engine(router: str) -> None:
    requests = drawn(60, 3)
    one = run(service(instances(), front=FRONT | {"router": router}), requests)
    two = service(engines() | {"restart": {"enabled": False}}, front=FRONT | {"router": router})
    left = struck(two, requests, "0 s: engine 0 lost")
    assert (left.decode_engine == 1).all()
    for name in TIMES:
        np.testing.assert_array_equal(left.times[name], one.times[name])


@pytest.mark.parametrize("name", SERVICES)
def test_the_same_seed_gives_the_same(name: str) -> None:
    first, again = (struck(SERVICES[name], REQUESTS["alone"], *losses(name), seed=5) for _ in range(2))
    assert same(first, again)
    assert [vars(one) for one in first.struck] == [vars(one) for one in again.struck]
    other = struck(SERVICES[name], REQUESTS["alone"], *losses(name), seed=6)
    assert [one.struck_ps for one in first.struck] != [one.struck_ps for one in other.struck]


def test_who_waits_for_an_engine_that_never_comes_back_is_lost_and_is_told() -> None:
    of = service(engines(1) | {"restart": {"enabled": False}}, front=FRONT)
    served = struck(of, drawn(60, 3), "50 ms: engine 0 lost")
    done = served.status == DONE
    assert 0 < done.sum() < 60
    assert (served.status[~done] == LOST).all()
    assert (served.times["last_token"][done] <= 50 * 10**9).all()
    assert (served.emitted[~done] < served.requests.output_tokens[~done]).all()
    assert served.waiting_for == (f"{60 - done.sum()} requests wait for an engine that prefills and decodes: engine 0 "
                                  "is lost (50 ms: engine 0 lost)",)  # fmt: skip


def test_a_request_is_tried_so_often_and_no_more() -> None:
    of = service(engines(1), front=FRONT | {"retry_max_retries": 1})
    served = struck(of, drawn(60, 3), *(f"{at} ms: engine 0 lost for 5 ms" for at in (50, 70, 90)))
    assert (served.status != NEVER).all()
    lost = served.status == LOST
    assert 0 < lost.sum() == sum(one.lost for one in served.struck)
    assert (served.status[~lost] == DONE).all()


def elastic(redundant: int) -> Service:
    """Four data-parallel groups, whose experts each have a replica elsewhere with 32 redundant slots of a place."""
    engine = engines_of_experts(mesh=f"dp=4,ep=4,redundant={redundant}") | {"restart": SOON}
    engine["scheduling"] = {"async_scheduling": True}
    return service(engine, front=FRONT)


def test_replicas_of_experts_take_over_for_a_rank_that_is_lost() -> None:
    """Its group serves none until it is back, all requests end, and the other groups go on; without replicas the engine
    is lost as a whole."""
    requests = drawn(80, 3)
    for redundant, what in ((32, "rank 2 of engine 0"), (0, "engine 0")):
        loop = Loop(elastic(redundant), requests, steps="lattice", faults=faults_of(["60 ms: rank 2 of engine.0 lost"]))
        served = loop.run()
        assert (served.status == DONE).all()
        np.testing.assert_array_equal(served.emitted, requests.output_tokens)
        (one,) = served.struck
        assert (one.what, one.noticed_ps) == (what, one.struck_ps)
        assert one.over_ps > one.struck_ps
        away = (served.steps["start_ps"] >= one.struck_ps) & (served.steps["start_ps"] < one.over_ps)
        assert away.any() == bool(redundant), "an engine with replicas goes on"
        for group in groups_of(loop):
            assert (group.cache.used, group.promised, group.running) == (0, 0, 0)
        without = int((requests.input_tokens + requests.output_tokens - 1).sum())
        done = int(served.steps["prefill_tokens"].sum() + served.steps["decoding"].sum())
        assert done == without + one.recomputed_tokens


def test_a_rank_that_is_lost_again_takes_no_other_along_and_all_ranks_are_the_engine() -> None:
    again = struck(elastic(32), drawn(80, 3), "60 ms: rank 2 of engine.0 lost for 20 ms",
                   "65 ms: rank 2 of engine.0 lost for 20 ms", steps="lattice")  # fmt: skip
    assert [one.what for one in again.struck] == ["rank 2 of engine 0", "rank 2 of engine 0, lost already"]
    assert [one.rerouted for one in again.struck][1] == 0
    every = struck(elastic(32), drawn(80, 3), "60 ms: rank * of engine.0 lost for 20 ms", steps="lattice")
    assert [one.what for one in every.struck] == ["engine 0"]


def test_who_is_lost_twice_leaves_once() -> None:
    """Its prompt is where a host is silent, which is not noticed yet, when the engine that was to decode it dies."""
    front = {"retry_max_retries": 0, "health_check_interval_s": 1.0, "health_check_timeout_s": 0.1,
             "health_failure_threshold": 1}  # fmt: skip
    of = service(instances(count=2), prefill=instances(count=2, max_num_batched_tokens=512), front=front)
    served = struck(of, drawn(100, 3), "40 ms: engine prefill.0 silent", "41 ms: engine decode.0 lost",
                    "41 ms: engine decode.1 lost")  # fmt: skip
    lost = int((served.status == LOST).sum())
    assert lost > 10
    assert sum(one.lost for one in served.struck) == lost
    assert lost + int((served.status == DONE).sum()) == 100
