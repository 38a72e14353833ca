"""Whom faults strike, what is refused, and what slow ranks and links do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.model.micro_batch import MicroBatch
from simulator.serving import steps
from simulator.serving.loop import Loop
from simulator.serving.record import LOST, NEVER, Served
from simulator.serving.requests import Requests, independent
from simulator.serving.restart import restart_s, weights_bytes
from simulator.serving.settings import Service
from simulator.spec.faults import faults_of
from simulator.study.scenario import Scenario
from tests.serving.services import by_formula, drawn, instances, run, service, step


def slow_by_formula(scenario: Scenario, groups: Any) -> float:
    """As many times longer as the slowest rank is slow."""
    share = min((one.value for one in scenario.faults), default=1.0)
    return by_formula(scenario, groups) / share


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "step_seconds", slow_by_formula)


def struck(of: Service, requests: Requests, *faults: str, **how: Any) -> Served:
    return run(of, requests, faults=faults_of(faults), **how)


TWO = service(instances(count=2))
APART = service(instances(count=2), prefill=instances(count=2, max_num_batched_tokens=512))


@pytest.mark.parametrize(("fault", "why"), [
    ("0 s: engine decode.0 lost", "no engine is called 'decode.0'; there are engine.0, engine.1"),
    ("0 s: host 0 paused for 1 s", "a service has engines, ranks of them, and links"),
    ("0 s: rank 3 of engine.0 clock 0.5", "'3' is no rank of it; it is 0 to 0"),
    ("0 s: link engine.0 - engine.0 cut", "an engine is not joined to itself"),
    ("0 s: link die 0 - die 77 cut", "there is no link die 0 to die 77"),
    ("0 s: link engine.0 - engine.1 cut for 1 ms", "strikes nobody: nothing crosses this link"),
    ("about every 1 s: engine 0 clock 0.5", 'must end; write "... for 1 s"'),
    ("9 s: engine 0 lost", "strikes nobody: the run ends at 0.113827 s; strike before that"),
])  # fmt: skip
def test_a_fault_that_strikes_nobody_is_refused_with_what_would_be_right(fault: str, why: str) -> None:
    with pytest.raises(InputError, match=r"^fault '") as error:
        struck(TWO, drawn(30, 3), fault)
    assert why in str(error.value)


@pytest.mark.parametrize("name", ["1", "engine.1", "engine 1", "*.1"])
def test_engines_are_called_as_results_call_them(name: str) -> None:
    served = struck(TWO, drawn(30, 3), f"10 ms: engine {name} clock 0.5")
    assert [one.what for one in served.struck] == ["engine 1"]


def test_an_engine_comes_back_when_its_weights_are_loaded() -> None:
    """Of two layers of Qwen3-8B in BF16 the rank has all; 1 GB/s, 2 s before and 3 s after."""
    engines = instances(count=2) | {"restart": {"start_s": 2.0, "load_gb_s": 1.0, "capture_s": 3.0}}
    of = service(engines)
    model = step().transformer()
    attention, experts, hidden, words = 2 * (4096 * 4096 + 4096 * 1024), 3 * 4096 * 12288, 4096, 151936
    assert model.hidden == hidden
    want_bytes = 2 * (2 * (attention + experts) + 2 * words * hidden)
    assert weights_bytes(of.engines) == pytest.approx(want_bytes, rel=1e-3)
    assert restart_s(of.engines) == pytest.approx(5.0 + want_bytes / 1e9, rel=1e-3)
    lasting = independent(np.arange(40) * 0.4, np.full(40, 100), np.full(40, 10))
    one = struck(of, lasting, "1 s: engine 0 lost").struck[0]
    assert one.noticed_ps == one.struck_ps
    assert (one.over_ps - one.struck_ps) / 1e12 == pytest.approx(restart_s(of.engines))


def test_a_silent_host_is_found_by_the_third_check_that_fails() -> None:
    """Checks every 0.5 s fail after 0.1 s: silent from 0.7 s on, those of 1, 1.5 and 2 s fail."""
    front = {"request_ms": 0.0, "health_check_interval_s": 0.5, "health_check_timeout_s": 0.1}
    lasting = independent(np.arange(50) * 0.1, np.full(50, 100), np.full(50, 10))
    of = service(instances(count=2) | {"restart": {"enabled": False}}, front=front)
    served = struck(of, lasting, "0.7 s: engine 0 silent")
    assert served.struck[0].noticed_ps == round(2.1e12)
    assert served.struck[0].over_ps == NEVER
    late = served.times["first_token"] - served.times["arrival"] > 0.1e12
    between = (served.times["arrival"] >= 0.7e12) & (served.times["arrival"] < 2.1e12)
    assert late[between].sum() == between.sum() / 2, "every second one is sent there, and waits"
    assert not late[~between].any()
    back = struck(of, lasting, "0.7 s: engine 0 silent for 0.6 s").struck[0]
    assert (back.noticed_ps, back.over_ps) == (round(1.3e12), round(1.3e12)), "one that is back says so"


def test_a_slow_engine_slows_those_that_it_serves_alone() -> None:
    requests = drawn(60, 3)
    plain, slow = run(TWO, requests), struck(TWO, requests, "0 s: engine 0 clock 0.5")
    its = plain.decode_engine == 0
    np.testing.assert_array_equal(slow.times["last_token"][~its], plain.times["last_token"][~its])
    assert (slow.times["last_token"][its] > plain.times["last_token"][its]).all()
    steps_of = {name: served.steps["duration_ps"][served.steps["engine"] == 0].min()
                for name, served in (("plain", plain), ("slow", slow))}  # fmt: skip
    assert steps_of["slow"] == 2 * steps_of["plain"]


def test_steps_are_slow_as_long_as_a_fault_lasts_and_as_slow_as_the_worst_that_lasts() -> None:
    alone = independent(np.zeros(1), np.array([20]), np.array([100]))
    served = struck(service(), alone, "50 ms: engine 0 clock 0.5 for 50 ms", "70 ms: engine 0 clock 0.8 for 50 ms",
                    "80 ms: rank 0 of engine.0 hbm 0.25 for 10 ms")  # fmt: skip
    starts, lengths = served.steps["start_ps"] / 1e9, served.steps["duration_ps"] / 1e9

    whole = lengths[0]
    for since, until, share in ((51, 78, 0.5), (82, 88, 0.25), (93, 98, 0.5), (103, 118, 0.8), (122, 999, 1.0)):
        assert lengths[(starts >= since) & (starts < until)] == pytest.approx(whole / share)


FAR = {"layer_by_layer": False}


def moving(*faults: str) -> Served:
    """One prompt of 3,000 tokens, whose keys and values go from prefill 0 to decode 0."""
    of = service(instances(), prefill=instances(), transfer=FAR)
    return struck(of, independent(np.zeros(1), np.array([3000]), np.array([5])), *faults)


def test_a_link_that_is_slow_or_cut_holds_keys_and_values_back_and_loses_none() -> None:
    """At a quarter of the rate it takes four times as long; a cut, also one at which a flow would start, adds what is
    left of it; one direction alone is enough."""
    plain = moving()
    start, end = (float(plain.times[name][0]) for name in ("prefilled", "joined"))
    lasts = end - start
    slow = moving("0 s: link prefill.0 - decode.0 rate 0.25")
    latency = 2 * loop_latency_ps()
    assert slow.times["joined"][0] - start == pytest.approx(4 * (lasts - latency) + latency, rel=1e-6)
    middle = start + lasts / 2
    cut = moving(f"{middle / 1e12} s: link prefill.0 to decode.0 cut for 3 ms")
    assert cut.times["joined"][0] == pytest.approx(end + 3e9, rel=1e-6)
    early = moving("0 s: link prefill.0 to decode.0 cut for 1 s")
    assert early.times["joined"][0] == pytest.approx(1e12 + lasts, rel=1e-2)
    other = moving(f"{middle / 1e12} s: link prefill.0 - decode.0 cut for 3 ms",
                   f"{middle / 1e12} s: link prefill.0 - decode.0 rate 0.5 for 3 ms")  # fmt: skip
    assert other.times["joined"][0] == cut.times["joined"][0], "the one that leaves less counts"
    flaps = moving(f"{middle / 1e12} s: link prefill.0 - decode.0 flaps 1 us for 4 us")
    left = lasts / 2 - latency / 2
    assert left > 4e6, "the case is of use"
    assert flaps.times["joined"][0] == pytest.approx(end + 2e6, abs=2e5)


def loop_latency_ps() -> float:
    of = service(instances(), prefill=instances(), transfer=FAR)
    loop = Loop(of, drawn(1))
    return float(loop._transfers._fabric.route(0, 1).latency_s * 1e12)  # type: ignore[union-attr]


def test_strikes_are_drawn_at_about_their_rate_on_all_that_are_meant() -> None:
    lasting = independent(np.arange(400) * 0.1, np.full(400, 20), np.full(400, 3))
    served = struck(TWO, lasting, "about every 0.4 s: engine * clock 0.9 for 10 ms", seed=3)
    at = np.array([one.struck_ps for one in served.struck]) / 1e12
    assert 70 < len(at) < 130
    assert np.diff(at).std() == pytest.approx(np.diff(at).mean(), rel=0.3)
    assert {one.what for one in served.struck} == {"engine 0", "engine 1"}


def test_a_slow_rank_slows_a_step_as_the_simulation_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the clock of one of two ranks: more than nothing, and not more than twice."""
    monkeypatch.undo()
    of = service(instances(mesh="tp=2"))
    loop = Loop(of, drawn(1), steps="lattice")
    kind = loop._kinds["together"]
    batch = [MicroBatch(0, ((1, 1000),) * 8, padded=8)]
    whole, one, both = (kind.paced(pace)._times.exact(batch) for pace in (
        (), faults_of(["0 s: rank 1 clock 0.5"]), faults_of(["0 s: rank 0 clock 0.5", "0 s: rank 1 clock 0.5"])))
    assert whole < one <= both <= 2 * whole


def test_what_is_drawn_goes_on_while_nothing_is_to_be_done() -> None:
    """A request every 3 s, a strike about every 10 ms: three hundred between two steps."""
    seldom = independent(np.arange(4) * 3.0, np.full(4, 20), np.full(4, 3))
    served = struck(TWO, seldom, "about every 10 ms: engine * clock 0.9 for 1 ms")
    assert served.struck[-1].struck_ps > 8.9e12


def test_who_waits_for_ever_is_lost_with_the_engine_that_does_not_come_back() -> None:
    """And what would strike when all have ended, or wait for ever, strikes nobody."""
    gone = instances() | {"restart": {"enabled": False}}
    requests = drawn(30, 3)
    served = struck(service(gone), requests, "10 ms: engine 0 lost")
    assert served.struck[0].lost == (served.status == LOST).sum() > 1
    with pytest.raises(InputError, match="strikes nobody: the run ends at"):
        struck(service(gone), requests, "10 ms: engine 0 lost", "900 s: engine 0 clock 0.5 for 1 s")


def test_a_load_time_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="load_gb_s"):
        service(instances() | {"restart": {"load_gb_s": 1e-300}})
