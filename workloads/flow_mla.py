"""FlowMLA (Ant Group, on SGLang): decode of DeepSeek-R1 with data parallel attention whose o_proj is sharded.

What is sharded is gathered just in time (`gathered_weights`). The feed-forward is tensor or expert parallel over all
cards: an AllGather of all data parallel tokens before it, and after it an AllReduce of all of them, of which each keeps
its own (SGLang 0.4.10, `layers/communicator.py` and `models/deepseek_v2.py`), or a ReduceScatter (later). NCCL runs
rings. The baseline is tensor parallel: all cards have all tokens and some heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Literal

from pydantic import Field

from simulator.errors import InputError
from simulator.model.layout import blocks, shard_size
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Layer, experts_of
from simulator.parallel.border import Engines
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.forward import Forward
from simulator.parallel.gathered_weights import GatheredWeights
from simulator.parallel.mesh import Mesh, groups_of
from simulator.parallel.tokens import Tokens
from simulator.program.rank import Rank
from simulator.stack.sglang_2025 import STACK, Sglang2025, graph_size
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload
from simulator.study.some_steps import Step
from workloads.flow_mla_memory import gathering_of, items, mesh_of, model_of, requests
from workloads.flow_mla_run import iterations_of, readings

RING = "ring"  # NCCL's algorithm for AllGather, ReduceScatter and AllReduce over nodes


class Batch(Part):
    """The published runs: so many requests that start together, and how much of the run is simulated."""

    requests: int = Field(0, ge=0, description="of every data parallel rank (TP: of all ranks); 0: as many as fit")
    prompt_tokens: int = Field(1024, gt=0)
    output_tokens: int = Field(2048, gt=1)
    chunk_tokens: int = Field(1024, gt=0, description="prompt tokens of every data parallel rank in one step")
    samples: int = Field(3, gt=0, description="decode iterations that are simulated, at as many KV lengths")
    cached_tokens: int = Field(0, ge=0, description="0: the whole run; else decode with this many cached tokens alone")


class Knobs(Part):
    """What FlowMLA can vary."""

    dtype: Literal["fp8", "bf16"] = Field("fp8", description="weights of linear layers")
    attention: Literal["dp", "tp"] = Field("dp", description="data or tensor parallel attention")
    sharded: tuple[Literal["qkv_a", "q_b", "qkv", "o"], ...] = Field(
        (), description="FlowMLA: modules of which 1/n is kept (qkv: of grouped-query attention)"
    )
    shards: int = Field(8, gt=1, description="FlowMLA: over how many neighbours a module is sharded")
    buffers: int = Field(2, gt=0, description="FlowMLA: layers whose gathered weights there is room for")
    gather_engine: str = Field("nccl_background", description="FlowMLA: what drives the gather")
    engine: str = Field("nccl", description="what drives all other collectives: an engine of the machine")
    combine: Literal["all_reduce", "reduce_scatter"] = Field(
        "all_reduce", description="how results of all data parallel tokens are summed and come back"
    )
    small_engine: str = Field("custom_all_reduce", description="what drives AllReduce up to `small_mb`")
    small_mb: float = Field(8.0, ge=0, description="largest AllReduce of `small_engine`")
    pad_to_captured: bool = Field(True, description="decode runs in graphs captured for a few batch sizes")
    captured: int = Field(256, gt=0, description="the largest (SGLang: 256 above 90 GiB, else 160); beyond, eager")


Case = scenario.Case[Batch, scenario.Layout, Knobs]


def run(npu: Rank, case: Case) -> None:
    """The iterations that stand for the whole run: one captured graph each, or launched kernel by kernel throughout
    where the fullest batch is larger than the largest graph. The host reads the sampled tokens of each."""
    iterations, model = iterations_of(case), model_of(case)
    npu.program.captured, npu.program.operators = requests(case) <= case.knobs.captured, STACK.operators
    techniques = []
    if case.knobs.sharded:
        layers = model.layers * len(iterations)
        techniques = [GatheredWeights(npu, gathering_of(case), model, layers, case.knobs.engine)]
    order = tensor_parallel if case.knobs.attention == "tp" else data_parallel
    for iteration in iterations:
        stack, batch = stack_of(iteration), batch_of(case, iteration)
        step = forward(npu, case, iteration, stack, techniques)
        tokens = Tokens(batch, (batch.tokens,))
        step.launch(stack.embed(model, batch.tokens, 1))
        order(step, stack, tokens)
        step.head(tokens)
        npu.host_wait(npu.record())


def tensor_parallel(step: Forward, stack: Sglang2025, a: Tokens) -> None:
    """Some heads of all tokens, and a slice of the feed-forward.

    compute  attend a | AllReduce | feed-forward a | AllReduce
    """
    for layer in step.layers():
        step.attend(a)
        step.reduce(a)
        feed_forward(step, a, layer)


def data_parallel(step: Forward, stack: Sglang2025, a: Tokens) -> None:
    """All heads of own tokens; then the feed-forward of everybody's, b.

    compute  attend a | add | AllGather | norm | feed-forward b | AllReduce | own of b
    """
    everybody = Mesh(tp=step.mesh.stage, ep=step.mesh.ep)
    for layer in step.layers():
        step.attend(a)
        b = gather(step, stack, a)
        feed_forward(step.across(everybody), b, layer)
        if b.form == "all":
            step.launch(stack.own_rows(step.model, "ffn.own", a.batch.tokens))


def gather(step: Forward, stack: Sglang2025, a: Tokens) -> Tokens:
    """Own tokens, residual added, to everybody; the sum is the new residual of own ones."""
    count, world = a.batch.tokens, step.npu.group("world")
    step.launch(stack.add(step.model, "ffn.add", count))
    world.all_gather("ffn.all_gather", 2 * count * step.model.hidden, step.engines.engine, RING)
    step.launch(stack.own_rows(step.model, "ffn.residual", count))
    together = count * world.size
    step.launch(stack.norm_alone(step.model, "ffn.norm", together))
    return Tokens(MicroBatch(padded=together), (together,), normed=True)


def feed_forward(step: Forward, a: Tokens, layer: Layer) -> None:
    """Slices of the dense FFN or of every expert, or whole experts and then the shared one; and the sum."""
    if step.is_dense(layer):
        step.dense(a)
        step.reduce(a)
        return
    step.route(a)
    step.experts(a)
    step.shared(a)
    step.combine(a)


def stack_of(iteration: Step) -> Sglang2025:
    """Without prompts activations are few enough to stay in L2."""
    return replace(STACK, l2_bytes=0.0 if iteration.prompts else inf)


def batch_of(case: Case, iteration: Step) -> MicroBatch:
    """Of one rank's attention: prompts, or requests that decode with what fills up their graph; a step with prompts is
    not captured."""
    captured = case.knobs.pad_to_captured and not iteration.prompts
    dummies = graph_size(iteration.decoding, case.knobs.captured) - iteration.decoding if captured else 0
    decodes = ((1, iteration.cached),) * iteration.decoding + ((1, 1),) * dummies
    return MicroBatch(0, decodes, tuple((new, 0) for new in iteration.prompts), len(iteration.prompts))


def forward(npu: Rank, case: Case, iteration: Step, stack: Sglang2025,
            techniques: list[GatheredWeights]) -> Forward:
    """One iteration. Layers are labelled in one, so that what is shown of a layer is of one time that it runs."""
    knobs, model = case.knobs, model_of(case)
    engines = Engines(knobs.engine, RING, knobs.small_engine, case.ranks, knobs.small_mb * 1e6, "", RING)
    exchanges = ExchangeSettings("all_reduce", "", case.routing.skew, case.seed)
    scattered = knobs.attention == "dp" and knobs.combine == "reduce_scatter"
    labels = ("layer",) if iteration.labelled else ()
    return Forward(npu, model, mesh_of(case), stack, engines, exchanges, scattered, labels, range(len(model.layers)),
                   model.layers, techniques)


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Those of all ranks as one, and the neighbours that share modules; what cannot be split is refused."""
    check_split(case)
    shards = case.knobs.shards if case.knobs.sharded else case.ranks
    return {**groups_of(Mesh(tp=case.ranks)), "shards": blocks(case.ranks, shards, "knobs.shards")}


def check_split(case: Case) -> None:
    """Groups of ranks that hold all experts between them are as large as each other, and so are their shares."""
    ep, experts = case.layout.expert_parallel, experts_of(case.model)
    for what, size in ((f"{case.ranks} ranks", case.ranks), (f"{experts.routed} routed experts", experts.routed)):
        if size % ep:
            raise InputError(f"layout.expert_parallel is {ep}: it must divide the {what}")
    shard_size(experts.intermediate, case.ranks // ep, "columns of an expert (layout.expert_parallel)")
    if case.knobs.attention == "tp":
        shard_size(case.model.layers[0].attention.heads, case.ranks, "heads (knobs.attention tp)")


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """The place of its experts."""
    return {"place": rank * case.layout.expert_parallel // case.ranks}


def memory(case: Case) -> list[MemoryItem]:
    """What every rank keeps."""
    return items(case, requests(case))


FLOW_MLA = Workload(run, groups, coordinates, memory, readings=readings)
