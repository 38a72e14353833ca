"""Prefill of DeepSeek-R1 on Atlas A3 as in cann-recipes-infer: three programs, in launch order.

* `data_parallel`: attention data parallel, experts expert parallel, one stream.
* `micro_batch`: the same, as two micro-batches on a compute stream and a communication stream.
* `sp_tp_sp`: for few or uneven prompts: attention has its tokens split for the projections and its heads split for
  itself; one micro-batch, or two that run whole layers on a stream each.

Host launches are eager, and the host blocks on the split sizes of every dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from simulator.model.transformer import Experts, Latent
from simulator.parallel.border import Engines
from simulator.parallel.forward import Forward
from simulator.parallel.mesh import Mesh
from simulator.parallel.pieces import COMM
from simulator.parallel.tokens import Tokens, tokens_of_prompts
from simulator.parallel.vocabulary import embed_prompts, head_of_prompts
from simulator.program.rank import Event, Rank
from simulator.stack.cann import RECIPES
from simulator.stack.gpu import value_dim
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part
from workloads import cann_prefill as shared


class Knobs(Part):
    """The techniques that can be switched."""

    engine: str = Field("sdma", description="what drives collectives: an engine of the machine (sdma, aiv, ...)")
    attention: Literal["ntd", "tnd"] = Field("ntd", description="layout of FlashAttention's operands")
    enqueue: Literal["interleaved", "in_order"] = Field(
        "interleaved", description="micro-batches: dispatches before combines, or each micro-batch to its end"
    )
    micro_batches: Literal[1, 2] = Field(2, description="sp_tp_sp only: streams that run whole layers")
    read_sizes: bool = Field(True, description="the host blocks on the split sizes of each dispatch")


Case = scenario.Case[scenario.Prompts, scenario.Layout, Knobs]


# --- attention data parallel ------------------------------------------------------------------------------------------


def data_parallel(npu: Rank, case: Case) -> None:
    """Every piece of a layer after the other, compute and communication in one stream.

    compute  attend | route | shared | dispatch | experts | combine | finalize
    """
    step = _forward(npu, case, _own_prompts(case), labelled=False)
    (a,) = _checked(case, shared.whole_prompts(npu, case, 1))
    embed_prompts(step, case.batch.lengths)
    shared.one_stream(step, a, step.route, step.shared, step.dispatch, step.experts, step.combine, step.finalize)
    head_of_prompts(step, case.batch.lengths)


def micro_batch(npu: Rank, case: Case) -> None:
    """Two micro-batches on two streams."""
    step, batches = _forward(npu, case, _own_prompts(case)), shared.whole_prompts(npu, case, 2)
    _in_two_streams(step, case, batches, interleaved if case.knobs.enqueue == "interleaved" else in_order)


def _in_two_streams(step: Forward, case: Case, batches: list[Tokens],
                    figure: Callable[[Forward, Tokens, Tokens], None]) -> None:
    """Layers with experts as a figure has them; dense ones one micro-batch after the other on the first stream."""
    a, b = _checked(case, batches)
    embed_prompts(step, case.batch.lengths)
    for layer in step.layers():
        if not step.is_dense(layer):
            figure(step, a, b)
            continue
        for one in (a, b):
            step.attend(one)
            step.dense(one)
    step.finalize(b)
    step.npu.wait(_end_of(step.npu, COMM))
    head_of_prompts(step, case.batch.lengths)


def interleaved(step: Forward, a: Tokens, b: Tokens) -> None:
    """The published order of launches: dispatch a under attention b and shared experts, dispatch b under experts a,
    combine a under experts b, combine b under the next layer's attention a.

    compute  attend a | finalize b' | route a | attend b, route b | shared a, b | experts a | experts b   | finalize a
    comm                                      | dispatch a                      | dispatch b | combine a | combine b
    """
    step.attend(a)
    step.finalize(b)
    step.route(a)
    routed_a = step.npu.record()
    step.attend(b)
    step.route(b)
    routed_b = step.npu.record()
    step.shared(a)
    step.shared(b)
    step.beside(step.dispatch, a, after=routed_a)
    step.experts(a)
    computed_a = step.npu.record()
    step.beside(step.dispatch, b, after=routed_b)
    step.beside(step.combine, a, after=computed_a)
    step.experts(b)
    step.beside(step.combine, b)
    step.finalize(a)


def in_order(step: Forward, a: Tokens, b: Tokens) -> None:
    """For comparison: the communication stream gets each micro-batch's dispatch and combine one after the other."""
    step.finalize(b)
    for one in (a, b):
        step.attend(one)
        step.route(one)
        routed = step.npu.record()
        step.shared(one)
        step.beside(step.dispatch, one, after=routed)
        step.experts(one)
        step.beside(step.combine, one)
    step.finalize(a)


# --- tokens split, heads split, tokens split --------------------------------------------------------------------------


def sp_tp_sp(npu: Rank, case: Case) -> None:
    """Micro-batches run whole layers on streams of their own; launches alternate between them, block by block.

    stream of each  attend | route, shared, dispatch | experts, combine, finalize
    """
    step = _forward(npu, case, _own_tokens(case))
    batches = _checked(case, tokens_of_prompts(case.batch.prompts, case.knobs.micro_batches, "own"))
    embed_prompts(step, case.batch.lengths)
    start = npu.record()
    for one in batches:
        with npu.stream(_stream(one)):
            npu.wait(start)
    for layer in step.layers():
        blocks = (step.route, step.shared, step.dispatch), (step.experts, step.combine, step.finalize)
        for block in ((step.attend,), *(((step.dense,),) if step.is_dense(layer) else blocks)):
            for one in batches:
                with npu.stream(_stream(one)):
                    for verb in block:
                        verb(one)
    for one in batches:
        npu.wait(_end_of(npu, _stream(one)))
    head_of_prompts(step, case.batch.lengths)


def sp_tp_sp_pipelined(npu: Rank, case: Case) -> None:
    """The same as a pipeline of two streams: what attention exchanges is hidden, too."""
    batches = tokens_of_prompts(case.batch.prompts, 2, "own")
    _in_two_streams(_forward(npu, case, _own_tokens(case)), case, batches, pipelined)


def pipelined(step: Forward, a: Tokens, b: Tokens) -> None:
    """Every exchange of one micro-batch under a kernel of the other.

    compute  project a | finalize b', project b | heads a  | heads b   | back, route a | back, route b | shared a, b ...
    comm               | latents a              | latents b| results a | results b     | dispatch a    | dispatch b
    """
    step.project_in(a)
    step.beside(step.gather_latents, a)
    step.finalize(b)
    step.project_in(b)
    step.beside(step.gather_latents, b)
    step.attend_heads(a)
    step.beside(step.heads_to_tokens, a)
    step.attend_heads(b)
    step.beside(step.heads_to_tokens, b)
    for one in (a, b):
        step.project_back(one)
        step.route(one)
        step.beside(step.dispatch, one)
    step.shared(a)
    step.shared(b)
    step.experts(a)
    step.beside(step.combine, a)
    step.experts(b)
    step.beside(step.combine, b)
    step.finalize(a)


def _stream(one: Tokens) -> str:
    return f"micro_batch_{one.batch.number}"


def _end_of(npu: Rank, stream: str) -> Event:
    """When all that is in a stream has ended."""
    with npu.stream(stream):
        return npu.record()


# --- parts ------------------------------------------------------------------------------------------------------------


def _forward(npu: Rank, case: Case, mesh: Mesh, labelled: bool = True) -> Forward:
    knobs, residual = case.knobs, "split_latents" if mesh.tp > 1 else "replicated"
    return shared.pass_of(npu, case, mesh, replace(RECIPES, operands=knobs.attention), Engines(knobs.engine, "direct"),
                          "all_to_all", 2 if knobs.read_sizes else 0, residual, labelled)


def _checked(case: Case, batches: list[Tokens]) -> list[Tokens]:
    """ValueError: a micro-batch has nothing to do; how many prompts would do."""
    for one in batches:
        if not any(one.of_groups):
            setting = "prompt_lengths" if case.batch.prompt_lengths else "requests"
            whose, enough = " of every rank" if len(one.of_groups) > 1 else "", len(batches) * len(one.of_groups)
            raise ValueError(f"micro-batch {one.batch.number + 1} of {len(batches)} has no prompts: batch.{setting} "
                             f"gives {len(case.batch.lengths)}, and {enough} are one for each{whose}")
    return batches


_own_prompts = partial(shared.mesh_of, data_parallel=True, o_proj=1)
_own_tokens = partial(shared.mesh_of, data_parallel=False, o_proj=1)


def _memory(case: Case, mesh: Mesh, tokens: int) -> list[MemoryItem]:
    """Hidden states, the phase that needs most, and rows on their way; attention with split heads has all tokens."""
    model, total, rows, arriving = case.model, sum(case.batch.lengths), 0, 0
    phases = {"embedding": 2 * 2 * total * model.hidden}
    for layer in set(model.layers):
        a, ffn = layer.attention, layer.feed_forward
        per_head = 8 * value_dim(a)
        if isinstance(a, Latent):
            per_head = 2 * (3 * a.nope_dim + 2 * a.rope_dim + 3 * a.v_dim)
        phases["attention"] = (total if mesh.tp > 1 else tokens) * a.heads // mesh.tp * per_head
        if isinstance(ffn, Experts):
            rows, arriving = tokens * ffn.per_token, -(-total * ffn.per_token // case.ranks)
            phases["experts"] = arriving * (3 * model.hidden + 4 * 2 * ffn.intermediate)
        else:
            phases["dense FFN"] = tokens * (4 * 2 + 1) * ffn.intermediate
    largest = max(phases, key=lambda name: phases[name])
    return [("hidden state and residual", "activations", 2 * 2 * tokens * model.hidden),
            (f"largest phase: {largest}", "activations", phases[largest]),
            ("dispatched and combined rows", "communication", 2 * (rows + arriving) * model.hidden)]


DATA_PARALLEL = shared.workload(data_parallel, _own_prompts, _memory)
MICRO_BATCH = shared.workload(micro_batch, _own_prompts, _memory)
SP_TP_SP = shared.workload(sp_tp_sp, _own_tokens, _memory)
SP_TP_SP_PIPELINED = shared.workload(sp_tp_sp_pipelined, _own_tokens, _memory)
