"""Decode of one request of DeepSeek-R1 at minimum latency, as TensorRT-LLM does it on 8 GPUs: one rank's program.

Published in TensorRT-LLM's tech blog "Pushing Latency Boundaries: Optimizing DeepSeek-R1 Performance on NVIDIA B200
GPUs". Attention is split over all ranks by heads (TP), routed experts by expert and by width (TP x EP), the shared
expert by width; the down projections (Fuse_A) and the router are on every rank. An iteration verifies 1 + draft tokens
in one pass, then the MTP module drafts the next ones, one after the other. `trt_layer` has the layer, `trt_mtp` what
is between passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from simulator.model.layout import blocks
from simulator.program.rank import Rank
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload
from workloads.trt_layer import fuse_a_width, layer
from workloads.trt_mtp import accept, drafts, head
from workloads.trt_parts import framework, vector


class Request(Part):
    """One request. Simulated is the iteration half-way through its output.

    accepted: output tokens per iteration by number of draft tokens, 0 first, as published. relaxed_accepted: the same
    with relaxed acceptance, which is published for three draft tokens only (others get no more than without it).
    """

    prompt_tokens: PositiveInt = 1024
    output_tokens: PositiveInt = 2048
    draft_tokens: int = Field(0, ge=0, le=5)
    accepted: tuple[PositiveFloat, ...] = (1.00, 1.92, 2.58, 2.82, 2.99, 3.01)
    relaxed_accepted: float = Field(3.10, gt=0)

    @property
    def cached_tokens(self) -> int:
        """Half-way through the output."""
        return self.prompt_tokens + self.output_tokens // 2


class Knobs(BaseModel):
    """The published optimisations, one switch each; off is what the first version did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cuda_graph: bool = Field(True, description="one captured graph per iteration instead of eager launches")
    programmatic_launch: bool = Field(False, description="a kernel's prologue runs beside its predecessor's end (PDL)")
    shared_beside: bool = Field(False, description="shared expert on a stream beside router and routed experts")
    norms: Literal["in_order", "streams", "grouped"] = Field("in_order", description="the two norms after Fuse_A")
    cache_beside: bool = Field(False, description="RoPE and KV cache beside the query's GEMMs")
    fused_top_k: bool = Field(False, description="one top-k kernel instead of six")
    fused_kernels: bool = Field(False, description="SwiGLU, RoPE and the last sum inside their neighbours' kernels")
    fuse_a_kernel: bool = Field(False, description="Fuse_A kernel for few tokens, weights prefetched under AllReduce")
    router_kernel: bool = Field(False, description="router kernel for few tokens")
    engine: Literal["one_shot", "nccl"] = Field("one_shot", description="AllReduce: one-shot kernel or NCCL")
    fused_all_reduce: bool = Field(False, description="add, norm and quantise inside the AllReduce kernel")
    sparse: Literal["grouped", "gemms"] = Field(
        "grouped", description="routed experts: sort + grouped GEMM + sum, or all tokens through each active expert"
    )
    moe_backend: Literal["cutlass", "trtllm"] = Field("cutlass", description="grouped GEMM of the routed experts")
    draft_dtype: Literal["bf16", "nvfp4"] = Field(
        "bf16", description="experts of the MTP module: checkpoint nvidia/DeepSeek-R1-FP4 does not quantise it"
    )
    relaxed_acceptance: bool = Field(False, description="accept a draft token among the best few while thinking")
    smart_router: bool = Field(False, description="two copies of the experts, on half of the ranks each")


Case = scenario.Case[Request, scenario.Layout, Knobs]


def iteration(npu: Rank, case: Case) -> None:
    """Verify, sample, draft."""
    npu.program.captured = case.knobs.cuda_graph
    npu.program.programmatic = case.knobs.programmatic_launch
    tokens, s = 1 + case.batch.draft_tokens, case.shapes
    npu.launch(framework(tokens, s.hidden), "embedding.lookup")
    npu.launch(vector(tokens, s.hidden), "embedding.norm")
    for number in range(s.layers):
        with npu.scope(layer=number):
            layer(npu, case, tokens, number, last=number + 1 == s.layers)
    head(npu, case, tokens)
    if case.batch.draft_tokens:
        accept(npu, case, tokens)
        drafts(npu, case, tokens)


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """All ranks in one group; what cannot be run is refused."""
    known = len(case.batch.accepted)
    if known <= case.batch.draft_tokens:
        have = f"batch.accepted has {known} values, for 0 to {known - 1} draft tokens"
        raise ValueError(f"{have}, but batch.draft_tokens is {case.batch.draft_tokens}")
    case.shapes.check_drafts(case.batch.draft_tokens)
    check_accepted(case)
    check_split(case)
    return {"tp": blocks(case.ranks, case.ranks)}


def check_accepted(case: Case) -> None:
    """An iteration yields a token of its own, and no more than were drafted beside it."""
    known = [("accepted", drafted, tokens) for drafted, tokens in enumerate(case.batch.accepted)]
    for name, drafted, tokens in known + ([("relaxed_accepted", 3, case.batch.relaxed_accepted)] * _relaxed(case)):
        if not 1 <= tokens <= 1 + drafted:
            right = f"it must be from 1 to {1 + drafted}"
            raise ValueError(f"batch.{name} has {tokens:g} for {drafted} draft tokens: {right}")


def _relaxed(case: Case) -> bool:
    """Whether relaxed acceptance is on and published for as many draft tokens."""
    return bool(case.knobs.relaxed_acceptance) and case.batch.draft_tokens == 3


def check_split(case: Case) -> None:
    """Splits that do not use all ranks, or that do not come out even, are refused."""
    s, layout, copies = case.shapes, case.layout, 2 if case.knobs.smart_router else 1
    used = layout.expert_parallel * layout.tensor_parallel * copies
    if used != case.ranks:
        twice = "two copies (knobs.smart_router) of " if copies > 1 else ""
        split = f"layout.tensor_parallel {layout.tensor_parallel} x layout.expert_parallel {layout.expert_parallel}"
        raise ValueError(f"{twice}routed experts take {split} = {used} ranks, but there are {case.ranks}")
    for what, size, over in (
        ("heads", s.heads, case.ranks),
        ("routed experts", s.routed_experts, layout.expert_parallel),
        ("columns of an expert", s.expert_intermediate, layout.tensor_parallel),
    ):
        if size % over:
            raise ValueError(f"{size} {what} cannot be split over {over} ranks")


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """Which experts a rank holds, and of which copy."""
    held = case.layout.expert_parallel * case.layout.tensor_parallel
    return {"expert_group": rank % held // case.layout.tensor_parallel, "copy": rank // held}


def memory(case: Case) -> list[MemoryItem]:
    """Weights of a rank: attention in BF16, experts and dense FFN in NVFP4."""
    s, fp4 = case.shapes, 0.5625
    layers, drafted = s.layers + s.mtp_layers, s.mtp_layers * (2.0 if case.knobs.draft_dtype == "bf16" else fp4)
    moe_layers = s.moe_layers * fp4 + drafted  # in bytes per parameter
    down = s.hidden * fuse_a_width(case)
    held = s.routed_experts / (case.layout.expert_parallel * case.layout.tensor_parallel)
    tokens = case.batch.prompt_tokens + case.batch.output_tokens
    return [
        ("Fuse_A", "weights", 2.0 * layers * down),
        ("attention by heads", "weights", 2.0 * layers * (s.mla_parameters - down) / case.ranks),
        ("dense FFN", "weights", fp4 * s.dense_layers * s.dense_parameters / case.ranks),
        ("routed experts", "weights", moe_layers * held * s.expert_parameters),
        ("shared expert", "weights", moe_layers * s.shared_experts * s.expert_parameters / case.ranks),
        ("router", "weights", 2.0 * (s.moe_layers + s.mtp_layers) * s.router_parameters),
        ("embedding and head", "weights", 2.0 * s.embedding_parameters * (1.0 + 1.0 / case.ranks)),
        ("latent cache, BF16", "KV", 2.0 * layers * s.kv_values * tokens),
    ]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Iteration, tokens that it yields, and output tokens per second of the one request."""
    batch = case.batch
    accepted = batch.relaxed_accepted if _relaxed(case) else batch.accepted[batch.draft_tokens]
    return {
        "iteration_ms": seconds * 1e3,
        "accepted_tokens": accepted,
        "tpot_ms": seconds * 1e3 / accepted,
        "throughput_tok_s": accepted / seconds,
    }


ITERATION = Workload(iteration, groups, coordinates, memory, measures)
