"""Experts whose popularity drifts, on one server of 8 GPUs: as they are, and rearranged at an interval (EPLB).

DeepSeek rearranges them "periodically (e.g., every 10 minutes)" (DeepSeek-V3, arXiv 2412.19437, section 3.4), vLLM
every 3000 steps unless it is told otherwise. How fast popularity drifts in service is not published: a time constant of
some twenty intervals is assumed, and both are shorter here than in service, so that a run of two minutes has several
rearrangements. Assumed is the skew of a power law, 0.6, too, with which the fullest of 8 GPUs has about 1.35 times the
mean load. Prompts are long and answers short, so that experts are bound by compute: those of a step that only decodes
are read from memory, however many rows each has. There are no redundant slots: 32 experts of a GPU can be nearly level
without, and every one more is read in every step.
"""

from __future__ import annotations

from services.one_server import deepseek_r1_dp
from simulator.serving.settings import ExpertSettings, Load, Service
from simulator.study.scenario import Source

_expect = Source("DeepSeek, EPLB and the inference system of DeepSeek-V3/R1").expects

SKEW = "0.6"
DRIFT_S, INTERVAL, WINDOW = 600.0, 250, 250  # a step takes about 0.14 s
LAYERS = "4"  # of those with experts that stand for all where step times are interpolated


def in_order() -> Service:
    """Experts stay where the checkpoint has them."""
    return _service("experts in order", ExpertSettings(drift_s=DRIFT_S))


def eplb() -> Service:
    """Experts are placed anew for what was counted, and their weights move beside the service."""
    gain = ": under a load that drifts, experts placed anew for what was counted gain; the load was chosen so"
    service = _service("EPLB", ExpertSettings(drift_s=DRIFT_S, step_interval=INTERVAL, window_size=WINDOW))
    return service.model_copy(update={"expected": (
        _expect("eplb.drift", "inter_token_latency", 1.0, gain, role="fit", against="drifting:in_order",
                band=(None, 1.0)),
        _expect("eplb.drift", "output_token_throughput", 1.0, gain, role="fit", against="drifting:in_order",
                band=(1.0, None)),
    )})  # fmt: skip


def _service(what: str, experts: ExpertSettings) -> Service:
    service = deepseek_r1_dp()
    step = service.engines.step.replace({"routing.skew": SKEW})
    engines = service.engines.model_copy(
        update={"step": step, "simplified": {"knobs.layers": LAYERS}, "experts": experts})  # fmt: skip
    return service.model_copy(update={
        "title": f"DeepSeek-R1 on 8 H200, DP8 and EP8, popularity of experts drifts, {what}", "engines": engines,
        "load": Load(requests=768, concurrency=64, input_tokens=4096, output_tokens=64)})  # fmt: skip
