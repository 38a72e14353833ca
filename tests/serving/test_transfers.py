"""Keys and values on their way: layer by layer or after the prefill, over the fabric or at a rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.loop import Loop
from simulator.serving.record import Served
from simulator.serving.requests import Requests, independent
from simulator.serving.settings import Service
from tests.serving.services import drawn, groups_of, instances, run, service, steps_by_formula


@pytest.fixture(autouse=True)
def _formula(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by_formula(monkeypatch)


def apart(prefill: int = 2, decode: int = 2, **transfer: Any) -> Service:
    return service(instances(count=decode), prefill=instances(count=prefill, max_num_batched_tokens=512),
                   transfer=transfer)  # fmt: skip


def far_apart(count: int) -> Requests:
    """One at a time."""
    plain = drawn(count, 2, inputs=(1, 3000))
    return independent(np.arange(count) * 1.0, plain.input_tokens, plain.output_tokens)


def transfer_s(served: Served) -> np.ndarray:
    return served.waits()["transfer"][served.requests.output_tokens > 1]


def token_bytes(of: Service) -> float:
    return Loop(of, far_apart(1))._kinds["decode"].token_bytes


def test_after_the_prefill_a_prompt_takes_its_bytes_over_the_rate() -> None:
    requests = far_apart(20)
    for latency_us in (0.0, 50.0):
        served = run(apart(layer_by_layer=False, rate_gb_s=1.0, latency_us=latency_us), requests)
        size = requests.input_tokens[requests.output_tokens > 1] * token_bytes(apart())
        np.testing.assert_allclose(transfer_s(served), size / 1e9 + 2 * latency_us / 1e6, atol=3e-12)


def test_layer_by_layer_only_the_last_one_is_left_and_is_never_later() -> None:
    requests = far_apart(20)
    for rate in (0.0, 1.0, 0.01):
        layers = run(apart(rate_gb_s=rate), requests)
        after = run(apart(rate_gb_s=rate, layer_by_layer=False), requests)
        assert (transfer_s(layers) <= transfer_s(after) + 1e-12).all()
        assert transfer_s(layers).sum() < transfer_s(after).sum() * (0.8 if rate == 1.0 else 1.0)
    fast = run(apart(rate_gb_s=10.0), requests)
    longest = int(np.argmax(requests.input_tokens))
    last_s = requests.input_tokens[longest] * token_bytes(apart()) / 2 / 1e10
    assert fast.waits()["transfer"][longest] == pytest.approx(last_s, rel=1e-6), "one of two layers"


def test_a_lower_rate_is_slower_and_the_fabric_carries_what_its_links_do() -> None:
    requests = drawn(40, 6, inputs=(100, 3000))
    joined = [transfer_s(run(apart(rate_gb_s=rate), requests)).mean() for rate in (100.0, 1.0, 0.1)]
    assert joined == sorted(joined)
    assert joined[2] > 2 * joined[1] > 2 * joined[0]
    one = far_apart(3)
    of = apart(layer_by_layer=False)
    loop = Loop(of, one, steps="lattice")
    route = loop._transfers._fabric.route(0, 2)  # type: ignore[union-attr]
    slowest = min(loop._transfers._fabric.link_rate(*edge) for edge in route.edges)  # type: ignore[union-attr]
    served = loop.run()
    size = one.input_tokens[one.output_tokens > 1] * token_bytes(of)
    np.testing.assert_allclose(transfer_s(served), size / slowest + 2 * route.latency_s, rtol=1e-6)


def test_transfers_that_share_a_link_share_its_rate() -> None:
    """One engine that prefills, one that decodes: four prompts at once take as long together as one after another."""
    four = independent(np.zeros(4), np.full(4, 2048), np.full(4, 4))
    of = service(instances(), prefill=instances(max_num_batched_tokens=8192), transfer={"layer_by_layer": False})
    alone = transfer_s(run(of, independent(np.zeros(1), np.full(1, 2048), np.full(1, 4))))[0]
    latency_s = 2 * Loop(of, four)._transfers._fabric.route(0, 1).latency_s  # type: ignore[union-attr]
    together = transfer_s(run(of, four))
    assert together.max() - latency_s == pytest.approx(4 * (alone - latency_s), rel=0.01)


@pytest.mark.parametrize("layer_by_layer", [True, False])
def test_every_request_decodes_once_and_what_prefilled_it_is_free_in_the_end(layer_by_layer: bool) -> None:
    requests = drawn(100, 7)
    loop = Loop(apart(layer_by_layer=layer_by_layer, rate_gb_s=2.0), requests, steps="lattice")
    served = loop.run()
    assert served.done.all()
    assert not loop._moves
    prefills = np.isin(served.steps["engine"], (0, 1))
    assert served.engines == ["prefill 0", "prefill 1", "decode 0", "decode 1"]
    assert not served.steps["decoding"][prefills].any()
    assert served.steps["decoding"].sum() == (requests.output_tokens - 1).sum()
    assert served.steps["prefill_tokens"][prefills].sum() == requests.input_tokens.sum()
    assert set(served.prefill_engine.tolist()) == {0, 1}
    assert (served.decode_engine[requests.output_tokens > 1] >= 2).all()
    assert (served.decode_engine[requests.output_tokens == 1] == -1).all()
    assert all(group.cache.used == 0 for group in groups_of(loop))


def test_engines_of_different_machines_need_a_rate() -> None:
    other = instances()
    other["step"] = other["step"].replace({"machine": "dgx_h200"})
    with pytest.raises(InputError, match=r"no fabric joins them; give transfer\.rate_gb_s"):
        Loop(service(other, prefill=instances()), drawn(3))
    assert run(service(other, prefill=instances(), transfer={"rate_gb_s": 10.0}), drawn(3)).done.all()
