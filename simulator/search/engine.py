"""An engine of a deployment as what Braid simulates: a step of it, and a service of such engines."""

from __future__ import annotations

from typing import Any

from simulator.parallel.exchange.ways import HOSTS
from simulator.search.deployment import Ask, Engine, Found
from simulator.serving.launches import one_engine
from simulator.serving.settings import Instances, Load, Service, changed
from simulator.study.scenario import Scenario
from simulator.study.step import StepWords

RAMP = 0.9  # of the time that a request takes
ROUNDS = 4  # requests that come for each in flight
LEAST = 64  # requests that come, however few are in flight
LAYERS = 4  # of neighbouring layers that are alike so many are simulated
LAYERS_LIVE = 3  # where hosts or cards send row by row
OF_ENGINES = "engines."
"""How settings begin that are of `braid serve`, and not of a step."""


def words_of(ask: Ask, engine: Engine, phase: str = "decode") -> StepWords:
    """As `braid step` would be told. phase: of the kernels that the engine has to have."""
    own = {key: text for key, text in engine.settings if not key.startswith(OF_ENGINES)}
    if "batch.drafts" in own:
        own["batch.acceptance"] = str(ask.acceptance)
    return StepWords(ask.model, ask.machine, engine.stack, engine.mesh, phase, own)


def service_of(ask: Ask, engine: Engine, phase: str = "decode") -> Service:
    """One engine, launched as its stack is by default, with chunked prefill where a step has fewer tokens than a
    prompt; InputError for what cannot be. phase: "prefill" of one that does nothing else."""
    own = {key: text for key, text in engine.settings if key.startswith(OF_ENGINES)}
    found = changed(one_engine(words_of(ask, engine, phase)), own)
    scheduling = found.engines.scheduling.model_copy(update={
        "max_num_batched_tokens": engine.tokens,
        "enable_chunked_prefill": found.engines.scheduling.enable_chunked_prefill or engine.tokens < ask.new_tokens,
    })
    return found.model_copy(update={"engines": found.engines.model_copy(update={"scheduling": scheduling})})


def deployed(ask: Ask, found: Found) -> Service:
    """All engines of a deployment behind one router, with the load that it was found for: a closed loop of as many
    requests as are in flight."""
    deployment = found.deployment
    service = service_of(ask, deployment.engines)
    engines, prefill = _several(service.engines, found.count), None
    if deployment.prefill is not None:
        prefill = _several(service_of(ask, deployment.prefill, "prefill").engines, found.prefill_count)
    load = Load(requests=requests_of(found.concurrency), concurrency=max(found.concurrency, 1),
                ramp_s=ramp_s(ask, found), input_tokens=ask.input_tokens, output_tokens=ask.output_tokens,
                prefix_share=ask.prefix_share)  # fmt: skip
    return service.model_copy(update={"engines": engines, "prefill": prefill, "load": load})


def requests_of(in_flight: int) -> int:
    """Requests that come, where so many are in flight."""
    return max(LEAST, ROUNDS * in_flight)


def of_some_layers(step: Scenario) -> dict[str, str]:
    """Settings with which some layers of a step stand for all, none where its mesh has several stages."""
    layout: Any = step.layout
    knobs: Any = step.knobs
    return {} if layout.pp > 1 else {"knobs.layers": str(LAYERS_LIVE if knobs.exchange in HOSTS else LAYERS)}


def ramp_s(ask: Ask, found: Found) -> float:
    """A little less than a request takes, in seconds: in that time a closed loop is filled."""
    return round(RAMP * (found.ttft_ms + (ask.output_tokens - 1) * found.tpot_ms) / 1e3, 3)


def _several(instances: Instances, count: int) -> Instances:
    return instances.model_copy(update={"count": count})
