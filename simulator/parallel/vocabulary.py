"""Embedding and LM head of prompts where every rank has a share of the vocabulary, whichever rank attends to a prompt.

Before and behind the layers every rank has as many tokens as any other, which is not so inside them: prompts differ.
`Forward.embed` and `Forward.head` are those of ranks that keep their tokens throughout.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.parallel.border import Form, cross
from simulator.parallel.forward import Forward


def embed_prompts(step: Forward, lengths: Sequence[int], form: Form = "own") -> None:
    """Every rank looks up all tokens in its vocabulary shard; sums leave it with its own, or with all."""
    world, total = step.npu.group("world"), sum(lengths)
    step.launch(step.stack.embed(step.model, total, world.size))
    name = "reduce_scatter" if form == "own" else "all_reduce"
    cross(world, f"embedding.{name}", "partial", form, total, 2.0 * step.model.hidden, step.engines)


def head_of_prompts(step: Forward, lengths: Sequence[int]) -> None:
    """Norm and logits of the last token of every prompt, vocabulary sharded."""
    world, prompts, model = step.npu.group("world"), len(lengths), step.model
    step.launch(step.stack.norm(model, -(-sum(lengths) // world.size), "head"))
    cross(world, "head.gather_tokens", "own", "all", prompts, 2.0 * model.hidden, step.engines)
    step.launch(step.stack.head(model, prompts, world.size))
    each = 2 * -(-prompts // world.size) * model.vocabulary // world.size
    world.all_gather("head.gather_logits", each, *step.engines.of("all_gather", 0.0, world.size))
