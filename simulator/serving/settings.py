"""What a service is made of: engines with their scheduler, API servers, a router, a load. Names are those of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, SerializeAsAny, model_validator

from simulator.errors import InputError
from simulator.serving.front import API_SERVER_S
from simulator.study.scenario import Expected, Part, Scenario
from simulator.study.settings import replaced

Share = Annotated[float, Field(gt=0, le=1)]
Many = Annotated[int, Field(gt=0, le=1_000_000)]
"""Of what is made one by one."""
Rows = Annotated[int, Field(gt=0, le=65_536)]
"""Of a step, a request each."""
Tokens = Annotated[int, Field(gt=0, le=100_000_000)]
"""Of a prompt or an answer."""
Role = Literal["together", "prefill", "decode"]


class Host(Part):
    """What an engine's host does between steps, beside launching."""

    step_ms: float = Field(
        0.0, ge=0, le=1e15, description="of every step: scheduling, preparing inputs, handing out tokens"
    )
    request_us: float = Field(0.0, ge=0, le=1e15, description="of every request in a step")
    overlapped: bool = Field(True, description="it runs under the step before; what is longer than that is waited for")


class AttentionDp(Part):
    """TensorRT-LLM's `attention_dp_config`: prompts wait until every data-parallel group has one."""

    enable_balance: bool = Field(False, description="trtllm: prompts wait for each other")
    timeout_iters: int = Field(50, ge=0, description="steps, after which they wait no longer")
    batching_wait_iters: int = Field(10, ge=0, description="more steps, for more of them, when every group has one")


class Scheduling(Part):
    """Which requests an engine works on in a step."""

    scheduler: Literal["vllm", "sglang", "trtllm"] = "vllm"
    policy: Literal["fcfs", "priority", "lpm"] = Field(
        "fcfs", description="who waits: in order of arrival, by priority (0 first), or, of sglang, who has most of its"
        " prompt in the cache, as long as no more than 128 wait"
    )
    priority_scheduling_preemption_threshold: int = Field(
        10, ge=0, description="sglang, by priority: who lacks room preempts who has a number larger by more"
    )
    max_num_seqs: PositiveInt = Field(256, description="requests of a data-parallel group that run")
    max_num_batched_tokens: PositiveInt = Field(8192, description="tokens of a group in one step")
    enable_chunked_prefill: bool = Field(True, description="a prompt may be computed in several steps")
    mamba_cache_mode: Literal["none", "align"] = Field(
        "none", description="vllm: align cuts prompts of models with linear attention at the ends of blocks, where"
        " prefix caching keeps states, and holds the state of the block before, too"
    )
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
    shared_queue: bool = Field(
        False, description="requests wait at the engine, which gives them to its data-parallel groups as these have"
        " room, to the one with the fewest prompt tokens, as TensorRT-LLM does; or at a group, the router's choice"
    )
    attention_dp_config: AttentionDp = AttentionDp()
    scheduler_recv_interval: PositiveInt = Field(
        1, description="sglang: steps that decode from one look at what has come to the next; behind prompts at once;"
        " until then routers do not count it"
    )

    @model_validator(mode="after")
    def _what_only_one_has(self) -> Scheduling:
        if self.policy == "lpm" and self.scheduler != "sglang":
            raise ValueError(f"policy is lpm where scheduler is {self.scheduler}: it is of sglang")
        if self.scheduler_recv_interval > 1 and self.scheduler != "sglang":
            raise ValueError(f"scheduler_recv_interval is {self.scheduler_recv_interval} where scheduler is "
                             f"{self.scheduler}: it is of sglang")
        if self.attention_dp_config.enable_balance and self.scheduler != "trtllm":
            raise ValueError(f"attention_dp_config.enable_balance is true where scheduler is {self.scheduler}: "
                             "it is of trtllm")
        return self


class CacheSettings(Part):
    """The KV cache of a data-parallel group."""

    block_size: PositiveInt = Field(16, description="tokens of a block")
    enable_prefix_caching: bool = Field(True, description="blocks stay in HBM for prompts that begin alike")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="of HBM; contexts and weights count")
    free_gpu_memory_fraction: float = Field(
        1.0, gt=0, le=1, description="of what is left of that beside contexts, weights and buffers (trtllm)"
    )
    tokens: int = Field(0, ge=0, description="that it holds (0: what memory leaves)")
    kv_offloading_gib: float = Field(
        0.0, ge=0, le=1e15, description="of host memory for blocks of a group, all its ranks together (0: none)"
    )
    write_policy: Literal["write_through", "write_back"] = Field(
        "write_through", description="to the host: prompts once they are computed, or what HBM evicts"
    )

    @model_validator(mode="after")
    def _what_is_evicted_was_kept(self) -> CacheSettings:
        if self.kv_offloading_gib and self.write_policy == "write_back" and not self.enable_prefix_caching:
            raise ValueError("write_policy is write_back and enable_prefix_caching false: HBM keeps nothing that could "
                             "be written back; set write_policy to write_through, or enable_prefix_caching to true")
        return self


class ExpertSettings(Part):
    """How the popularity of experts changes, and how they follow (EPLB); redundant slots are those of
    `step.layout.redundant`. Left as it is, they stay as a step has them."""

    drift_s: float = Field(
        0.0, ge=0, le=1e9, description="time constant of the order of popularity: after it who is popular has a"
        " correlation of 1/e with who was (0: it stays)"
    )
    init_expert_location: Literal["trivial", "counted"] = Field(
        "trivial", description="at the start experts are in order, or placed for the popularity that they have then"
    )
    step_interval: int = Field(0, ge=0, description="steps from one rearrangement to the next (0: none; vLLM: 3000)")
    window_size: PositiveInt = Field(1000, description="steps whose load is counted for it")
    use_async: bool = Field(True, description="weights move beside the service; otherwise it waits for them")

    @property
    def change(self) -> bool:
        """Whether anything is not as a step has it."""
        return bool(self.drift_s or self.step_interval or self.init_expert_location == "counted")


class Restart(Part):
    """How an engine that was lost comes back, with an empty cache (`restart.restart_s`)."""

    enabled: bool = Field(True, description="it is started again (false: never, unless a fault says when)")
    start_s: float = Field(
        5.0, ge=0, le=1e6, description="from its start to its first weights: 5 s in a log of vLLM (vllm-project/vllm"
        " #4650)"
    )
    load_gb_s: float = Field(
        0.54, ge=1e-6, description="of weights, of a rank: DeepSeek-R1 with safetensors in 160 s on 8 H200, 4.3 GB/s of"
        " all (vLLM's documentation, InstantTensor; one H200 alone 1.1 GB/s; with InstantTensor 5.6 of 8, and 35)"
    )
    capture_s: float = Field(
        12.5, ge=0, le=1e6, description="for graphs: 5 to 20 s is usual (vllm/v1/worker/gpu_model_runner.py); what was"
        " compiled is cached on disk"
    )


class Instances(Part):
    """Engines that are alike."""

    count: Many = 1
    step: SerializeAsAny[Scenario] = Field(exclude=True)
    simplified: dict[str, str] = Field(
        {}, description="settings of the step where step times are interpolated; steps that are simulated as they are"
        " say what that leaves out"
    )
    shares: tuple[Share, ...] = Field(
        (), description="what data-parallel groups have, on average, of the fullest one's requests and prompt tokens"
        " where steps are simulated to interpolate, ascending (empty: the lattice's, from one group alone to all alike)"
    )
    capture: tuple[Rows, ...] = Field(
        (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)), description="rows of captured graphs of decode steps"
    )
    capture_prefill: tuple[Many, ...] = Field(
        (), description="tokens of a group in a step with prompts, to which those of all groups are padded: it is then"
        " launched as a captured graph (vLLM cudagraph_capture_sizes, SGLang piecewise_cuda_graph_tokens, buckets on"
        " Gaudi); beyond the largest one it is not (empty: never)"
    )
    scheduling: Scheduling = Scheduling()
    cache: CacheSettings = CacheSettings()
    host: Host = Host()
    experts: ExpertSettings = ExpertSettings()
    restart: Restart = Restart()

    @property
    def aligned(self) -> bool:
        """Whether prompts of models with linear attention are cut at the ends of blocks."""
        return self.scheduling.mamba_cache_mode == "align"

    @model_validator(mode="after")
    def _sizes_ascend(self) -> Instances:
        for name, sizes in (("shares", self.shares), ("capture", self.capture),
                            ("capture_prefill", self.capture_prefill)):  # fmt: skip
            if any(low >= high for low, high in pairwise(sizes)):
                raise ValueError(f"{name} is {','.join(map(str, sizes))}: sizes must ascend")
        return self


class Front(Part):
    """What stands before the engines."""

    api_servers: Many = 1
    request_ms: float = Field(
        API_SERVER_S * 1e3, ge=0, le=1e15, description="of an API server, for a request: fitted on a row of vLLM, 76.5"
        " a second"
    )
    input_token_us: float = Field(0.0, ge=0, le=1e15, description="of it, for a token of a prompt")
    router: Literal["round_robin", "random", "power_of_two", "cache_aware", "kv", "length_aware"] = "round_robin"
    admitted: int = Field(0, ge=0, description="requests inside at most; others wait in order (0: no limit)")
    health_check_interval_s: float = Field(
        60.0, gt=0, le=1e6, description="from one health check of an engine to the next (this and the six below as"
        " SGLang's router has them: RouterArgs of sgl-model-gateway)"
    )
    health_check_timeout_s: float = Field(5.0, ge=0, le=1e6, description="after which one without an answer has failed")
    health_failure_threshold: PositiveInt = Field(
        3, description="that fail one after the other: then nothing goes to the engine any more"
    )
    retry_max_retries: int = Field(
        5, ge=0, description="times that a request goes to another engine when its own is lost; then the request is"
        " lost. What it has said it keeps, as where NVIDIA Dynamo migrates requests (--migration-limit, 0 unless set)"
    )
    retry_initial_backoff_ms: float = Field(50.0, ge=0, description="that it waits before the first time")
    retry_backoff_multiplier: float = Field(1.5, ge=1, description="as much longer before each further time")
    retry_max_backoff_ms: float = Field(30_000.0, ge=0, description="at most")


class Transfer(Part):
    """Of a prompt's keys and values from where it was prefilled to where it is decoded."""

    layer_by_layer: bool = Field(True, description="each layer as soon as it is computed, or all after the prefill")
    rate_gb_s: float = Field(0.0, ge=0, description="of one prompt (0: what the cards of a group carry)")
    latency_us: float = Field(0.0, ge=0, le=1e15, description="before the first byte")


class Pool(Part):
    """Blocks in the memory of hosts, shared by all engines (Mooncake Store, EMS): written once a prompt is computed,
    read before the next one that begins like it."""

    size_gib: float = Field(0.0, ge=0, le=1e15, description="of all hosts together (0: there is none)")
    hosts: int = Field(0, ge=0, description="that it is on (0: those on which engines stand)")


class Load(Part):
    """Requests that are drawn, not recorded: how many, how long, when."""

    requests: PositiveInt = 256
    rate: float = Field(0.0, ge=0, description="requests a second (0: a closed loop of `concurrency`)")
    burstiness: float = Field(1.0, gt=0, description="of arrivals: 1 Poisson, less burstier, inf constant")
    concurrency: PositiveInt = Field(32, description="in flight in a closed loop: requests, or conversations")
    ramp_s: float = Field(
        0.0, ge=0, le=1e6, description="of a closed loop: requests come at their times, `concurrency` of them in so"
        " many seconds, and wait where so many are in flight; best a little less than one takes (0: all at once; where"
        " they are alike they then end, and come again, together)"
    )
    input_tokens: Tokens = 1024
    output_tokens: Tokens = 1024
    range_ratio: float = Field(1.0, gt=0, le=1, description="lengths are drawn evenly from [ratio x length, length]")
    length_cv: float = Field(
        0.0, ge=0, le=5, description="or log-normal with these means and this coefficient of variation (0: as above)"
    )
    prefix_share: float = Field(0.0, ge=0, le=1, description="of each prompt that is the start of a common prefix")
    prefixes: Many = Field(1, description="common prefixes, of which each request has one")
    turns: Many = Field(
        1, description="requests of a conversation: a prompt is those before it, their answers, and `input_tokens`"
    )
    think_s: float = Field(0.0, ge=0, le=1e6, description="mean of the exponential pauses between turns")
    priorities: tuple[NonNegativeFloat, ...] = Field(
        (1.0,), description="shares of the requests that have priority 0 (the first), 1, ...; engines heed it whose"
        " scheduling.policy is priority"
    )

    @model_validator(mode="after")
    def _conversations_share_themselves(self) -> Load:
        if self.turns > 1 and self.prefix_share:
            raise ValueError(f"prefix_share is {self.prefix_share:g} beside turns of {self.turns}: turns share what "
                             "was said before; give one of both")
        if self.think_s and self.turns == 1:
            raise ValueError(f"think_s is {self.think_s:g} where turns is 1: it is between the turns of a conversation")
        return self

    @model_validator(mode="after")
    def _only_a_closed_loop_has_a_ramp(self) -> Load:
        if self.ramp_s and (self.rate or self.turns > 1):
            raise ValueError(f"ramp_s is {self.ramp_s:g}, which is of a closed loop of single requests: set it to 0, or"
                             " rate to 0 and turns to 1")
        return self

    @model_validator(mode="after")
    def _priorities_are_shares(self) -> Load:
        if abs(sum(self.priorities) - 1.0) > 1e-6:
            raise ValueError(f"priorities is {','.join(f'{share:g}' for share in self.priorities)}: shares of all "
                             f"requests must add up to 1, as 0.2,0.8; they add up to {sum(self.priorities):g}")
        return self


class Service(Part):
    """Engines that prefill and decode, together or apart, behind API servers and a router."""

    name: str = ""
    title: str
    engines: Instances = Field(description="that prefill and decode, or decode where `prefill` is given")
    prefill: Instances | None = Field(None, description="engines that prefill")
    front: Front = Front()
    transfer: Transfer = Transfer()
    pool: Pool = Pool()
    load: Load = Load()
    expected: tuple[Expected, ...] = Field((), exclude=True)

    @model_validator(mode="after")
    def _blocks_are_alike(self) -> Service:
        if self.prefill and self.prefill.cache.block_size != self.engines.cache.block_size:
            raise ValueError(f"prefill.cache.block_size is {self.prefill.cache.block_size}, engines.cache.block_size "
                             f"{self.engines.cache.block_size}: keys and values move block by block")
        return self

    @model_validator(mode="after")
    def _who_computes_prompts_looks_them_up(self) -> Service:
        if self.prefill and self.engines.cache.kv_offloading_gib:
            raise ValueError(f"engines.cache.kv_offloading_gib is {self.engines.cache.kv_offloading_gib:g}: engines "
                             "that only decode look up no prompts; set it to 0, and prefill.cache.kv_offloading_gib")
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
            title = f"{service.title}, {instances.step.transformer().name}" if "model" in of_step else service.title
            service = service.model_copy(update={role: instances, "title": title})
    return replaced(service, own)
