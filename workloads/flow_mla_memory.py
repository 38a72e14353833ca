"""FlowMLA's memory, to the buffer: what one rank keeps, and how many requests fit beside it.

Tensor parallel attention splits everything but the down projections, which every rank has whole; data parallel
attention has all of MLA and the embedding on every rank. FlowMLA keeps 1/n of the sharded modules of every layer and as
many buffers of a whole layer's as it works with, own shard not counted twice. The absorbed up-projection is a copy in
BF16 beside the original, which prompts use. The router is BF16; FP8 weights have an FP32 scale per block of 128 x 128.
No MTP layer is loaded. So SGLang lays out the model (0.4.10, `models/deepseek_v2.py`).

What its steps need beside that is counted as its code allocates it: a step with prompts at its fullest, in the first
product of sliced experts (`fused_experts_impl`), and the logits of the largest captured batch of all ranks, once as
they are gathered and once in order (`GroupCoordinator.all_gather`). What is not counted (CUDA's context, libraries,
communicators, scores and choices of the router, what expert parallel kernels allocate beyond their own rows) is in the
share of memory that the server leaves free.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from simulator.model.transformer import Latent, Model, experts_of, with_precision
from simulator.parallel.gathered_weights import Gathering
from simulator.parallel.ledger import cache_bytes, weights_of
from simulator.parallel.mesh import Mesh
from simulator.stack.gpu import BLOCK
from simulator.study.scenario import MemoryItem

if TYPE_CHECKING:
    from workloads.flow_mla import Case

FUSED_CHUNK = 64 * 1024  # tokens that sliced experts take at once


def model_of(case: Case) -> Model:
    """Linear layers in one precision; router, embedding and head in BF16, and so is the cache."""
    return _precise(case.model, {"fp8": "fp8_block", "bf16": "bf16"}[case.knobs.dtype])


@cache
def _precise(model: Model, dtype: str) -> Model:
    return with_precision(model, {"all": dtype, **dict.fromkeys(("router", "embedding", "head", "kv"), "bf16")})


def mesh_of(case: Case) -> Mesh:
    """Tensor parallel throughout, or data parallel attention before a feed-forward that all ranks share."""
    n, ep = case.ranks, case.layout.expert_parallel
    return Mesh(tp=n, ep=ep) if case.knobs.attention == "tp" else Mesh(dp=n, ep=ep, dense=n, shared=n, head=n)


def gathering_of(case: Case) -> Gathering:
    """What FlowMLA shards; InputError where the model or its layout has no such thing to shard."""
    knobs = case.knobs
    gathering = Gathering(modules=knobs.sharded, shards=knobs.shards, buffers=knobs.buffers, engine=knobs.gather_engine)
    gathering.check(case.model, mesh_of(case).tensor, "knobs.sharded", "knobs.attention tp")
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
    latent = isinstance(model.layers[0].attention, Latent)
    return [
        *weights_of(model, mesh_of(case), 0, False, gathered=gathering.kept()),
        *gathering.memory(model),
        ("activations of a step with prompts", "activations", prompt_step_bytes(case)),
        (f"logits of graphs for {case.knobs.captured} requests, twice", "activations", captured_bytes(case)),
        (f"{'latent' if latent else 'KV'} cache of {held} requests", "KV", held * request_bytes(case)),
    ]


def prompt_step_bytes(case: Case) -> float:
    """BF16, all tokens of a step: what experts read, the residual, buffers of experts. Where attention is data parallel
    the residual is of own tokens, and so is what attention gave and the sum comes back to.

    Sliced experts write their sum over what they read; whole ones need room for it, and for rows of local experts.
    """
    width, own = 2.0 * case.model.hidden, case.batch.chunk_tokens
    dp, ep = case.knobs.attention == "dp", case.layout.expert_parallel
    everybody = own * (case.ranks if dp else 1)
    hidden = everybody + (2 * own if dp else own)
    if ep == 1:
        return width * hidden + sliced_experts_bytes(case, everybody)
    return width * (hidden + everybody + everybody * experts_of(case.model).per_token // ep)


def sliced_experts_bytes(case: Case, tokens: int) -> float:
    """Buffers of SGLang's fused experts, of which the shared one is a choice more of every token: one for the results
    of both products, one for what the activation gives, both BF16; in FP8, the quantised input of either product."""
    experts, hidden, tokens = experts_of(case.model), case.model.hidden, min(tokens, FUSED_CHUNK)
    choices = experts.per_token + experts.shared_intermediate // experts.intermediate
    rows, width = tokens * choices, experts.intermediate // case.ranks
    quantised = max(tokens * hidden, rows * width) * (1.0 + 4.0 / BLOCK) if case.knobs.dtype == "fp8" else 0.0
    return 2.0 * rows * (max(2 * width, hidden) + width) + quantised


def captured_bytes(case: Case) -> float:
    """BF16 logits of the largest batch for which a graph is captured, of all data parallel ranks, two copies."""
    batches = case.ranks if case.knobs.attention == "dp" else 1
    return 2 * 2.0 * case.model.vocabulary * case.knobs.captured * batches
