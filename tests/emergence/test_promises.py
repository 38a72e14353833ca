"""The report predicts its own what-if: a number twice as good saves what the critical path promises.

Of many scenarios the number that promises most is made twice as good and the scenario run again, of some every number
that bounds more than a twentieth. What is saved may
differ by what is contested: other kernels that share memory gain too, or another path decides sooner.
"""

from __future__ import annotations

from functools import cache

import pytest

from simulator.spec.load import load_machine
from simulator.spec.typed_toml import quantities
from simulator.study.library import load_scenario
from simulator.study.promises import better
from simulator.study.simulate import Result, simulate

SCENARIOS = [
    "contention:staging", "contention:zero_copy", "a3_prefill:dp", "a3_prefill:microbatch", "a3_prefill:dp_slow_host",
    "a3_prefill:sp_tp_sp_few_prompts", "a2_prefill:convert", "a2_prefill:flashcomm", "a2_prefill:all_reduce",
    "a2_flashcomm:llama_16", "cm384_decode:exchange_128", "ascend_exchange:hccl", "ascend_exchange:ring",
    "ascend_exchange:normal_ep8", "transformer:decode", "transformer:prefill", "deepep:ep8", "deepep:normal_ep16",
    "pplx:efa_ep32", "pplx:efa_ep16", "pplx:efa_ep16_few", "trt_min_latency:eager", "pplx_kv:long_prompt",
    "deepep:h100_normal_4_sms", "deepep:h100_one_token", "ascend_exchange:low_latency_ep16",
]  # fmt: skip


def most_promising(result: Result) -> tuple[str, float]:
    """A parameter, and the share of the run that it promises."""
    row = max(result.parameters, key=lambda row: row["saves"])
    return row["name"], row["saves"]


def twice_as_good(result: Result, name: str) -> dict[str, str]:
    """The settings of a run with one number twice as good."""
    before, after = (dict(quantities(one)) for one in (result.machine, better(result.machine, name)))
    return {f"machine.{key}": f"{quantity.value!r} {quantity.unit}".removesuffix(" 1")
            for key, quantity in after.items() if quantity.si != before[key].si}  # fmt: skip


@cache
def first(name: str) -> Result:
    """A scenario as it is."""
    return simulate(load_scenario(name))


@cache
def saved_by(name: str, parameter: str) -> float:
    """The share of a scenario's run that one number twice as good saves."""
    result = first(name)
    again = simulate(result.scenario.replace(twice_as_good(result, parameter)), record=False)
    return 1.0 - again.makespan_ps / result.makespan_ps


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_the_path_promises_is_saved(name: str) -> None:
    parameter, promised = most_promising(first(name))
    assert promised > 0.02
    assert saved_by(name, parameter) == pytest.approx(promised, abs=0.02 + 0.2 * promised)


@pytest.mark.parametrize("name", ["ascend_exchange:normal_ep8", "ascend_exchange:ring", "deepep:h100_one_token",
                                  "transformer:decode", "a3_prefill:dp"])  # fmt: skip
def test_every_larger_promise_is_kept(name: str) -> None:
    for row in first(name).parameters:
        if row["share"] > 0.05:
            promised = pytest.approx(row["saves"], abs=0.02 + 0.2 * row["saves"])
            assert saved_by(name, row["name"]) == promised, row["name"]


def test_no_promise_is_larger_than_what_the_number_bounds() -> None:
    for row in first("a3_prefill:microbatch").parameters:
        assert 0.0 <= row["saves"] <= row["share"]


@pytest.mark.parametrize(
    ("name", "factor"),
    [("chip.hbm.peak", 2.0), ("chip.hbm.efficiency", 1 / 0.765), ("collectives.sdma.startup", 0.5),
     ("collectives.sdma.copy_bytes", 0.5), ("host.launch_eager", 0.5)],
)  # fmt: skip
def test_twice_as_good_is_more_of_a_rate_and_less_of_a_time(name: str, factor: float) -> None:
    machine = load_machine("atlas_a3")
    assert dict(quantities(better(machine, name)))[name].si == pytest.approx(
        factor * dict(quantities(machine))[name].si)  # fmt: skip
