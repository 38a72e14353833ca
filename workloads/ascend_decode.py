"""What published decode systems on Ascend share: model, requests on ranks, the passes of an iteration.

Attention is data parallel, one rank a group; experts lie on groups of `expert_parallel` ranks, of which there may be
several. An iteration verifies the drafts of the one before, samples, and runs the MTP layer once per draft token
(`simulator.model.drafts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.errors import InputError
from simulator.model.layout import lengths_on_ranks
from simulator.model.transformer import Experts, Model
from simulator.parallel.ledger import weights_of
from simulator.parallel.mesh import Mesh
from simulator.study.scenario import Case, MemoryItem, Requests, decode_measures


class AscendKnobs(BaseModel):
    """Kernels of attention, one switch each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fused_prolog: bool = Field(True, description="MLAProlog in one kernel")
    attention: Literal["mla_attention", "mla_attention_mtp", "mla_attention_amla"] = Field(
        "mla_attention_mtp", description="generation of the attention kernel"
    )


Served = Case[Requests, Any, Any]


def experts_of(case: Served) -> Experts:
    """Those of a layer; InputError where there are none."""
    ffn = case.model.layers[-1].feed_forward
    if not isinstance(ffn, Experts):
        raise InputError(f"model {case.model.name} has no experts, and this program is for such: transformer:decode "
                         "runs it on this machine, too")  # fmt: skip
    return ffn


def lengths_of(case: Served, arrivals: int, requests: int) -> Sequence[tuple[int, ...]]:
    """Cached tokens of every rank's requests, where so many arrive at each of `arrivals` places."""
    batch = case.batch
    return lengths_on_ranks(arrivals, requests, batch.cached_tokens, batch.length_spread, case.seed, case.ranks,
                            batch.placement == "length_aware")


def kept(model: Model, mesh: Mesh, cached_tokens: int) -> list[MemoryItem]:
    """Weights of a rank with routed experts, and the cache in BF16."""
    values = sum(layer.attention.cached_values for layer in (*model.layers, *model.drafts))
    return [*weights_of(model, mesh, 0, drafts=True, absorbed=False),
            ("latent cache, BF16, full outputs", "KV", 2 * cached_tokens * values)]


def measures(case: Served, seconds: float) -> Mapping[str, float]:
    """Iteration, TPOT, throughput per card."""
    return decode_measures(case.batch, seconds)
