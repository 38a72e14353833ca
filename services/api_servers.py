"""One API server before two data-parallel engines, and two: what one lets through when requests are short.

Published in vllm-project/vllm: with one API server and DP2, 76.5 of 120 ShareGPT requests a second (about 220 tokens of
prompt) are served. The model is not named; a small one is taken, whose engines are no bottleneck, and short
answers.
"""

from __future__ import annotations

from simulator.serving.settings import Front, Instances, Load, Service
from simulator.study.scenario import Source
from simulator.study.step import StepWords, step_of

_expect = Source("vLLM, one API server and DP2 on ShareGPT").expects


def one() -> Service:
    """One API server, two engines with Llama-3.1-8B on an H100 each, 120 requests a second."""
    served = _expect("vllm.api_server", "request_throughput", 76.5, ": the time of a request in it is fitted on this",
                     role="fit")  # fmt: skip
    step = step_of(StepWords("llama_3_1_8b", "dgx_h100", "vllm", "tp=1", "decode", {}))
    return Service(title="Llama-3.1-8B on 2 H100 behind one API server", engines=Instances(step=step, count=2),
                   front=Front(api_servers=1), expected=(served,),
                   load=Load(requests=1500, rate=120.0, input_tokens=220, output_tokens=32))  # fmt: skip


def two() -> Service:
    """The same with an API server for each engine."""
    gain = _expect("vllm.api_server", "request_throughput", 1.0, ": one for each engine removes the bottleneck",
                   against="api_servers:one", band=(1.0, None))  # fmt: skip
    return one().model_copy(update={"title": "Llama-3.1-8B on 2 H100 behind two API servers",
                                    "front": Front(api_servers=2), "expected": (gain,)})  # fmt: skip
