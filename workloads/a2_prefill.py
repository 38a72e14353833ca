"""Prefill of DeepSeek-R1 on Atlas 800I A2, two nodes of 8 cards: four steps of layer-internal parallelism.

* `all_reduce`: attention tensor parallel, hidden states replicated; an AllReduce after attention and one after the MoE;
  norms, gate and down projections are computed by every rank on all tokens.
* `flashcomm`: the AllReduces become ReduceScatter (BF16) and AllGather (INT8) on both sides of MLA; what was replicated
  is computed on a rank's own tokens.
* `convert`: down projections on own tokens, AllGather of the latents, attention tensor parallel, All2All inside the
  node, o_proj with one half of its input per node, ReduceScatter between the nodes.
* `micro_batch`: MLA data parallel, two micro-batches on two streams.

In all of them the experts are expert parallel with AllGather and ReduceScatter, the dense FFN data parallel, embedding
and head tensor parallel. The first three are placements of the same pieces on the same ranks.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simulator.model.layout import blocks
from simulator.parallel.border import Engines
from simulator.parallel.forward import Forward
from simulator.parallel.mesh import Mesh
from simulator.parallel.tokens import Tokens, tokens_of_prompts
from simulator.parallel.vocabulary import embed_prompts, head_of_prompts
from simulator.program.rank import Rank
from simulator.stack.cann import DEPLOYED
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part
from workloads import cann_prefill as shared


class Knobs(Part):
    """How a layer is split."""

    engine: str = Field("sdma", description="what drives collectives: an engine of the machine")
    split: Literal["all_reduce", "flashcomm", "convert", "micro_batch"] = Field(
        "convert", description="parallelism inside a layer, in the order in which it was published"
    )
    algorithm: Literal["hierarchical", "direct"] = Field("hierarchical", description="collectives over both nodes")


Case = scenario.Case[scenario.Prompts, scenario.Layout, Knobs]
RESIDUAL = {"all_reduce": "replicated", "flashcomm": "split", "convert": "split_latents", "micro_batch": "replicated"}


def prefill(npu: Rank, case: Case) -> None:
    """Embedding, all layers, head. Where ranks hold their own tokens between the pieces, what attention gathers and
    where its output projection lies is a matter of placement."""
    step, lengths = _forward(npu, case), case.batch.lengths
    if case.knobs.split == "all_reduce":
        embed_prompts(step, lengths, "all")
        replicated(step, *tokens_of_prompts(case.batch.prompts, 1, "all"))
    elif case.knobs.split == "micro_batch":
        embed_prompts(step, lengths)
        two_streams(step, *(one for one in shared.whole_prompts(npu, case, 2) if any(one.of_groups)))
    else:
        embed_prompts(step, lengths)
        (a,) = tokens_of_prompts(case.batch.prompts, 1, "own")
        shared.one_stream(step, a, step.route, step.dispatch, step.experts, step.combine, step.shared, step.finalize)
    head_of_prompts(step, lengths)


def replicated(step: Forward, a: Tokens) -> None:
    """Every rank holds all tokens between the pieces; the shared expert adds own tokens to the experts' sums.

    compute  attend | all_reduce | route | experts | shared | all_reduce
    """
    for layer in step.layers():
        step.attend(a)
        step.reduce(a)
        if step.is_dense(layer):
            step.dense(a)
            a.block = "dense"
        else:
            step.route(a)
            assert a.exchange is not None
            a.exchange.compute()
            step.shared(a)
            a.block, a.form, a.exchange = "combine", "partial", None
        step.reduce(a)


def two_streams(step: Forward, *batches: Tokens) -> None:
    """While one micro-batch exchanges, the other computes; with a prompt per rank there is no second one.

    compute  attend a, route a | attend b, route b | shared a | experts a | shared b | experts b  | finalize a, b
    comm                       | gather a          | gather b             | scatter a             | scatter b
    """
    for layer in step.layers():
        routed = []
        for one in batches:
            step.attend(one)
            (step.dense if step.is_dense(layer) else step.route)(one)
            routed.append(step.npu.record())
        if step.is_dense(layer):
            continue
        for one, ready in zip(batches, routed, strict=True):
            step.beside(step.dispatch, one, after=ready)
        for one in batches:
            step.shared(one)
            step.experts(one)
            step.beside(step.combine, one)
    for one in batches:
        step.finalize(one)


# --- where pieces lie -------------------------------------------------------------------------------------------------


def _forward(npu: Rank, case: Case) -> Forward:
    knobs = case.knobs
    inside = "pairwise" if knobs.algorithm == "hierarchical" else "direct"
    exchange = "all_reduce" if knobs.split == "all_reduce" else "all_gather"
    engines = Engines(knobs.engine, knobs.algorithm, all_to_all=inside)
    return shared.pass_of(npu, case, _mesh(case), DEPLOYED, engines, exchange, residual=RESIDUAL[knobs.split],
                          labelled=knobs.split == "micro_batch")


def _mesh(case: Case) -> Mesh:
    """With conversion the output projection lies on counterparts in the nodes, else on all ranks with split heads."""
    per_node = case.layout.tensor_parallel
    blocks(case.ranks, per_node, "layout.tensor_parallel")
    o_proj = case.ranks // per_node if case.knobs.split == "convert" else case.ranks
    return shared.mesh_of(case, data_parallel=case.knobs.split == "micro_batch", o_proj=o_proj)


def _memory(case: Case, mesh: Mesh, tokens: int) -> list[MemoryItem]:
    """All tokens once."""
    size = 3 * sum(case.batch.lengths) * case.model.hidden
    return [("gathered tokens and their sums", "activations", size), ("exchange buffers", "communication", size)]


PREFILL = shared.workload(prefill, _mesh, _memory)
