"""Orders in which the pieces of a layer go to streams, a function a published figure, in verbs.

A schedule takes a pass through layers and its micro-batches. A verb puts one piece of one micro-batch into the current
stream: attend, reduce (sum what attention gave), dense, or route, dispatch, shared, experts, combine, finalize; nothing
on a rank that has no part of it.
``beside(verb, a)`` puts it into the communication stream instead, after all that is in the current one so far; what
follows of that micro-batch waits for it. ``on(stream, a)`` does so for a whole block. A layer that was not finalized is
when the next one begins.
"""

from __future__ import annotations

from typing import Any

from simulator.parallel.schedule import Schedule
from simulator.program.rank import DEFAULT_STREAM as COMPUTE

Pass = Any  # simulator.parallel.forward.Forward, or what has its verbs
Tokens = Any


def one_stream(step: Pass, *batches: Tokens) -> None:
    """Every piece after the other, micro-batch by micro-batch.

    compute  attend a | reduce a | route a | dispatch a | shared a | experts a | combine a | ...
    """
    for layer in step.layers():
        for a in batches:
            step.attend(a)
            step.reduce(a)
            step.feed_forward(a, layer)


def shared_beside(step: Pass, *batches: Tokens) -> None:
    """The shared expert in a stream of its own, beside router and routed experts (vLLM, SGLang, TensorRT-LLM).

    compute  attend a | reduce a | norm a | choose a | dispatch a | experts a | combine a | ...
    shared                                | shared a
    """
    for layer in step.layers():
        for a in batches:
            step.attend(a)
            step.reduce(a)
            if step.is_dense(layer):
                step.feed_forward(a, layer)
                continue
            step.norm_experts(a)
            step.shared_beside(a)
            step.choose(a)
            step.dispatch(a)
            step.experts(a)
            step.combine(a)
            step.finalize(a)


def single_batch(step: Pass, a: Tokens) -> None:
    """One batch whose shared expert runs under its dispatch (single-batch overlap, as SGLang's SBO).

    compute  attend a | reduce a | route a | shared a   | experts a |           | finalize a
    comm                                   | dispatch a |           | combine a |
    """
    for layer in step.layers():
        step.attend(a)
        step.reduce(a)
        if step.is_dense(layer):
            step.feed_forward(a, layer)
            continue
        step.route(a)
        step.beside(step.dispatch, a)
        step.shared(a)
        step.experts(a)
        step.beside(step.combine, a)
        step.finalize(a)


def two_batches(step: Pass, a: Tokens, b: Tokens) -> None:
    """Communication of one micro-batch under computation of the other (two-batch overlap).

    compute  attend a | attend b | route a | route b    | shared a, b             | experts a  | experts b
    comm              | reduce a | reduce b | dispatch a | dispatch b             |            | combine a | combine b
    """
    for layer in step.layers():
        for one in (a, b):
            step.attend(one)
            step.beside(step.reduce, one)
        if step.is_dense(layer):
            for one in (a, b):
                step.dense(one)
                step.beside(step.reduce, one)
            continue
        for one in (a, b):
            step.route(one)
            step.beside(step.dispatch, one)
        for one in (a, b):
            step.shared(one)
        for one in (a, b):
            step.experts(one)
            step.beside(step.combine, one)


def hooks(step: Pass, *batches: Tokens) -> None:
    """One stream, in which the send and the receive part of an exchange surround the other micro-batch's work: what
    posts or drives writes is none of the cores' business (receive hooks of DeepEP's low-latency kernels; Perplexity).

    compute  collect a', attend a, send a, shared a | collect b', ... b | arrive a, experts a, return a | ... b
    """
    for layer in step.layers():
        for one in batches:
            step.attend(one)
            step.reduce(one)
            if step.is_dense(layer):
                step.feed_forward(one, layer)
                continue
            step.route(one)
            step.dispatch(one)
            step.shared(one)
        for one in batches if not step.is_dense(layer) else ():
            step.experts(one)
            step.combine(one)
    for one in batches:
        step.finalize(one)


def side_by_side(step: Pass, *batches: Tokens) -> None:
    """Attention of one micro-batch beside the feed-forward of the other, a stream each (CloudMatrix384). Both streams
    may have cores of their own (`knobs.cores`): then no kernel of one waits for those of the other.

    attention  attend a | attend b      | attend a'     | ...
    moe                 | feed-forward a | feed-forward b | ...
    """
    for layer in step.layers():
        for one in batches:
            with step.on("attention", one):
                step.attend(one)
                step.reduce(one)
            with step.on("moe", one):
                step.feed_forward(one, layer)


def ping_pong(step: Pass, *batches: Tokens) -> None:
    """Each micro-batch goes from attention to experts and back while others do: for experts on ranks of their own
    (MegaScale-Infer; Step-3), which compute one while the others attend another. Two fill both where the way takes no
    time; with three attend, experts and the way between them may last a third of a layer each. Each direction has a
    stream of its own, so that no dispatch waits for the results of another micro-batch.

    attention  attend a | attend b | attend a' | attend b' | ...
    dispatch            | a        | b         | a'        | ...
    experts             |    experts a | experts b | experts a' | ...
    combine                            | a         | b          | ...
    """
    for layer in step.layers():
        for one in batches:
            with step.on(COMPUTE, one):
                step.attend(one)
                step.reduce(one)
                if step.is_dense(layer):
                    step.feed_forward(one, layer)
                else:
                    step.route(one)
            if not step.is_dense(layer):
                with step.on("dispatch", one):
                    step.dispatch(one)
                step.shared(one)
        for one in batches if not step.is_dense(layer) else ():
            with step.on(COMPUTE, one):
                step.experts(one)
            with step.on("combine", one):
                step.combine(one)


SCHEDULES = {
    "one_stream": Schedule(one_stream, 1, any_number=True),
    "shared_beside": Schedule(shared_beside, 1, any_number=True),
    "single_batch": Schedule(single_batch, 1),
    "two_batches": Schedule(two_batches, 2),
    "hooks": Schedule(hooks, 2, any_number=True),
    "side_by_side": Schedule(side_by_side, 2, any_number=True),
    "ping_pong": Schedule(ping_pong, 2, any_number=True),
}
