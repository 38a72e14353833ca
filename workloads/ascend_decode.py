"""What published decode systems on Ascend share: requests on ranks, an iteration, the head, weights.

Attention is data parallel, one rank a group; experts lie on groups of `expert_parallel` ranks, of which there may be
several. An iteration verifies the drafts of the one before, samples, and runs the MTP layer once per draft token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from simulator.errors import InputError
from simulator.model import ops
from simulator.model.layout import cached_lengths, on_ranks
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Experts, Layer, Model, layer_weights, with_precision
from simulator.parallel.border import cross
from simulator.parallel.mesh import Mesh
from simulator.stack.cann_decode import CannDecode
from simulator.study.scenario import Case, MemoryItem, Requests
from workloads.forward import Forward, Tokens

Lengths = Sequence[tuple[int, ...]]  # cached tokens of every rank's requests


class AscendDecode(Forward):
    """A pass whose head gathers the best of every shard of the vocabulary, instead of all logits."""

    stack: CannDecode

    def head(self, tokens: Tokens) -> None:
        """Norm, the group's tokens gathered, a shard of the logits, the best of each shard gathered, sampling."""
        with self._of(tokens):
            model, group, rows = self.model, self.npu.group("head"), tokens.batch.tokens
            together, engine = rows * group.size, self.engines.engine
            self.launch(self.stack.norm(model, rows, "head"))
            cross(group, "head.gather", "own", "all", together, 2.0 * model.hidden, self.engines)
            self.launch(self.stack.head(model, together, group.size))
            self.launch(self.stack.best(model, together, group.size))
            group.all_gather("head.gather_best", 8 * together, engine, self.engines.algorithm)
            self.npu.launch(ops.cached(ops.passes(64.0 * together, 8.0 * rows)), "head.sample")


def model_of(case: Case[Any, Any, Any]) -> Model:
    """INT8 weights and activations inside layers; embedding and head as they are."""
    return with_precision(case.model, {"all": "int8"})


def passes(case: Case[Requests, Any, Any], model: Model) -> Iterator[tuple[list[int], Sequence[Layer], int]]:
    """Numbers and layers of every pass of an iteration, and query tokens of a request: verification first; the first
    pass of the MTP layer catches up with what was verified, later ones have one token each."""
    count, queries = len(model.layers), case.batch.queries
    yield list(range(count)), model.layers, queries
    for depth in range(case.batch.draft_tokens):
        yield [count + depth], model.drafts[:1], queries if depth == 0 else 1


def check_drafts(case: Case[Requests, Any, Any]) -> None:
    """InputError where tokens are drafted without an MTP layer."""
    if case.batch.draft_tokens and not case.model.drafts:
        raise InputError(f"batch.draft_tokens is {case.batch.draft_tokens}, but {case.model.name} has no MTP layer to "
                         "draft with: it must be 0")  # fmt: skip


def tokens_of(mesh: Mesh, lengths: Lengths, queries: int, padded: int, number: int = 0, parts: int = 1) -> Tokens:
    """Every so manieth request of each rank, with so many query tokens, padded to as many requests (0: not padded)."""
    batches = tuple(MicroBatch(number, tuple((queries, length) for length in held[max(number, 0) :: parts]),
                               padded=padded * queries) for held in lengths)
    return Tokens(batches[0], (batches[0].tokens,) * mesh.dp, batches=batches)


def lengths_of(case: Case[Requests, Any, Any], arrivals: int, requests: int) -> Lengths:
    """Cached tokens of every rank's requests, where so many arrive at each of `arrivals` places."""
    batch = case.batch
    drawn = arrivals, requests, batch.cached_tokens, batch.length_spread, case.seed
    return _lengths(drawn, case.ranks, batch.placement == "length_aware")


@lru_cache(maxsize=4)
def _lengths(drawn: tuple, ranks: int, length_aware: bool) -> Lengths:
    return on_ranks(cached_lengths(*drawn), ranks, length_aware)


def weight_items(model: Model, mesh: Mesh, names: tuple[str, str, str]) -> list[MemoryItem]:
    """Weights of a rank with routed experts, INT8 but for BF16 absorbed up-projections, embedding and head, and an FP32
    router. names: of attention, of routed experts, and of embedding with head."""
    layers, hidden, split = (*model.layers, *model.drafts), model.hidden, mesh.split
    attention = sum(elements(layer, hidden, "attention") + elements(layer, hidden, "attention.kv_b") for layer in layers)
    elsewhere = sum(elements(layer, hidden, "attention.o") for layer in layers) * (1 - 1 / split("o_proj"))
    dense = sum(elements(layer, hidden, "dense") for layer in layers) / split("dense")
    experts, mixed = experts_of(model), sum(isinstance(layer.feed_forward, Experts) for layer in layers)
    slots = -(-experts.routed // mesh.routed_places) + mesh.redundant
    shared = 0 if mesh.shared_places else 3 * hidden * experts.shared_intermediate // split("shared")
    items = [
        (names[0], attention - elsewhere),
        ("dense FFN shards", dense),
        (names[1], mixed * slots * 3 * hidden * experts.intermediate),
        ("shared expert", mixed * shared),
        ("router", mixed * 4 * hidden * experts.routed),
        ("MTP projection", len(model.drafts) * 2 * hidden * hidden),
        (names[2], 2 * model.vocabulary * hidden * (1 / split("embedding") + 1 / split("head"))),
    ]
    return [(name, "weights", size) for name, size in items if size or name != "shared expert"]


def experts_of(model: Model) -> Experts:
    """Those of its layers, which are alike."""
    found = [layer.feed_forward for layer in (*model.layers, *model.drafts)]
    return next(one for one in found if isinstance(one, Experts))


def elements(layer: Layer, hidden: int, name: str) -> int:
    """Of a layer's matrices of a module or of one name."""
    return sum(weight.elements for weight in layer_weights(layer, hidden)
               if weight.inputs > 1 and f"{weight.name}.".startswith(f"{name}."))  # fmt: skip


def cache_values(model: Model) -> int:
    """Values that the cache of all layers, those of drafts with them, keeps per token."""
    return sum(layer.attention.cached_values for layer in (*model.layers, *model.drafts))

