"""Any transformer on any mesh: prefill, decode, or both in one pass, of a model, a stack, a mesh and a schedule.

`simulator.parallel.forward` has the pieces of a layer, `schedules` their order on streams; here is what stands around
them: which tokens a rank works on, passes that follow each other (chunks of prompts, draft layers, stages of a
pipeline), and what a scenario has to know (memory, groups, metrics).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from simulator.errors import InputError
from simulator.live.gpu_initiated import gpu_initiated
from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.model.drafts import draft_layers, draft_passes, tokens_per_iteration
from simulator.model.layout import blocks, lengths_on_ranks, on_ranks, split
from simulator.model.micro_batch import MicroBatch
from simulator.model.passes import decode_batches, prefill_passes
from simulator.model.transformer import Experts, Layer, Model, in_precision
from simulator.parallel.border import Engines, engines_for
from simulator.parallel.exchange.deepep_normal import NormalSettings, check_sms
from simulator.parallel.exchange.rows import DISPATCH_DTYPE, DispatchDtype
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.exchange.ways import HOSTS, buffers_of, check_there, driven_by, settings_of
from simulator.parallel.forward import Forward
from simulator.parallel.gathered_weights import GatheredWeights, Gathering
from simulator.parallel.ledger import Load, fullest_rank, stages_of
from simulator.parallel.mesh import Mesh, check, coordinates_of, groups_of, node_blocks
from simulator.parallel.pipeline import Stage
from simulator.parallel.prefetch import prefetching
from simulator.parallel.roles import pass_of
from simulator.parallel.schedule import parts_of
from simulator.parallel.tokens import Tokens, group_of, tokens_of
from simulator.program.rank import DEFAULT_STREAM, Rank
from simulator.stack.stacks import Stack, stack_of
from simulator.study import scenario
from simulator.study.readings import last_round_ps
from simulator.study.scenario import MemoryItem, Part, Workload
from simulator.study.some_layers import LAYERS, left_seconds, simulated, stretches
from simulator.units import PS_PER_S
from workloads.schedules import SCHEDULES

ROUNDS = 2  # of a pipeline that decodes: the first one fills it, the second is measured


class Step(Part):
    """What one step works on: requests of the whole mesh, dealt to its data-parallel groups."""

    phase: Literal["decode", "prefill", "mixed"] = Field(
        "decode", description="one token of every request, whole prompts, or chunks of prompts beside decode"
    )
    requests: int = Field(1, ge=0, le=10**6, description="that decode, or prompts of a prefill, over all ranks")
    context: PositiveInt = Field(4096, description="tokens of each: cached ones in decode, new ones in prefill")
    prefix: int = Field(0, ge=0, description="tokens of each prompt that are cached before it")
    chunk: int = Field(0, ge=0, description="prompt tokens of a data-parallel group in one pass (0: all in one)")
    prompt: int = Field(0, ge=0, description="mixed: prompt tokens that a data-parallel group prefills in the pass")
    drafts: int = Field(0, ge=0, le=16, description="draft tokens of a request in one iteration (MTP, EAGLE)")
    acceptance: float = Field(0.7, ge=0, le=1, description="probability of a draft token after those before it")
    spread: float = Field(0.0, ge=0, le=2, description="coefficient of variation of the context between requests")
    groups: tuple[MicroBatch, ...] = Field(
        (), exclude=True, description="what every data-parallel group works on in the pass, instead of all above"
    )

    def working_on(self, groups: Sequence[MicroBatch]) -> Step:
        """One pass over what each data-parallel group has; drafts stay as they are."""
        phase = "mixed" if any(one.decodes for one in groups) else "prefill"
        if not any(one.prompts for one in groups):
            phase = "decode"
        requests = sum(len(one.decodes) or len(one.prompts) for one in groups)
        return Step(phase=phase, requests=requests, groups=tuple(groups), drafts=self.drafts,
                    acceptance=self.acceptance)

    @property
    def queries(self) -> int:
        """Tokens of a request that an iteration verifies."""
        return 1 + self.drafts

    @property
    def tokens_per_iteration(self) -> float:
        """Expected output tokens of a request: 1 + p + p^2 + ..."""
        return tokens_per_iteration(self.acceptance, self.drafts)


class Knobs(BaseModel):
    """The software stack and what it does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schedule: Literal[
        "", "one_stream", "shared_beside", "single_batch", "two_batches", "hooks", "side_by_side", "ping_pong"
    ] = Field("", description="the order of pieces on streams (workloads/schedules.py; empty: as the stack does)")
    micro_batches: int = Field(
        0, ge=0, le=64, description="that the schedule works on (0: as many as it is made for; one_stream 1, others 2);"
        " single_batch and two_batches take no other number"
    )
    exchange: Literal[
        "all_reduce", "all_gather", "all_to_all", "sorted_rows", "put_collect", "proxy", "generic_proxy", "deepep_ll",
        "deepep_normal",
    ] = Field("all_reduce", description="how tokens reach their experts")
    residual: Literal["replicated", "split", "split_latents"] = Field(
        "replicated", description="between pieces a tensor-parallel rank has all tokens, or a share, and gathers hidden"
        " states (FlashComm) or, with latent attention, latents (conversion)"
    )
    precision: tuple[str, ...] = Field(
        (), description="of modules, MODULE=DTYPE: attention, dense, experts, shared, head, kv, ... or all"
    )
    engine: str = Field("", description="what drives collectives: an engine of the machine (empty: as the stack does)")
    algorithm: str = Field("", description="of AllGather, ReduceScatter and AllReduce on it (empty: as the stack does)")
    reducing_engine: str = Field("", description="what drives AllReduce (empty: as the stack does; none: the same)")
    reducing_mb: float | None = Field(None, gt=0, description="largest buffer of `reducing_engine` (none: any)")
    exchange_engine: str = Field(
        "", description="what drives dispatch and combine (empty: as the others; put_collect: kernels that write rows"
        " of themselves where the machine has them)")
    dispatch_dtype: DispatchDtype = Field("", description=DISPATCH_DTYPE)
    exchange_sms: int | None = Field(
        None, ge=2, multiple_of=2, description="SMs of the kernels of deepep_normal, two a channel (none: 20)"
    )
    graph: Literal["decode", "always", "never"] = Field(
        "decode", description="steps that run as captured graphs (decode: and prompts padded to a captured size)"
    )
    norm_in_all_reduce: bool | None = Field(
        None, description="a norm is part of the AllReduce before it (none: as the stack does)"
    )
    programmatic_launch: bool = Field(False, description="a kernel's prologue runs beside its predecessor's end (PDL)")
    prefetch_mb: float = Field(0.0, ge=0, description="weights of the next layer's attention that are brought into L2")
    layers: int = LAYERS
    gathered: Gathering = Gathering()
    cores: str = Field(
        "", pattern=r"^(\d+/\d+)?$", description="side_by_side: cores of the attention and the MoE stream, as 66/66"
    )

    @property
    def parts(self) -> int:
        """Micro-batches of the schedule; InputError where it takes another number."""
        return parts_of(SCHEDULES, self.schedule or "one_stream", self.micro_batches)

    def model_of(self, model: Model) -> Model:
        """The model in the precision that is set; InputError names what is wrong."""
        return in_precision(model, self.precision, "knobs.precision")


Case = scenario.Case[Step, Mesh, Knobs]


def has_experts(case: Case) -> bool:
    """Whether a layer that runs has routed experts."""
    layers = (*case.model.layers, *(case.model.drafts if case.batch.drafts else ()))
    return any(isinstance(layer.feed_forward, Experts) for layer in layers)


def exchange_of(case: Case) -> str:
    """How tokens reach their experts; without any it makes no difference, and the knob is not read."""
    return case.knobs.exchange if has_experts(case) else "all_reduce"


def placed(case: Case) -> Mesh:
    """The mesh with the shared expert where the exchange has tokens."""
    return case.layout.placed(exchange_of(case) != "all_reduce")


def exchange_settings(case: Case) -> ExchangeSettings:
    """The exchange and its settings, which are not read either where there are no experts."""
    knobs, name = case.knobs, exchange_of(case)
    if not has_experts(case):
        return ExchangeSettings(name)
    dispatching, combining = driven_by(name, knobs.exchange_engine, case.engines)
    return ExchangeSettings(name, dispatching, case.routing.skew, case.seed, combine_engine=combining,
                            own=settings_of(name, knobs.dispatch_dtype, knobs.exchange_sms),
                            node=case.node_ranks, ported=case.port_ranks, state=case.routing.state)


def partition(npu: Rank, case: Case) -> str:
    """Cores of their own for the two streams of `side_by_side`, where the knobs say so; gives the stream of what stands
    around the layers, which has cores."""
    if case.knobs.schedule != "side_by_side" or not case.knobs.cores:
        return DEFAULT_STREAM
    for stream, count in zip(("attention", "moe"), case.knobs.cores.split("/"), strict=True):
        npu.confine(stream, stack_for(case).cores(int(count)))
    return "attention"


def stack_for(case: Case) -> Stack:
    """The stack of the generation, as it runs this model in this phase."""
    knobs = case.knobs
    stack = stack_of(case.kernels, knobs.model_of(case.model), case.batch.phase, case.dtypes)
    if knobs.norm_in_all_reduce in (None, stack.norm_in_all_reduce):
        return stack
    return replace(stack, norm_in_all_reduce=knobs.norm_in_all_reduce)  # type: ignore[type-var]


def order_of(case: Case) -> Callable[..., None]:
    """The schedule; where none is named, one stream, or with the shared expert beside it where the stack's captured
    graphs do so."""
    knobs, most = case.knobs, max(one.tokens for groups in batches_of(case) for one in groups)
    beside = captured(case) and exchange_of(case) == "all_reduce" and most <= stack_for(case).shared_beside
    return SCHEDULES[knobs.schedule or ("shared_beside" if beside else "one_stream")].order


def captured(case: Case) -> bool:
    """Whether the step runs as captured graphs: one that decodes, or whose prompts are padded to a captured size."""
    prompts = [one for one in case.batch.groups if one.prompts]
    sized = case.batch.phase == "decode" or (bool(prompts) and all(one.padded for one in prompts))
    return case.knobs.graph == "always" or (case.knobs.graph == "decode" and sized)


def engines_of(case: Case) -> Engines:
    """What drives collectives: what the knobs say, or of what the stack would take the first that the machine has."""
    knobs = case.knobs
    most_bytes = inf if knobs.reducing_mb is None else knobs.reducing_mb * 1e6
    return engines_for(stack_for(case), case.engines, knobs.engine, knobs.algorithm, knobs.reducing_engine, most_bytes)


# --- what a rank works on -------------------------------------------------------------------------------------------


def batches_of(case: Case) -> list[list[MicroBatch]]:
    """[pass][data-parallel group]: what each group works on; all of them take part in every pass."""
    batch, dp = case.batch, case.layout.dp
    if batch.groups:
        return [list(batch.groups)]
    if batch.phase == "prefill":
        return prefill_passes(on_ranks([batch.context] * batch.requests, dp, False), batch.prefix, batch.chunk)
    lengths = lengths_on_ranks(1, batch.requests, batch.context, batch.spread, case.seed, dp)
    decoding = decode_batches(lengths, batch.queries)
    if batch.phase == "decode":
        return [decoding]
    chunk = ((batch.prompt, batch.prefix),) if batch.prompt else ()
    return [[MicroBatch(0, one.decodes, chunk) for one in decoding]]


# --- the program ----------------------------------------------------------------------------------------------------


def program(npu: Rank, case: Case) -> None:
    """Pass after pass, then drafts."""
    knobs = case.knobs
    npu.program.captured, npu.program.operators = captured(case), stack_for(case).operators
    npu.program.programmatic = knobs.programmatic_launch
    with npu.stream(partition(npu, case)):
        _passes(npu, case)


def _passes(npu: Rank, case: Case) -> None:
    """Those of the phase, each with its drafts, in the current stream."""
    knobs, batch = case.knobs, case.batch
    model, passes, gathered = knobs.model_of(case.model), batches_of(case), []
    layers = (*model.layers, *draft_layers(model, batch.drafts)) * len(passes)
    if knobs.gathered.modules:
        gathered = [GatheredWeights(npu, knobs.gathered, model, layers, engines_of(case).engine, knobs.parts)]
    for groups in passes:
        group = group_of(npu, groups)
        if case.layout.pp > 1:
            _stage(npu, case).run(groups, group, knobs.parts, ROUNDS if batch.phase != "prefill" else 1,
                                  order_of(case), partial(draft, npu, case, model))
            continue
        tokens = tokens_of(groups, knobs.parts, group)
        numbers = simulated(model.layers, knobs.layers)
        step = forward(npu, case, numbers, [model.layers[number] for number in numbers], gathered)
        for one in tokens:
            step.embed(one)
        order_of(case)(step, *tokens)
        for one in tokens:
            step.head(one)
        draft(npu, case, model, tokens, gathered)


def forward(npu: Rank, case: Case, numbers: Sequence[int], layers: Sequence[Layer],
            techniques: Sequence[GatheredWeights] = ()) -> Forward:
    """A pass of this rank through some layers."""
    knobs = case.knobs
    labels = ("layer", "micro_batch") if knobs.parts > 1 else ("layer",)
    step = pass_of(npu, case.layout)(
        npu, knobs.model_of(case.model), placed(case), stack_for(case), engines_of(case), exchange_settings(case),
        knobs.residual != "replicated", labels, numbers, layers, techniques,
        gathers_latents=knobs.residual == "split_latents")
    return prefetching(step, 1e6 * knobs.prefetch_mb)


def _stage(npu: Rank, case: Case) -> Stage:
    """Of this rank in a pipeline."""
    stage, model = npu.coordinate("stage"), case.knobs.model_of(case.model)
    assert isinstance(stage, int)
    numbers = stages_of(model, case.layout)[stage]
    step = forward(npu, case, numbers, [model.layers[number] for number in numbers])
    return Stage(stage, step, residual_split=case.knobs.residual != "replicated")


def draft(npu: Rank, case: Case, model: Model, verified: Sequence[Tokens],
          techniques: Sequence[GatheredWeights] = ()) -> None:
    """One pass of a draft layer for each draft token: the first catches up with all tokens that were verified."""
    for number, layer, queries in draft_passes(model, case.batch.drafts if any(verified[0].decoding) else 0):
        step = forward(npu, case, [number], [layer], techniques)
        tokens = [one.drafting(queries) for one in verified]
        with npu.scope(layer=number):
            for one in tokens:
                step.project(one)
        order_of(case)(step, *tokens)
        with npu.scope(layer=number):
            for one in tokens:
                step.head(one)


# --- what a scenario needs to know ----------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Those of the mesh; what cannot be is refused, all at once."""
    check(case.layout, case.knobs.model_of(case.model))
    if case.layout.ranks != case.ranks:
        raise InputError(f"mesh {case.layout.words()} has {case.layout.ranks} ranks, but cards={case.cards} are "
                         f"{case.ranks}: set cards, or an axis, so that they are as many")
    if case.batch.groups and len(case.batch.groups) != case.layout.dp:
        raise InputError(f"batch.groups has {len(case.batch.groups)}, layout.dp is {case.layout.dp}: one for each")
    if not case.batch.requests and not (case.batch.phase == "mixed" and case.batch.prompt):
        raise InputError("batch.requests is 0: there is nothing to do; it must be at least 1")
    if case.knobs.layers and (case.layout.pp > 1 or len(batches_of(case)) > 1):
        raise InputError(f"knobs.layers is {case.knobs.layers}: with several passes, or stages, it must be 0")
    gathered = case.knobs.gathered
    gathered.check(case.model, case.layout, "knobs.gathered.modules", "layout.tp or layout.cp above 1")
    shards = gathered.shards if gathered.modules else 1
    found = {**groups_of(placed(case)), "shards": blocks(case.ranks, shards, "knobs.gathered.shards")}
    if has_hosts(case):
        check_there(exchange_of(case), case.machine, case.engines, case.cores)
        if isinstance(own := exchange_settings(case).own, NormalSettings):
            check_sms("knobs.exchange_sms", own, case.machine, case.cores)
        found["node"] = node_blocks(case.layout, case.node_ranks, f"exchange {exchange_of(case)}")
    return found


def has_hosts(case: Case) -> bool:
    """Whether hosts or cards take part in exchanges."""
    return exchange_of(case) in HOSTS


def alike(case: Case) -> bool:
    """Whether those of ranks with one program do the same: host threads send rows in an order by chance."""
    return HOSTS[exchange_of(case)] is gpu_initiated


def hosts(host: Host, case: Case) -> HostProcess:
    """What they do: what the program asks for."""
    return HOSTS[exchange_of(case)](host)


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """Where it is in the mesh."""
    return coordinates_of(case.layout, rank)


def memory(case: Case) -> list[MemoryItem]:
    """Of the fullest rank."""
    mesh, model, gathered = placed(case), case.knobs.model_of(case.model), case.knobs.gathered
    batch, groups = case.batch, [one for groups in batches_of(case) for one in groups]
    held = max((one.held for one in groups), key=sum)
    if batch.phase == "prefill" and not batch.groups:  # of all passes together
        held = [batch.prefix + batch.context] * split(batch.requests, case.layout.dp)[0]
    load = Load(held, max(one.tokens for one in groups), max(one.sampled for one in groups), bool(batch.drafts))

    def buffers(experts: Experts, tokens: int) -> list[MemoryItem]:
        return buffers_of(exchange_of(case), experts, model.hidden, mesh.block, case.node_ranks, tokens)

    return fullest_rank(model, mesh, load, gathered.kept(), gathered.memory(model), buffers)


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Of the phase: TPOT, TTFT, and tokens per second, of the whole and per card; nothing of a part of the layers."""
    return {} if case.knobs.layers else _measures(case, seconds)


def _measures(case: Case, seconds: float) -> Mapping[str, float]:
    batch, ms = case.batch, seconds * 1e3
    if batch.phase == "prefill":
        rate, found = batch.requests * batch.context / seconds, {"ttft_ms": ms, "latency_ms": ms}
    else:
        rate = batch.requests * batch.tokens_per_iteration / seconds
        found = {"iteration_ms": ms, "tpot_ms": ms / batch.tokens_per_iteration}
    return {**found, "throughput_tok_s": rate, "throughput_tok_s_per_card": rate / case.cards}


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Of a pipeline that decodes: from a token of the first round to the next one. Of a part of the layers: for all."""
    if case.knobs.layers:
        found = stretches(case.model.layers, case.knobs.layers)
        return _measures(case, float(columns["end_ps"].max()) / PS_PER_S + left_seconds(found, columns))
    if case.layout.pp == 1 or case.batch.phase == "prefill" or not case.batch.requests:
        return {}
    return measures(case, last_round_ps(columns, "head.sample", ROUNDS) / PS_PER_S)


TRANSFORMER = Workload(program, groups, coordinates, memory, measures, hosts, readings, has_hosts, alike,
                       lambda case: case.layout.dp)
