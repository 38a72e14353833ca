"""FlowMLA's memory, to the buffer: what one rank keeps, and how many requests fit beside it.

Tensor parallel attention splits everything but the down projections, which every rank has whole; data parallel
attention has all of MLA and the embedding on every rank. FlowMLA keeps 1/n of the sharded modules of every layer and as
many buffers of a whole layer's as it works with, own shard not counted twice. The absorbed up-projection is a copy in
BF16 beside the original, which prompts use. The router is BF16; FP8 weights have an FP32 scale per block of 128 x 128.
No MTP layer is loaded. So SGLang lays out the model (0.4.10, `models/deepseek_v2.py`).

What its steps need beside that is counted as its code allocates it (`simulator.stack.sglang_2025`). What is not
counted (CUDA's context, libraries, communicators, scores and choices of the router, what expert parallel kernels
allocate beyond their own rows) is in the share of memory that the server leaves free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.model.transformer import Latent, Model, in_precision
from simulator.parallel.gathered_weights import Gathering
from simulator.parallel.ledger import cache_bytes, weights_of
from simulator.parallel.mesh import Mesh
from simulator.stack.sglang_2025 import captured_bytes, prompt_step_bytes
from simulator.study.scenario import MemoryItem

if TYPE_CHECKING:
    from workloads.flow_mla import Case

DTYPES = {"fp8": "fp8_block", "bf16": "bf16"}
IN_BF16 = ("router=bf16", "embedding=bf16", "head=bf16", "kv=bf16")


def model_of(case: Case) -> Model:
    """Linear layers in one precision; router, embedding and head in BF16, and so is the cache."""
    return in_precision(case.model, (f"all={DTYPES[case.knobs.dtype]}", *IN_BF16), "knobs.dtype")


def mesh_of(case: Case) -> Mesh:
    """Tensor parallel throughout, or data parallel attention before a feed-forward that all ranks share."""
    n, ep = case.ranks, case.layout.expert_parallel
    return Mesh(tp=n, ep=ep) if case.knobs.attention == "tp" else Mesh(dp=n, ep=ep, dense=n, shared=n, head=n)


def gathering_of(case: Case) -> Gathering:
    """What FlowMLA shards; InputError where the model or its layout has no such thing to shard."""
    knobs = case.knobs
    gathering = Gathering(modules=knobs.sharded, shards=knobs.shards, buffers=knobs.buffers, engine=knobs.gather_engine)
    gathering.check(case.model, mesh_of(case), "knobs.sharded", "knobs.attention tp")
    return gathering


def requests(case: Case) -> int:
    """Requests of every data parallel rank (tensor parallel: of all ranks together)."""
    return case.batch.requests or max(fitting(case), 1)


def fitting(case: Case) -> int:
    """How many fit; 0 or fewer where the weights alone do not."""
    left = case.usable_bytes - sum(size for _, _, size in items(case, 0))
    return int(left // request_bytes(case))


def request_bytes(case: Case) -> float:
    """The cache of one request at its longest on one rank, BF16 (70,272 B a token in DeepSeek-R1, on every rank)."""
    batch = case.batch
    tokens = max(batch.prompt_tokens + batch.output_tokens, batch.cached_tokens + 1)
    return cache_bytes(model_of(case), mesh_of(case), [tokens])


def items(case: Case, held: int) -> list[MemoryItem]:
    """What one rank keeps with so many requests."""
    model, gathering = model_of(case), gathering_of(case)
    latent, groups = isinstance(model.layers[0].attention, Latent), mesh_of(case).dp
    prompt_step = prompt_step_bytes(model, case.batch.chunk_tokens, groups, case.ranks, case.layout.expert_parallel)
    logits = captured_bytes(model, case.knobs.captured, groups)
    return [
        *weights_of(model, mesh_of(case), 0, False, gathered=gathering.kept()),
        *gathering.memory(model),
        ("activations of a step with prompts", "activations", prompt_step),
        (f"logits of graphs for {case.knobs.captured} requests, twice", "activations", logits),
        (f"{'latent' if latent else 'KV'} cache of {held} requests", "KV", held * request_bytes(case)),
    ]
