"""Every metric that a scenario of the library reports has a definition, and the commands show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.commands.sweep import DEFAULT_METRICS
from simulator.study.glossary import OF_THE_TIMELINE, OF_WORKLOADS, meaning
from simulator.study.library import load_scenario, scenario_names
from simulator.study.scenario import Scenario
from simulator.study.simulate import simulate
from tests.conftest import Outcome

ALL = [load_scenario(name) for name, _ in scenario_names()]
BY_WORKLOAD = {(one.workload.measures, one.workload.readings): one for one in sorted(ALL, key=lambda one: -one.cards)}
FEW_LAYERS = {"model.shapes.layers": "5"}


def undefined(metrics: set[str]) -> set[str]:
    """Those without a definition."""
    return {one for one in metrics if not meaning(one) and one not in OF_THE_TIMELINE
            and not one.startswith(("block_", "sent_"))}


@pytest.mark.parametrize("scenario", BY_WORKLOAD.values(), ids=lambda one: one.name)
def test_every_metric_of_a_run_has_a_definition(scenario: Scenario) -> None:
    result = simulate(scenario.replace(FEW_LAYERS))
    kinds = {f"{kind}_ms" for kind in result.measured.kind_ps}
    assert not undefined(set(result.metrics) - kinds)


def test_every_metric_that_is_published_or_studied_has_a_definition() -> None:
    expected = {one.metric for scenario in ALL for one in scenario.expected}
    studied = {metric for scenario in ALL for study in scenario.studies for metric in study.metrics}
    assert undefined(expected | studied | set(DEFAULT_METRICS)) <= {"attention_ms"}, "a kind's"


def test_a_definition_is_a_line() -> None:
    assert all(OF_WORKLOADS.values())
    assert max(map(len, OF_WORKLOADS.values())) <= 65, "beside name and number in 100 columns"
    assert max(map(len, OF_THE_TIMELINE.values())) <= 80


def test_a_definition_is_found_by_name_or_pattern() -> None:
    assert meaning("dispatch_hop_proxy 1_us") == meaning("dispatch_hop_proxy_us") != meaning("a_hop_proxy_polls_us")
    assert meaning("own_ms") == ""


def test_show_says_what_the_metrics_mean(braid: Callable[..., Outcome]) -> None:
    for name, wanted in (("a3_prefill:dp", "ttft_ms"), ("flow_mla:h20_tp", "from the timeline")):
        section = braid("show", name).out.partition("\nMetrics")[2].partition("\n\n")[0].splitlines()
        named = {line.strip().partition("  ")[0]: line for line in section[1:]}
        assert {wanted, "latency_ms", "host_bound_ms", "KIND_ms", "sent_LEVEL_mb"} <= set(named)


@pytest.mark.parametrize(("name", "metric"), [
    ("a3_prefill:dp", "ttft_ms"), ("flow_mla:h20_tp", "prefetch_stall_ms"),
], ids=["measured", "from the timeline"])
def test_run_says_it_beside_the_number(braid: Callable[..., Outcome], name: str, metric: str) -> None:
    done = braid("run", name, "--set", "model.shapes.layers=5")
    (line,) = [line for line in done.out.splitlines() if line.startswith(f"{metric}: ")]
    assert line.split(None, 2)[2].rstrip() == meaning(metric)
