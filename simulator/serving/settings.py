"""What a service is made of: engines with their scheduler, API servers, a router, a load. Names are those of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

from pydantic import Field, PositiveInt, SerializeAsAny, model_validator

from simulator.errors import InputError
from simulator.serving.front import API_SERVER_S
from simulator.study.scenario import Expected, Part, Scenario
from simulator.study.settings import replaced

Role = Literal["together", "prefill", "decode"]


class Host(Part):
    """What an engine's host does between steps, beside launching."""

    step_ms: float = Field(0.0, ge=0, description="of every step: scheduling, preparing inputs, handing out tokens")
    request_us: float = Field(0.0, ge=0, description="of every request in a step")
    overlapped: bool = Field(True, description="it runs under the step before; what is longer than that is waited for")


class Scheduling(Part):
    """Which requests an engine works on in a step."""

    scheduler: Literal["vllm", "sglang", "trtllm"] = "vllm"
    max_num_seqs: PositiveInt = Field(256, description="requests of a data-parallel group that run")
    max_num_batched_tokens: PositiveInt = Field(8192, description="tokens of a group in one step")
    enable_chunked_prefill: bool = Field(True, description="a prompt may be computed in several steps")
    long_prefill_token_threshold: int = Field(0, ge=0, description="of one prompt in one step (0: no limit)")
    max_output_tokens: PositiveInt = Field(
        4096, description="sglang: that room is kept for when a request comes in, if it asks for more"
    )
    async_scheduling: bool = Field(
        False, description="a step is decided when the one before it begins: what comes later is not in it"
    )
    batch_wait_timeout_iters: int = Field(0, ge=0, description="trtllm: steps that prompts wait for more of them")
    batch_wait_max_tokens_ratio: float = Field(
        0.0, ge=0, le=1, description="trtllm: of max_num_batched_tokens, with so many prompts do not wait"
    )


class CacheSettings(Part):
    """The KV cache of a data-parallel group."""

    block_size: PositiveInt = Field(16, description="tokens of a block")
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="of what the ledger says can be used")
    free_gpu_memory_fraction: float = Field(
        1.0, gt=0, le=1, description="of what is left of that beside weights and buffers (trtllm)"
    )
    tokens: int = Field(0, ge=0, description="that it holds (0: what memory leaves)")


class Instances(Part):
    """Engines that are alike."""

    count: PositiveInt = 1
    step: SerializeAsAny[Scenario] = Field(exclude=True)
    simplified: dict[str, str] = Field(
        {}, description="settings of the step where step times are interpolated; steps that are simulated as they are"
        " say what that leaves out"
    )
    capture: tuple[PositiveInt, ...] = Field(
        (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)), description="rows of captured graphs of decode steps"
    )
    scheduling: Scheduling = Scheduling()
    cache: CacheSettings = CacheSettings()
    host: Host = Host()

    @model_validator(mode="after")
    def _captured_sizes_ascend(self) -> Instances:
        if any(low >= high for low, high in pairwise(self.capture)):
            raise ValueError(f"capture is {','.join(map(str, self.capture))}: sizes must ascend")
        return self


class Front(Part):
    """What stands before the engines."""

    api_servers: PositiveInt = 1
    request_ms: float = Field(API_SERVER_S * 1e3, ge=0, description="of an API server, for a request")
    input_token_us: float = Field(0.0, ge=0, description="of it, for a token of a prompt")
    router: Literal["round_robin", "random", "power_of_two", "cache_aware", "kv", "length_aware"] = "round_robin"
    admitted: int = Field(0, ge=0, description="requests inside at most; others wait in order (0: no limit)")


class Transfer(Part):
    """Of a prompt's keys and values from where it was prefilled to where it is decoded."""

    layer_by_layer: bool = Field(True, description="each layer as soon as it is computed, or all after the prefill")
    rate_gb_s: float = Field(0.0, ge=0, description="of one prompt (0: what the cards of a group carry)")
    latency_us: float = Field(0.0, ge=0, description="before the first byte")


class Load(Part):
    """Requests that are drawn, not recorded: how many, how long, when."""

    requests: PositiveInt = 256
    rate: float = Field(0.0, ge=0, description="requests a second (0: a closed loop of `concurrency`)")
    burstiness: float = Field(1.0, gt=0, description="of arrivals: 1 Poisson, less burstier, inf constant")
    concurrency: PositiveInt = Field(32, description="in flight in a closed loop")
    input_tokens: PositiveInt = 1024
    output_tokens: PositiveInt = 1024
    range_ratio: float = Field(1.0, gt=0, le=1, description="lengths are drawn evenly from [ratio x length, length]")
    length_cv: float = Field(
        0.0, ge=0, le=5, description="or log-normal with these means and this coefficient of variation (0: as above)"
    )
    prefix_share: float = Field(0.0, ge=0, le=1, description="of each prompt that is the start of a common prefix")
    prefixes: PositiveInt = Field(1, description="common prefixes, of which each request has one")


class Service(Part):
    """Engines that prefill and decode, together or apart, behind API servers and a router."""

    name: str = ""
    title: str
    engines: Instances = Field(description="that prefill and decode, or decode where `prefill` is given")
    prefill: Instances | None = Field(None, description="engines that prefill")
    front: Front = Front()
    transfer: Transfer = Transfer()
    load: Load = Load()
    expected: tuple[Expected, ...] = Field((), exclude=True)

    @model_validator(mode="after")
    def _blocks_are_alike(self) -> Service:
        if self.prefill and self.prefill.cache.block_size != self.engines.cache.block_size:
            raise ValueError(f"prefill.cache.block_size is {self.prefill.cache.block_size}, engines.cache.block_size "
                             f"{self.engines.cache.block_size}: keys and values move block by block")
        return self

    @property
    def gpus(self) -> int:
        """Cards of all engines."""
        return sum(one.count * one.step.cards for one in (self.engines, self.prefill) if one)


def changed(service: Service, changes: Mapping[str, str]) -> Service:
    """The service with settings changed, from text; what begins with engines.step. or prefill.step. is one of that
    scenario. InputError says all that is wrong, and what is right."""
    own = {key: text for key, text in changes.items() if not key.partition(".")[2].startswith("step.")}
    for role in ("engines", "prefill"):
        begin, instances = f"{role}.step.", getattr(service, role)
        of_step = {key.removeprefix(begin): text for key, text in changes.items() if key.startswith(begin)}
        if of_step and instances is None:
            raise InputError(f"--set {begin}...: {service.name} has no engines that prefill apart")
        if of_step:
            instances = instances.model_copy(update={"step": instances.step.replace(of_step)})
            service = service.model_copy(update={role: instances})
    return replaced(service, own)
