"""An engine of a deployment as what Braid simulates: a step of it, and a service of such engines."""

from __future__ import annotations

from simulator.search.deployment import Ask, Engine, Found
from simulator.serving.launches import one_engine
from simulator.serving.settings import Instances, Load, Service, changed
from simulator.study.step import StepWords

RAMP = 0.9  # of the time that a request takes
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
    load = Load(requests=max(4 * found.concurrency, 64), concurrency=max(found.concurrency, 1),
                ramp_s=ramp_s(ask, found), input_tokens=ask.input_tokens, output_tokens=ask.output_tokens,
                prefix_share=ask.prefix_share)  # fmt: skip
    return service.model_copy(update={"engines": engines, "prefill": prefill, "load": load})


def ramp_s(ask: Ask, found: Found) -> float:
    """A little less than a request takes, in seconds: in that time a closed loop is filled."""
    return round(RAMP * (found.ttft_ms + (ask.output_tokens - 1) * found.tpot_ms) / 1e3, 3)


def _several(instances: Instances, count: int) -> Instances:
    return instances.model_copy(update={"count": count})
