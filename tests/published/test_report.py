"""results/validation.md has a row for every published value of the library, and what is quick to simulate comes out so.

That all of it does is for `braid validate` to show, which CI runs.
"""

from __future__ import annotations

import pytest

from simulator.observe.tables import plain_number as number
from simulator.serving.library import load_service, service_names
from simulator.study.expected import band_text, compared
from simulator.study.library import load_scenario, scenario_names
from tests.published.reported import reported
from tests.published.runs import run

QUICK = ("a2_prefill:convert", "a3_prefill:dp", "cm384_decode:exchange_both", "cm384_paper:prefill",
         "contention:staging", "deepep:normal_ep16", "flow_mla:h20_batch_1", "pplx:efa_ep16", "trt_min_latency:base")


def test_every_published_value_has_its_row() -> None:
    both = [*((name, load_scenario(name).expected) for name, _ in scenario_names()),
            *((name, load_service(name).expected) for name, _ in service_names())]
    expected = [(one.id, name, one.full_metric, band_text(one.band) if one.band else number(one.value), one.role)
                for name, its in both for one in its]
    assert [(row.id, row.scenario, row.metric, row.expected, row.role) for row in reported()] == expected


@pytest.mark.parametrize("name", QUICK)
def test_what_is_quick_to_simulate_is_as_reported(name: str) -> None:
    simulated = [number(one.simulated) for one in compared(run(name))]
    assert simulated == [row.simulated for row in reported() if row.scenario == name]
