"""Any transformer on any mesh: prefill, decode, or both in one pass, of a model, a stack, a mesh and a schedule.

`simulator.parallel.forward` has the pieces of a layer, `schedules` their order on streams; here is what stands around
them: which tokens a rank works on, passes that follow each other (chunks of prompts, draft layers, stages of a
pipeline), and what a scenario has to know (memory, groups, metrics).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from simulator.errors import InputError
from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.model.layout import blocks, cached_lengths, on_ranks, split
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Dense, Experts, Layer, Model, with_precision
from simulator.parallel.border import Engines, cross
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.exchange.ways import HOSTS, buffers_of
from simulator.parallel.forward import Forward
from simulator.parallel.ledger import activation_bytes, cache_bytes, stages_of, weights_of
from simulator.parallel.mesh import Mesh, Role, check, coordinates_of, groups_of
from simulator.parallel.roles import pass_of
from simulator.parallel.tokens import Tokens, alike, tokens_of
from simulator.program.rank import DEFAULT_STREAM, Rank
from simulator.stack.stacks import Stack, stack_of
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload
from simulator.study.some_layers import left_seconds, stretches
from simulator.units import PS_PER_S
from workloads.gathered_weights import GatheredWeights, Gathering
from workloads.prefetch import prefetching
from workloads.schedules import SCHEDULES, parts_of

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

    @property
    def queries(self) -> int:
        """Tokens of a request that an iteration verifies."""
        return 1 + self.drafts

    @property
    def tokens_per_iteration(self) -> float:
        """Expected output tokens of a request: 1 + p + p^2 + ..."""
        return sum(self.acceptance**place for place in range(self.queries))


class Knobs(BaseModel):
    """The software stack and what it does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schedule: Literal["one_stream", "single_batch", "two_batches", "hooks", "side_by_side", "ping_pong"] = Field(
        "one_stream", description="the order of pieces on streams (workloads/schedules.py)"
    )
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
    exchange_engine: str = Field("", description="what drives dispatch and combine (empty: as the others)")
    graph: Literal["decode", "always", "never"] = Field("decode", description="phases that run as captured graphs")
    programmatic_launch: bool = Field(False, description="a kernel's prologue runs beside its predecessor's end (PDL)")
    prefetch_mb: float = Field(0.0, ge=0, description="weights of the next layer's attention that are brought into L2")
    layers: int = Field(
        0, ge=0, description="of neighbouring layers that are alike so many are simulated, three at least, and their"
        " time stands for that of all (0: all are)"
    )
    gathered: Gathering = Gathering()
    cores: str = Field(
        "", pattern=r"^(\d+/\d+)?$", description="side_by_side: cores of the attention and the MoE stream, as 66/66"
    )

    @property
    def parts(self) -> int:
        """Micro-batches of the schedule; InputError where it takes another number."""
        return parts_of(self.schedule, self.micro_batches)

    def model_of(self, model: Model) -> Model:
        """The model in the precision that is set; InputError names what is wrong."""
        return _precise(model, self.precision)

    def placed(self, mesh: Mesh) -> Mesh:
        """The mesh with the shared expert where the exchange has tokens."""
        return mesh.placed(self.exchange != "all_reduce")


@cache
def _precise(model: Model, words: tuple[str, ...]) -> Model:
    pairs = [word.partition("=") for word in words]
    if wrong := [f"'{name}{equals}{dtype}'" for name, equals, dtype in pairs if not equals]:
        raise InputError(f"knobs.precision: {', '.join(wrong)}: write MODULE=DTYPE, as experts=mxfp4")
    return with_precision(model, {name.strip(): dtype.strip() for name, _, dtype in pairs})


Case = scenario.Case[Step, Mesh, Knobs]


def partition(npu: Rank, case: Case) -> str:
    """Cores of their own for the two streams of `side_by_side`, where the knobs say so; gives the stream of what stands
    around the layers, which has cores."""
    if not case.knobs.cores or case.knobs.schedule != "side_by_side":
        return DEFAULT_STREAM
    for stream, count in zip(("attention", "moe"), case.knobs.cores.split("/"), strict=True):
        npu.confine(stream, stack_for(case).cores(int(count)))
    return "attention"


def stack_for(case: Case) -> Stack:
    """The stack of the generation, as it runs this model in this phase."""
    return stack_of(case.kernels, case.knobs.model_of(case.model), case.batch.phase)


def engines_of(case: Case) -> Engines:
    """What drives collectives: what the knobs say, or of what the stack would take the first that the machine has."""
    knobs, stack = case.knobs, stack_for(case)
    engine = knobs.engine or _first(stack.engines, case.engines)
    if not engine:
        raise InputError(f"knobs.engine: {stack.name} takes {', '.join(stack.engines)}, of which the machine has none; "
                         f"it has {', '.join(case.engines)}")
    reducing = knobs.reducing_engine or _first(stack.reducing_engines, case.engines)
    most_bytes = inf if knobs.reducing_mb is None else knobs.reducing_mb * 1e6
    return Engines(engine, knobs.algorithm or stack.algorithm, "" if reducing == "none" else reducing,
                   case.engines.get(reducing, 0), most_bytes)


def _first(wanted: Sequence[str], there: Mapping[str, int]) -> str:
    return next((one for one in wanted if one in there), "")


# --- what a rank works on -------------------------------------------------------------------------------------------


def batches_of(case: Case) -> list[list[MicroBatch]]:
    """[pass][data-parallel group]: what each group works on; all of them take part in every pass."""
    batch, dp = case.batch, case.layout.dp
    if batch.phase == "decode":
        return [_decoding(case)]
    if batch.phase == "mixed":
        chunk = ((batch.prompt, batch.prefix),) if batch.prompt else ()
        return [[MicroBatch(0, one.decodes, chunk, 0, 0) for one in _decoding(case)]]
    lengths = on_ranks([batch.context] * batch.requests, dp, length_aware=False)
    chunks = [list(_chunks(one, batch.prefix, batch.chunk)) for one in lengths]
    passes = max(map(len, chunks))
    idle = MicroBatch(padded=1)  # takes part in exchanges with a token that counts for nothing
    return [[one[number] if number < len(one) else idle for one in chunks] for number in range(passes)]


def _decoding(case: Case) -> list[MicroBatch]:
    """Requests of every data-parallel group; a captured graph pads all to the fullest."""
    batch, dp = case.batch, case.layout.dp
    drawn = cached_lengths(1, batch.requests, batch.context, batch.spread, case.seed)
    lengths = on_ranks(drawn, dp, length_aware=False)
    padded = max(map(len, lengths)) * batch.queries
    return [MicroBatch(0, tuple((batch.queries, held) for held in one), (), 0, padded) for one in lengths]


def _chunks(lengths: Sequence[int], prefix: int, budget: int) -> Iterator[MicroBatch]:
    """Prompts of a data-parallel group in passes of at most `budget` new tokens, in order."""
    pieces: list[tuple[int, int]] = []
    ends, room = 0, budget
    for length in lengths:
        done = 0
        while done < length:
            piece = min(length - done, room) if budget else length
            pieces.append((piece, prefix + done))
            done, room = done + piece, room - piece
            ends += done == length
            if budget and not room:
                yield MicroBatch(0, (), tuple(pieces), ends)
                pieces, ends, room = [], 0, budget
    if pieces:
        yield MicroBatch(0, (), tuple(pieces), ends)


# --- the program ----------------------------------------------------------------------------------------------------


def program(npu: Rank, case: Case) -> None:
    """Pass after pass, then drafts."""
    knobs, batch = case.knobs, case.batch
    npu.program.captured = knobs.graph == "always" or (knobs.graph == "decode" and batch.phase == "decode")
    npu.program.programmatic = knobs.programmatic_launch
    with npu.stream(partition(npu, case)):
        _passes(npu, case)


def _passes(npu: Rank, case: Case) -> None:
    """Those of the phase, each with its drafts, in the current stream."""
    knobs, batch = case.knobs, case.batch
    model, passes = knobs.model_of(case.model), batches_of(case)
    layers = (*model.layers, *draft_layers(model, batch.drafts)) * len(passes)
    gathered = []
    if knobs.gathered.modules:
        gathered = [GatheredWeights(npu, knobs.gathered, model, layers, engines_of(case).engine, knobs.parts)]
    for groups in passes:
        group = _group(npu, groups)
        if case.layout.pp > 1:
            pipeline(npu, case, model, groups, group)
            continue
        tokens = tokens_of(groups, knobs.parts, group)
        numbers = [number for stretch in stretches(model.layers, knobs.layers) for number in stretch.numbers]
        step = forward(npu, case, numbers, [model.layers[number] for number in numbers], gathered)
        for one in tokens:
            step.embed(one)
        SCHEDULES[knobs.schedule].order(step, *tokens)
        for one in tokens:
            step.head(one)
        draft(npu, case, model, tokens, gathered)


def forward(npu: Rank, case: Case, numbers: Sequence[int], layers: Sequence[Layer],
            techniques: Sequence[GatheredWeights] = ()) -> Forward:
    """A pass of this rank through some layers."""
    knobs = case.knobs
    exchanges = ExchangeSettings(knobs.exchange, knobs.exchange_engine, case.routing.skew, case.seed,
                                 node=case.node_ranks, ported=case.port_ranks)
    labels = ("layer", *(("micro_batch",) if knobs.parts > 1 else ()))
    kind = pass_of(npu, case.layout)
    step = kind(npu, knobs.model_of(case.model), knobs.placed(case.layout), stack_for(case), engines_of(case),
                exchanges, knobs.residual != "replicated", labels, numbers, layers, techniques,
                gathers_latents=knobs.residual == "split_latents")
    return prefetching(step, 1e6 * knobs.prefetch_mb)


def draft(npu: Rank, case: Case, model: Model, verified: Sequence[Tokens],
          techniques: Sequence[GatheredWeights] = ()) -> None:
    """One pass of a draft layer for each draft token: the first catches up with all tokens that were verified."""
    if not case.batch.drafts or not verified[0].batch.decodes:
        return
    for depth, layer in enumerate(draft_layers(model, case.batch.drafts)):
        queries = case.batch.queries if depth == 0 else 1
        number = len(model.layers) + depth
        step = forward(npu, case, [number], [layer], techniques)
        tokens = [_drafting(one, case.batch.queries, queries) for one in verified]
        with npu.scope(layer=number):
            for one in tokens:
                step.project(one)
        SCHEDULES[case.knobs.schedule].order(step, *tokens)
        with npu.scope(layer=number):
            for one in tokens:
                step.head(one)


def _drafting(verified: Tokens, before: int, queries: int) -> Tokens:
    """The same requests with so many query tokens each instead of those before."""
    counts = tuple(-(-count // before) * queries for count in verified.of_groups)
    each = tuple(one.drafting(queries) for one in verified.batches)
    return Tokens(verified.batch.drafting(queries), counts, batches=each)


def draft_layers(model: Model, depth: int) -> tuple[Layer, ...]:
    """So many draft layers: its MTP layers, the last of them again and again, or (EAGLE) layers like its last one where
    that is dense; InputError if it has neither."""
    own = model.drafts or (model.layers[-1:] if isinstance(model.layers[-1].feed_forward, Dense) else ())
    if own or not depth:
        return tuple(own[min(number, len(own) - 1)] for number in range(depth))
    raise InputError(f"batch.drafts: {model.name} has no draft layer of its own, and no published one is in its file")


def _group(npu: Rank, groups: Sequence[MicroBatch]) -> int:
    """The data-parallel group of this rank; not asked where one recording serves all of them."""
    if alike(groups) and len({one.sampled for one in groups}) == 1:
        return 0
    group = npu.coordinate("dp")
    assert isinstance(group, int)
    return group


# --- a pipeline -----------------------------------------------------------------------------------------------------


def pipeline(npu: Rank, case: Case, model: Model, groups: Sequence[MicroBatch], group: int) -> None:
    """Micro-batches through stages, forward only: as many at a time as there are stages, each on its way to the next.

    stage 0  a | b | . | a' | b'       a token that the last stage samples goes back to the first one
    stage 1    | a | b | .  | a' | b'
    """
    stage, pp = npu.coordinate("stage"), case.layout.pp
    assert isinstance(stage, int)
    numbers = stages_of(model, case.layout)[stage]
    step = forward(npu, case, numbers, [model.layers[number] for number in numbers])
    rounds = ROUNDS if case.batch.phase == "decode" else 1
    for turn in range(rounds):
        for together in _in_flight(case, groups, group):
            if stage:
                _receive(npu, case, step, together, stage - 1)
            else:
                if turn:
                    _message(npu, case, "pipeline.sampled", pp - 1, _sampled_bytes(together), sends=False)
                for one in together:
                    step.embed(one)
            SCHEDULES[case.knobs.schedule].order(step, *together)
            if stage < pp - 1:
                for one in together:
                    step.finalize(one)
                _message(npu, case, "pipeline.hidden", stage + 1, _share_bytes(case, model, together), sends=True)
                continue
            for one in together:
                step.head(one)
            draft(npu, case, model, together)
            if turn < rounds - 1:
                _message(npu, case, "pipeline.sampled", 0, _sampled_bytes(together), sends=True)


def _in_flight(case: Case, groups: Sequence[MicroBatch], group: int) -> list[list[Tokens]]:
    """What is on its way through a pipeline: one a stage, each in the micro-batches of the schedule, as far as every
    group has requests, or prompt tokens, for them."""
    parts, pp = case.knobs.parts, case.layout.pp
    least = min(len(one.decodes) or sum(new for new, _ in one.prompts) for one in groups)
    cut = tokens_of(groups, parts * max(min(pp, least // parts), 1), group)
    return [cut[first : first + parts] for first in range(0, len(cut), parts)]


def _receive(npu: Rank, case: Case, step: Forward, together: Sequence[Tokens], stage: int) -> None:
    """This rank's share of the hidden states from its counterpart, then those of its tensor-parallel group."""
    if not _attends(npu, case):
        return
    _message(npu, case, "pipeline.hidden", stage, _share_bytes(case, step.model, together), sends=False)
    if case.knobs.residual != "replicated":
        for one in together:
            one.form = "own"
        return
    count, row_bytes = sum(one.batch.tokens for one in together), 2.0 * step.model.hidden
    cross(npu.group("tensor"), "pipeline.gather", "own", "all", count, row_bytes, engines_of(case))


def _share_bytes(case: Case, model: Model, together: Sequence[Tokens]) -> int:
    return sum(2 * model.hidden * -(-one.batch.tokens // case.layout.tensor) for one in together)


def _sampled_bytes(together: Sequence[Tokens]) -> int:
    return 8 * sum(one.batch.sampled for one in together)


def _message(npu: Rank, case: Case, name: str, peer: int, size_bytes: int, sends: bool) -> None:
    """To or from a counterpart: sends go beside what follows, and what follows a receipt waits for it."""
    if not _attends(npu, case):
        return
    pipe, before = npu.group("pipe"), npu.record()
    with npu.stream("send" if sends else "receive"):
        if sends:
            npu.wait(before)
        moved = (pipe.send if sends else pipe.recv)(name, peer, size_bytes, engines_of(case).engine)
    if not sends:
        npu.wait(moved)


def _attends(npu: Rank, case: Case) -> bool:
    """Whether this rank has tokens, and not experts alone."""
    return not case.layout.apart or npu.coordinate("role") != "experts"


# --- what a scenario needs to know ----------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Those of the mesh; what cannot be is refused, all at once."""
    check(case.layout, case.knobs.model_of(case.model))
    if case.layout.ranks != case.ranks:
        raise InputError(f"mesh {case.layout.words()} has {case.layout.ranks} ranks, but cards={case.cards} are "
                         f"{case.ranks}: set cards, or an axis, so that they are as many")
    if case.knobs.layers and (case.layout.pp > 1 or len(batches_of(case)) > 1):
        raise InputError(f"knobs.layers is {case.knobs.layers}: with several passes, or stages, it must be 0")
    gathered = case.knobs.gathered
    gathered.check(case.model, case.layout.tensor, "knobs.gathered.modules", "layout.tp or layout.cp above 1")
    if gathered.modules and (case.layout.pp > 1 or case.layout.apart):
        axis, value, right = ("apart", case.layout.apart, 0) if case.layout.apart else ("pp", case.layout.pp, 1)
        raise InputError(f"knobs.gathered.modules: layout.{axis} is {value}; it must be {right}")
    shards = gathered.shards if gathered.modules else 1
    found = {**groups_of(case.knobs.placed(case.layout)), "shards": blocks(case.ranks, shards, "knobs.gathered.shards")}
    if has_hosts(case):
        found["node"] = blocks(case.ranks, min(case.node_ranks, case.layout.block), "ranks of a node")
    return found


def has_hosts(case: Case) -> bool:
    """Whether hosts or cards take part in exchanges."""
    layers = (*case.model.layers, *(case.model.drafts if case.batch.drafts else ()))
    return case.knobs.exchange in HOSTS and any(isinstance(layer.feed_forward, Experts) for layer in layers)


def hosts(host: Host, case: Case) -> HostProcess:
    """What they do: what the program asks for."""
    yield from HOSTS[case.knobs.exchange](host)


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """Where it is in the mesh."""
    return coordinates_of(case.layout, rank)


def memory(case: Case) -> list[MemoryItem]:
    """The fullest rank: of the first or the last stage."""
    mesh, model, gathered = case.knobs.placed(case.layout), case.knobs.model_of(case.model), case.knobs.gathered
    passes = batches_of(case)
    held = max((_held(case, one) for groups in passes for one in groups), key=sum)
    tokens = max(one.tokens for groups in passes for one in groups)
    sampled = max(one.sampled for groups in passes for one in groups)

    experts = next((one.feed_forward for one in model.layers if isinstance(one.feed_forward, Experts)), None)
    held_tokens = -(-tokens // mesh.tensor)

    def items(stage: int, role: Role) -> list[MemoryItem]:
        found = [*weights_of(model, mesh, stage, bool(case.batch.drafts), gathered=gathered.kept(), role=role),
                 *gathered.memory(model)]
        if role != "experts":
            found.append((f"cache, {model.precision.kv}", "KV", cache_bytes(model, mesh, held, stage)))
        needed = activation_bytes(model, mesh, tokens, sampled, role)
        found.append(("activations of one pass", "activations", needed))
        if experts is None:
            return found
        mine = -(-held_tokens * mesh.attending // mesh.apart) if role == "experts" else held_tokens
        return [*found, *buffers_of(case.knobs.exchange, experts, model.hidden, mesh.block, case.node_ranks, mine)]

    return max((items(stage, role) for stage in {0, mesh.pp - 1} for role in mesh.roles),
               key=lambda found: sum(size for _, _, size in found))


def _held(case: Case, batch: MicroBatch) -> list[int]:
    """Tokens in the cache of every request of a group."""
    if case.batch.phase == "prefill":
        prompts = split(case.batch.requests, case.layout.dp)[0]
        return [case.batch.prefix + case.batch.context] * prompts
    return [*(queries + cached for queries, cached in batch.decodes), *(new + before for new, before in batch.prompts)]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Of the phase: TPOT, TTFT, and tokens per second, of the whole and per card; nothing of a part of the layers."""
    return {} if case.knobs.layers else _measures(case, seconds)


def _measures(case: Case, seconds: float) -> Mapping[str, float]:
    batch = case.batch
    found: dict[str, float] = {}
    if batch.phase == "prefill":
        rate = batch.requests * batch.context / seconds
        found = {"ttft_ms": seconds * 1e3, "latency_ms": seconds * 1e3}
    else:
        rate = batch.requests * batch.tokens_per_iteration / seconds
        found = {"iteration_ms": seconds * 1e3, "tpot_ms": seconds * 1e3 / batch.tokens_per_iteration}
    return {**found, "throughput_tok_s": rate, "throughput_tok_s_per_card": rate / case.cards}


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Of a pipeline that decodes: from a token of the first round to the next one. Of a part of the layers: for all."""
    if case.knobs.layers:
        found = stretches(case.model.layers, case.knobs.layers)
        return _measures(case, float(columns["end_ps"].max()) / PS_PER_S + left_seconds(found, columns))
    if case.layout.pp == 1 or case.batch.phase != "decode":
        return {}
    ends = columns["end_ps"][columns["name"] == "head.sample"]
    ranks = columns["rank"][columns["name"] == "head.sample"]
    last = sorted(int(end) for end, rank in zip(ends, ranks, strict=True) if rank == ranks[0])
    return measures(case, (last[-1] - last[len(last) // ROUNDS - 1]) / 1e12)


TRANSFORMER = Workload(program, groups, coordinates, memory, measures, hosts, readings, has_hosts)
