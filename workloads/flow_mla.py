"""FlowMLA (Ant Group, on SGLang): decode of DeepSeek-R1 with data parallel attention whose o_proj is sharded.

Data parallel attention has all of MLA on every card, which leaves little memory for requests. FlowMLA keeps 1/n of
o_proj on each of n cards and gathers it just in time: two buffers, odd and even layers; when attention of layer i has
used its buffer, the all-gather of layer i + 2 starts on that parity's communication stream, and o_proj of layer i + 2
waits for its end. Meanwhile its CTAs hold SMs. The feed-forward is tensor or expert parallel over all cards: an
AllGather of all data parallel tokens before it, and after it an AllReduce of all of them, of which each keeps its own
(SGLang 0.4.10, `layers/communicator.py` and `models/deepseek_v2.py`), or a ReduceScatter (later). NCCL runs rings.

Layer, data parallel: projections -> attention (decode, prompts) -> [wait for gathered o_proj] o -> [gather of layer
i + 2] -> add -> AllGather -> norm, gate, experts, shared expert -> AllReduce -> own tokens. Tensor parallel (the
baseline): all cards have all tokens and some heads; an AllReduce after o and after the feed-forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.errors import InputError
from simulator.model import gqa, ops, serving
from simulator.model.choices import blocks_of, chosen_rows, even_rows
from simulator.model.decode import in_l2
from simulator.model.layout import blocks, shard_size
from simulator.model.mla import Kernels
from simulator.program.rank import Event, Rank
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload
from workloads.flow_mla_memory import items, requests, sharded_bytes
from workloads.flow_mla_run import GATHER, LAST, Iteration, iterations_of, readings

RING = "ring"  # NCCL's algorithm for AllGather, ReduceScatter and AllReduce over nodes
SAMPLE = 2048  # tokens of which each draws its experts; of more, chance moves no expert's share by much


class Batch(Part):
    """The published runs: so many requests that start together, and how much of the run is simulated."""

    requests: int = Field(0, ge=0, description="of every data parallel rank (TP: of all ranks); 0: as many as fit")
    prompt_tokens: int = Field(1024, gt=0)
    output_tokens: int = Field(2048, gt=1)
    chunk_tokens: int = Field(1024, gt=0, description="prompt tokens of every data parallel rank in one step")
    samples: int = Field(3, gt=0, description="decode iterations that are simulated, at as many KV lengths")
    cached_tokens: int = Field(0, ge=0, description="0: the whole run; else decode with this many cached tokens alone")


class Knobs(BaseModel):
    """What FlowMLA can vary."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    where the fullest batch is larger than the largest graph."""
    iterations = iterations_of(case)
    npu.program.captured = requests(case) <= case.knobs.captured
    shards = Shards(npu, case, len(iterations) * case.shapes.layers)
    for iteration in iterations:
        step(npu, case, iteration, shards)


def step(npu: Rank, case: Case, iteration: Iteration, shards: Shards) -> None:
    """One iteration: embedding, layers, LM head; the host reads the sampled tokens before it launches the next one.

    Layers are labelled in one iteration, so that what is shown of a layer is of one time that it runs.
    """
    s, tokens = case.shapes, _tokens(case, iteration)
    launch(npu, iteration, [("embedding.lookup", ops.passes(2.0 * tokens * s.hidden, 2.0 * tokens * s.hidden))])
    for layer in range(s.layers):
        with npu.scope(layer=layer if iteration.labelled else None):
            if case.knobs.attention == "tp":
                tensor_parallel_layer(npu, case, iteration, layer)
            else:
                data_parallel_layer(npu, case, iteration, layer, shards)
    head(npu, case, iteration)
    npu.host_wait(npu.record())


# --- one layer --------------------------------------------------------------------------------------------------------


def data_parallel_layer(npu: Rank, case: Case, iteration: Iteration, layer: int, shards: Shards) -> None:
    """All heads of own tokens; then the feed-forward of everybody's."""
    s, tokens = case.shapes, _tokens(case, iteration)
    shards.before("qkv_a", "q_b", "qkv")
    attend(npu, case, iteration, s.heads)
    *before, o = serving.output(s, tokens, s.heads, case.knobs.dtype)
    launch(npu, iteration, before)
    shards.before("o")
    launch(npu, iteration, [o])
    shards.read()
    everybody = tokens * npu.group("world").size
    gather_tokens(npu, case, iteration, tokens)
    launch(npu, iteration, [("ffn.norm", ops.rms_norm(everybody, s.hidden))])
    feed_forward(npu, case, iteration, layer, everybody)
    combine_tokens(npu, case, iteration, tokens)


def gather_tokens(npu: Rank, case: Case, iteration: Iteration, tokens: int) -> None:
    """Own tokens, residual added, to everybody; the sum is the new residual of own ones."""
    size = 2.0 * tokens * case.shapes.hidden
    launch(npu, iteration, [("ffn.add", ops.passes(2 * size, size))])
    npu.group("world").all_gather("ffn.all_gather", round(size), case.knobs.engine, RING)
    launch(npu, iteration, own("ffn.residual", tokens, case.shapes.hidden))


def combine_tokens(npu: Rank, case: Case, iteration: Iteration, tokens: int) -> None:
    """What the feed-forward gave, summed over all ranks; own tokens are kept."""
    s, world = case.shapes, npu.group("world")
    if case.knobs.combine == "reduce_scatter":
        world.reduce_scatter("ffn.reduce_scatter", 2 * tokens * s.hidden, case.knobs.engine, RING)
        return
    all_reduce(npu, case, "ffn.all_reduce", tokens * world.size)
    launch(npu, iteration, own("ffn.own", tokens, s.hidden))


def own(name: str, tokens: int, width: int) -> Kernels:
    """Own rows out of everybody's: a buffer is zeroed, then they are copied into it."""
    return [(f"{name}.zero", ops.passes(0.0, 2.0 * tokens * width)), (name, ops.copy(tokens * width))]


def tensor_parallel_layer(npu: Rank, case: Case, iteration: Iteration, layer: int) -> None:
    """Some heads of all tokens, and a slice of the feed-forward, an AllReduce after each."""
    s, tokens = case.shapes, _tokens(case, iteration)
    heads = s.heads // case.ranks
    attend(npu, case, iteration, heads)
    launch(npu, iteration, serving.output(s, tokens, heads, case.knobs.dtype))
    all_reduce(npu, case, "attention.all_reduce", tokens)
    launch(npu, iteration, [("ffn.norm", ops.add_rms_norm(tokens, s.hidden))])
    feed_forward(npu, case, iteration, layer, tokens)
    all_reduce(npu, case, "ffn.all_reduce", tokens)


def attend(npu: Rank, case: Case, iteration: Iteration, heads: int) -> None:
    """Projections of all tokens, then attention of those that decode and of the prompts."""
    s, dtype = case.shapes, case.knobs.dtype
    kind = gqa if s.kv_heads else serving
    launch(npu, iteration, kind.projections(s, _tokens(case, iteration), heads, dtype))
    if iteration.decoding:
        dummies = iteration.padded(case) - iteration.decoding
        contexts = ((1, iteration.cached),) * iteration.decoding + ((1, 1),) * dummies
        launch(npu, iteration, kind.decode_attention(s, contexts, heads))
    if iteration.prompts:
        launch(npu, iteration, kind.prompt_attention(s, iteration.prompts, heads, dtype))


def feed_forward(npu: Rank, case: Case, iteration: Iteration, layer: int, tokens: int) -> None:
    """Dense FFN, or gate, routed and shared experts, of all tokens: slices of each, or whole experts (EP)."""
    s, dtype = case.shapes, case.knobs.dtype
    if layer < s.dense_layers:
        launch(npu, iteration, serving.ffn(s, "dense", tokens, s.dense_intermediate // case.ranks, dtype))
        return
    launch(npu, iteration, serving.gate(s, tokens))
    if case.layout.expert_parallel == 1:
        sliced_experts(npu, case, iteration, layer, tokens)
    else:
        whole_experts(npu, case, iteration, layer, tokens)
        shared_experts(npu, case, iteration, tokens)


def sliced_experts(npu: Rank, case: Case, iteration: Iteration, layer: int, tokens: int) -> None:
    """A slice of every expert; the shared one is a choice more of every token (SGLang's shared experts fusion)."""
    s = case.shapes
    rows = expert_rows(case, layer, tokens) + (tokens,) * s.shared_experts
    width = s.expert_intermediate // case.ranks
    launch(npu, iteration, serving.experts(s, tokens, rows, width, case.knobs.dtype))


def whole_experts(npu: Rank, case: Case, iteration: Iteration, layer: int, tokens: int) -> None:
    """Local experts, or slices of them; where routing is drawn, every rank has rows of its own (else the fullest's)."""
    s, ep = case.shapes, case.layout.expert_parallel
    rows, width = blocks_of(expert_rows(case, layer, tokens), ep), s.expert_intermediate * ep // case.ranks
    of_place = cache(lambda place: serving.experts(s, tokens, rows[place], width, case.knobs.dtype))
    if case.routing.skew is None:
        launch(npu, iteration, of_place(max(range(ep), key=lambda place: sum(rows[place]))))
        return
    placed = cache(lambda place: _placed(iteration, of_place(place)))
    npu.launch_all_by_rank(lambda rank: placed(rank * ep // case.ranks))


def shared_experts(npu: Rank, case: Case, iteration: Iteration, tokens: int) -> None:
    """A slice of the shared experts, if there are any, added to what the routed ones give."""
    s = case.shapes
    if not s.shared_experts:
        return
    width = s.shared_experts * s.expert_intermediate // case.ranks
    launch(npu, iteration, serving.ffn(s, "shared", tokens, width, case.knobs.dtype))
    launch(npu, iteration, [("shared.add", ops.passes(4.0 * tokens * s.hidden, 2.0 * tokens * s.hidden))])


def expert_rows(case: Case, layer: int, tokens: int) -> tuple[int, ...]:
    """Rows of every expert: even, or each token's own choice. A sample of many tokens stands for all of them."""
    s, skew = case.shapes, case.routing.skew
    if skew is None:
        return even_rows(tokens, s.routed_experts, s.experts_per_token)
    drawn = min(tokens, SAMPLE)
    limit = s.expert_groups, s.groups_per_token
    rows = chosen_rows(drawn, s.routed_experts, s.experts_per_token, skew, (case.seed, layer), *limit)
    return tuple(round(count * tokens / drawn) for count in rows)


def head(npu: Rank, case: Case, iteration: Iteration) -> None:
    """Last tokens of everybody, a shard of the vocabulary; logits come together again, then one token is drawn."""
    s, world = case.shapes, npu.group("world")
    rows = max(iteration.padded(case) + len(iteration.prompts), 1)
    launch(npu, iteration, [("head.norm", ops.add_rms_norm(rows, s.hidden))])
    everybody = rows
    if case.knobs.attention == "dp":
        everybody = rows * world.size
        world.all_gather("head.gather_tokens", 2 * rows * s.hidden, case.knobs.engine, RING)
    launch(npu, iteration, [("head.logits", ops.gemm(everybody, s.vocabulary // world.size, s.hidden, "bf16"))])
    world.all_gather("head.gather_logits", 2 * everybody * s.vocabulary // world.size, case.knobs.engine, RING)
    launch(npu, iteration, [(LAST, ops.passes(2.0 * rows * s.vocabulary, 8.0 * rows))])


# --- FlowMLA ----------------------------------------------------------------------------------------------------------


class Shards:
    """Sharded modules: as many gathers ahead as there are buffers, each buffer's on a stream of its own."""

    def __init__(self, npu: Rank, case: Case, layers: int) -> None:
        self.npu, self.case, self.left = npu, case, layers
        self.asked = self.used = 0  # layers gathered, layers read
        self.gathered: list[Event] = []
        if case.knobs.sharded:
            for _ in range(case.knobs.buffers):
                self._gather()

    def before(self, *modules: str) -> None:
        """What follows reads these modules of the present layer."""
        if set(modules) & set(self.case.knobs.sharded):
            self.npu.wait(self.gathered[self.used])

    def read(self) -> None:
        """The last reader of the present layer's buffer is launched: gather into the buffer that it leaves."""
        if self.case.knobs.sharded:
            self.used += 1
            self._gather()

    def _gather(self) -> None:
        if self.asked == self.left:
            return
        knobs, last_reader = self.case.knobs, self.npu.record()
        with self.npu.stream(f"gather {self.asked % knobs.buffers}"):
            self.npu.wait(last_reader)
            shard = round(sharded_bytes(self.case) / knobs.shards)
            self.gathered.append(self.npu.group("shards").all_gather(GATHER, shard, knobs.gather_engine, RING))
        self.asked += 1


# --- parts ------------------------------------------------------------------------------------------------------------


def launch(npu: Rank, iteration: Iteration, kernels: Kernels) -> None:
    """One kernel after the other."""
    for name, work in _placed(iteration, kernels):
        npu.launch(work, name)


def all_reduce(npu: Rank, case: Case, name: str, tokens: int) -> None:
    """Sum over all ranks, by the kernel for its size."""
    size, knobs = 2 * tokens * case.shapes.hidden, case.knobs
    engine = knobs.small_engine if size <= knobs.small_mb * 1e6 else knobs.engine
    npu.group("world").all_reduce(name, size, engine, RING)


def _placed(iteration: Iteration, kernels: Kernels) -> Kernels:
    """Without prompts activations are few enough to stay in L2."""
    return kernels if iteration.prompts else in_l2(kernels)


def _tokens(case: Case, iteration: Iteration) -> int:
    """Of one rank's attention: prompts, and requests that decode with what fills up their graph."""
    return sum(iteration.prompts) + iteration.padded(case)


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Everybody, and the neighbours that share modules; what cannot be split is refused."""
    check_split(case)
    shards = case.knobs.shards if case.knobs.sharded else case.ranks
    return {"world": blocks(case.ranks, case.ranks), "shards": blocks(case.ranks, shards, "knobs.shards")}


def check_split(case: Case) -> None:
    """Groups of ranks that hold all experts between them are as large as each other, and so are their shares."""
    ep, experts = case.layout.expert_parallel, case.shapes.routed_experts
    for what, size in ((f"{case.ranks} ranks", case.ranks), (f"{experts} routed experts", experts)):
        if size % ep:
            raise InputError(f"layout.expert_parallel is {ep}: it must divide the {what}")
    shard_size(case.shapes.expert_intermediate, case.ranks // ep, "columns of an expert (layout.expert_parallel)")
    if case.knobs.attention == "tp":
        shard_size(case.shapes.heads, case.ranks, "heads (knobs.attention tp)")


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """All ranks are alike."""
    return {}


def memory(case: Case) -> list[MemoryItem]:
    """What every rank keeps."""
    return items(case, requests(case))


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """How long the simulated iterations take together; what follows for the run is read from the timeline."""
    return {"latency_ms": seconds * 1e3}


FLOW_MLA = Workload(run, groups, coordinates, memory, measures, readings=readings)
