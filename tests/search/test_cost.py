"""Money and energy of output tokens: closed forms, and nothing where nothing is known."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.search.cost import Cost, cost_of
from simulator.search.deployment import Deployment, Engine, Found
from simulator.spec.load import load_machine, override


def found(tok_s_per_gpu: float) -> Found:
    return Found(Deployment(Engine("vllm", "tp=8")), 1, 0, 8, 64, 500.0, 25.0, tok_s_per_gpu, 40.0, "TPOT")


def test_a_million_tokens_take_gpu_hours_and_watts() -> None:
    """1000 tok/s of a GPU are 3.6 million an hour: at 3.6 dollars, one dollar a million; at 1275 W, 1.275 J each."""
    cost = cost_of(found(1000.0), load_machine("dgx_h200"), 3.6)
    assert cost == pytest.approx(Cost(1.0, 1.275, 1e9 / 1275))


def test_twice_the_rate_is_half_the_cost() -> None:
    machine = load_machine("dgx_b200")
    slow, fast = (cost_of(found(rate), machine, 4.0) for rate in (500.0, 1000.0))
    assert (slow.dollars, slow.joules) == pytest.approx((2 * fast.dollars, 2 * fast.joules))  # type: ignore[operator]
    assert slow.joules * slow.tok_s_per_mw == pytest.approx(1e6)  # type: ignore[operator]


def test_what_is_not_known_has_no_cost() -> None:
    assert cost_of(found(1000.0), load_machine("h20_node"), None) == Cost(None, None, None)


def test_power_is_a_number_like_others() -> None:
    machine = override(load_machine("dgx_h200"), {"card_power": "2.55 kW"})
    assert cost_of(found(1000.0), machine, None).joules == pytest.approx(2.55)


@pytest.mark.parametrize("price", [0.0, -2.0])
def test_a_price_is_more_than_nothing(price: float) -> None:
    with pytest.raises(InputError, match=f"--price {price:g}: dollars for an hour of a GPU, more than 0"):
        cost_of(found(1000.0), load_machine("h20_node"), price)
