"""Kernels of linear attention by the gated delta rule on GPUs, as vLLM and SGLang launch flash-linear-attention's.

Decode: each request's state is read, changed and written by one fused kernel, the same whatever the context. Prompts go
in chunks of 64 tokens: products inside all chunks are kernels of their own that read and write memory (their arithmetic
is below what their bytes take), and between them one kernel carries the state from chunk to chunk, a thread block for
each head and 64 columns of its values, so that one prompt's chunks take turns. What stands around (convolution, decay,
layouts, norms of queries and keys, states in and out of the cache) are passes over memory, each a launch of its own.

Source: vllm-project/vllm, `model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py` (order of the kernels, tensor
parallelism by heads), `model_executor/layers/fla/ops/chunk.py` (chunked products, chunk 64), `chunk_delta_h.py` (grid
of the kernel between chunks), `fused_recurrent.py`; Yang et al., "Gated Delta Networks", ICLR 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.die.kernels import Work
from simulator.model import ops
from simulator.model.linear_attention import GatedDelta
from simulator.model.micro_batch import MicroBatch

Kernels = list[tuple[str, Work]]

CHUNK = 64
"""Tokens whose changes of the state are put together."""
COLUMNS = 64
"""Of a head's values, that one thread block carries from chunk to chunk."""


def split(a: GatedDelta, tokens: int) -> Kernels:
    """Decays and strengths apart, and zeros where heads will be written. a: this rank's heads."""
    return [("attention.split", ops.passes(4.0 * tokens * a.heads, 2.0 * tokens * a.heads * (2 + a.v_dim)))]


def attend(a: GatedDelta, batch: MicroBatch, state_bytes: float) -> Kernels:
    """From projections to gated heads. a: this rank's heads; state_bytes: of a value of the state."""
    tokens, conv = batch.tokens, ops.copy(batch.tokens * a.convolved)
    requests = len(batch.decodes) + len(batch.prompts)
    kept = 2.0 * 2.0 * requests * a.conv_values  # last tokens in BF16, read and written
    kernels = [("attention.conv", replace(conv, streamed_bytes=kept)),
               ("attention.decay", ops.passes(4.0 * tokens * a.heads, 8.0 * tokens * a.heads)),
               ("attention.layout", ops.copy(tokens * a.convolved))]
    if batch.decodes:
        kernels += _recurrent(a, batch.decodes, state_bytes)
    if batch.prompts:
        kernels += _chunked(a, batch.prompts, state_bytes)
    size = 2.0 * tokens * a.heads * a.v_dim
    return [*kernels, ("attention.heads", ops.passes(size, size)), ("attention.gated_norm", ops.passes(2 * size, size))]


def _recurrent(a: GatedDelta, decodes: Sequence[tuple[int, int]], state_bytes: float) -> Kernels:
    """Token by token of each request; its state streams past L2 once in and once out."""
    queries = sum(count for count, _ in decodes)
    work = ops.passes(2.0 * queries * a.convolved, 2.0 * queries * a.heads * a.v_dim)
    flops = 6.0 * queries * a.state_values  # decay and correction, change, read
    states = 2.0 * state_bytes * a.state_values * len(decodes)
    return [("attention.core", replace(work, streamed_bytes=states, vector_flops=flops))]


def _chunked(a: GatedDelta, prompts: Sequence[tuple[int, int]], state_bytes: float) -> Kernels:
    """In chunks of prompts, however many tokens are before them."""
    tokens, sizes = sum(new for new, _ in prompts), [-(-new // CHUNK) for new, _ in prompts]
    keys, values = 2.0 * tokens * a.key_heads * a.key_dim, 2.0 * tokens * a.heads * a.v_dim
    wide, gates = 2.0 * tokens * a.heads * a.key_dim, 4.0 * tokens * a.heads
    square = tokens * a.heads * CHUNK  # of the products of keys inside a chunk
    between = 2.0 * sum(sizes) * a.state_values
    states = state_bytes * a.state_values * len(prompts)
    moved = replace(ops.passes(0.0, 0.0), streamed_bytes=2.0 * states)
    lanes = -(-sum(sizes) // max(sizes)) * a.heads * -(-a.v_dim // COLUMNS)
    scan = ops.loop("delta_chunks", lanes, lanes * max(sizes), keys + wide + values, values + between)
    return [
        ("attention.norm_q", ops.passes(keys, keys)),
        ("attention.norm_k", ops.passes(keys, keys)),
        ("attention.state_in", moved),
        ("attention.chunk_decay", ops.passes(gates, gates)),
        ("attention.chunk_keys", ops.passes(keys + 2 * gates, 4.0 * square)),
        ("attention.chunk_inverse", ops.passes(4.0 * square, 2.0 * square)),
        ("attention.chunk_values", ops.passes(keys + values + 2.0 * square + 2 * gates, wide + values)),
        ("attention.chunk_states", scan),
        ("attention.chunk_output", ops.passes(2 * keys + values + between + gates, values)),
        ("attention.state_out", moved),
    ]  # fmt: skip
