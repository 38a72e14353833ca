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

from typing import TYPE_CHECKING

from simulator.errors import InputError
from simulator.model.serving import BLOCK
from simulator.study.scenario import MemoryItem

if TYPE_CHECKING:
    from workloads.flow_mla import Case

ELEMENT = {"fp8": 1.0 + 4.0 / 128**2, "bf16": 2.0}
FUSED_CHUNK = 64 * 1024  # tokens that sliced experts take at once


def module_parameters(case: Case) -> dict[str, int]:
    """Of one layer's attention, by module that can be sharded.

    Raises:
        InputError: `sharded` names a module that this model does not have, or there is nothing to shard.
    """
    s = case.shapes
    latent = {"qkv_a": s.hidden * (s.q_lora + s.kv_values), "q_b": s.q_lora * s.heads * s.qk_dim}
    sizes = {"qkv": s.hidden * (s.heads * s.qk_dim + s.kv_values)} if s.kv_heads else latent
    sizes["o"] = s.o_proj_parameters
    unknown = [name for name in case.knobs.sharded if name not in sizes]
    if unknown:
        raise InputError(f"knobs.sharded has {', '.join(unknown)}: attention of {s.name} has {', '.join(sizes)}")
    if case.knobs.sharded and case.knobs.attention == "tp":
        what = ", ".join(case.knobs.sharded)
        raise InputError(f"knobs.sharded has {what}: with knobs.attention tp every rank has only its heads' part of it")
    return sizes


def split_parameters(case: Case) -> dict[str, float]:
    """The same on one of the ranks that split heads (all on a data parallel one). Down projections are whole on each,
    and so is a head of keys and values where there are fewer than ranks."""
    s, sizes, shards = case.shapes, module_parameters(case), _head_shards(case)
    split: dict[str, float] = {name: size / shards for name, size in sizes.items()}
    if s.kv_heads:
        return split | {"qkv": s.hidden * (s.heads * s.qk_dim / shards + s.kv_values_of(shards))}
    return split | {"qkv_a": sizes["qkv_a"]}


def _head_shards(case: Case) -> int:
    return case.ranks if case.knobs.attention == "tp" else 1


def sharded_bytes(case: Case) -> float:
    """Of one layer's modules that FlowMLA shards."""
    sizes = module_parameters(case)
    return sum(sizes[name] for name in case.knobs.sharded) * ELEMENT[case.knobs.dtype]


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
    return 2.0 * case.shapes.kv_values_of(_head_shards(case)) * case.shapes.layers * tokens


def items(case: Case, held: int) -> list[MemoryItem]:
    """What one rank keeps with so many requests."""
    s, element = case.shapes, ELEMENT[case.knobs.dtype]
    experts = s.moe_layers * element * s.expert_parameters / case.ranks
    return [
        *attention(case),
        ("routed experts", "weights", s.routed_experts * experts),
        ("shared expert, a shard", "weights", s.shared_experts * experts),
        ("dense FFN, a shard", "weights", s.dense_layers * element * s.dense_parameters / case.ranks),
        ("router, BF16", "weights", s.moe_layers * 2.0 * s.router_parameters),
        ("LM head, a shard", "weights", 2.0 * s.embedding_parameters / case.ranks),
        ("activations of a step with prompts", "activations", prompt_step_bytes(case)),
        (f"logits of graphs for {case.knobs.captured} requests, twice", "activations", captured_bytes(case)),
        (f"{'KV' if s.kv_heads else 'latent'} cache of {held} requests", "KV", held * request_bytes(case)),
    ]


def prompt_step_bytes(case: Case) -> float:
    """BF16, all tokens of a step: what experts read, the residual, buffers of experts. Where attention is data parallel
    the residual is of own tokens, and so is what attention gave and the sum comes back to.

    Sliced experts write their sum over what they read; whole ones need room for it, and for rows of local experts.
    """
    s, own = case.shapes, case.batch.chunk_tokens
    dp, ep = case.knobs.attention == "dp", case.layout.expert_parallel
    everybody = own * (case.ranks if dp else 1)
    hidden = everybody + (2 * own if dp else own)
    if ep == 1:
        return 2.0 * s.hidden * hidden + sliced_experts_bytes(case, everybody)
    return 2.0 * s.hidden * (hidden + everybody + everybody * s.experts_per_token // ep)


def sliced_experts_bytes(case: Case, tokens: int) -> float:
    """Buffers of SGLang's fused experts, of which the shared one is a choice more of every token: one for the results
    of both products, one for what the activation gives, both BF16; in FP8, the quantised input of either product."""
    s, tokens = case.shapes, min(tokens, FUSED_CHUNK)
    rows, width = tokens * (s.experts_per_token + s.shared_experts), s.expert_intermediate // case.ranks
    quantised = max(tokens * s.hidden, rows * width) * (1.0 + 4.0 / BLOCK) if case.knobs.dtype == "fp8" else 0.0
    return 2.0 * rows * (max(2 * width, s.hidden) + width) + quantised


def captured_bytes(case: Case) -> float:
    """BF16 logits of the largest batch for which a graph is captured, of all data parallel ranks, two copies."""
    batches = case.ranks if case.knobs.attention == "dp" else 1
    return 2 * 2.0 * case.shapes.vocabulary * case.knobs.captured * batches


def attention(case: Case) -> list[MemoryItem]:
    """Attention, its absorbed copies, FlowMLA's shards and buffers, and the embedding."""
    s, knobs, element = case.shapes, case.knobs, ELEMENT[case.knobs.dtype]
    share = _head_shards(case)
    kv_b = s.kv_lora * s.heads * (s.nope_dim + s.v_dim)
    parts: list[MemoryItem] = [
        (f"attention: {name}" + (", a shard" if name in knobs.sharded else ""), "weights",
         s.layers * element * size / (knobs.shards if name in knobs.sharded else 1))
        for name, size in split_parameters(case).items()
    ]  # fmt: skip
    if kv_b:
        parts.append(("attention: kv_b", "weights", s.layers * element * kv_b / share))
        parts.append(("attention: kv_b absorbed, BF16", "weights", s.layers * 2.0 * kv_b / share))
    embedding = "embedding" + (", a shard" if share > 1 else ", replicated")
    parts.append((embedding, "weights", 2.0 * s.embedding_parameters / share))
    if knobs.sharded:
        gathered = sharded_bytes(case) * (knobs.shards - 1) / knobs.shards
        parts.append((f"{knobs.buffers} buffers for gathered weights", "communication", knobs.buffers * gathered))
    return parts
