"""What TensorRT-LLM does between passes over the layers: logits, acceptance, and the MTP module's draft steps.

The module runs once per draft token, one step after the other (`MTPEagleWorker` in the library's sources). Its first
step sees all tokens of the verify pass, later ones a single token. Most kernels here are PyTorch's, a few numbers each:
what they cost is their launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.model import ops
from simulator.program.rank import Rank
from workloads.trt_layer import NORMS, layer
from workloads.trt_parts import exchange, framework, small, vector

if TYPE_CHECKING:
    from workloads.trt_min_latency import Case

COUNT = ("compare", "cumulative_product", "count", "store")
START = ("positions", "last_tokens", "lengths")


def head(npu: Rank, case: Case, tokens: int) -> None:
    """A vocabulary shard of logits, gathered by NCCL, in FP32, and the best of all."""
    s, tp = case.shapes, npu.group("tp")
    shard = -(-s.vocabulary // tp.size)
    npu.launch(small(ops.gemm(tokens, shard, s.hidden, "bf16")), "head.logits")
    tp.all_gather("head.gather", 2 * tokens * shard, "nccl")
    npu.launch(framework(tokens, s.vocabulary), "head.to_fp32")
    npu.launch(framework(tokens, s.vocabulary), "head.sample")


def accept(npu: Rank, case: Case, tokens: int) -> None:
    """How many drafts were right, and where the draft steps begin."""
    if case.knobs.relaxed_acceptance:
        candidates(npu, tokens, case.shapes.vocabulary)
    for name in (*COUNT, *START):
        npu.launch(framework(tokens), f"accept.{name}")


def candidates(npu: Rank, tokens: int, vocabulary: int) -> None:
    """Probabilities and the best of them: PyTorch finds the k-th largest digit by digit, eight bits of 32 at a time."""
    npu.launch(framework(tokens, vocabulary), "accept.softmax")
    for digit in range(4):
        npu.launch(framework(tokens, vocabulary), f"accept.top_k.histogram_{digit}")
        npu.launch(framework(tokens, 256), f"accept.top_k.digit_{digit}")
    npu.launch(framework(tokens, vocabulary), "accept.top_k.gather")
    npu.launch(framework(tokens, 16), "accept.top_k.sort")


def drafts(npu: Rank, case: Case, tokens: int) -> None:
    """All draft steps; then their tokens go together."""
    for step in range(case.batch.draft_tokens):
        with npu.scope(layer=case.shapes.layers + step):
            draft(npu, case, tokens if step == 0 else 1, case.shapes.layers + step)
    npu.launch(framework(tokens), "draft.stack")


def draft(npu: Rank, case: Case, tokens: int, number: int) -> None:
    """Embedding and hidden state normed and projected together, one MoE layer, the head, one token further."""
    s = case.shapes
    norms(npu, case, tokens)
    npu.launch(framework(tokens, 2 * s.hidden), "draft.concat")
    npu.launch(small(ops.gemm(tokens, s.hidden, 2 * s.hidden // case.ranks, "bf16")), "draft.project")
    exchange(npu, case, tokens, "draft")
    npu.launch(vector(tokens, s.hidden), "draft.input_norm")
    layer(npu, case, tokens, number, last=True)
    npu.launch(framework(1, s.hidden), "draft.last_token")
    head(npu, case, 1)
    for name in ("lengths", "positions"):
        npu.launch(framework(1), f"draft.{name}")


def norms(npu: Rank, case: Case, tokens: int) -> None:
    """Of the hidden state on the current stream, and of the token's embedding before or beside it."""
    hidden, before = case.shapes.hidden, npu.record()
    if case.knobs.norms == "in_order":
        embedded(npu, tokens, hidden)
    else:
        with npu.stream(NORMS):
            npu.wait(before)
            embedded(npu, tokens, hidden)
            beside = npu.record()
    npu.launch(vector(tokens, hidden), "draft.hidden_norm")
    if case.knobs.norms != "in_order":
        npu.wait(beside)


def embedded(npu: Rank, tokens: int, hidden: int) -> None:
    """Every rank has the whole table."""
    npu.launch(framework(tokens, hidden), "draft.embedding")
    npu.launch(vector(tokens, hidden), "draft.embedding_norm")
