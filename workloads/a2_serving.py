"""Around the decode program of Atlas A2: groups, places, memory, metrics."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.model.layout import blocks
from simulator.study.scenario import MemoryItem, Workload, decode_measures
from workloads.a2_decode import Case, iteration, lengths_of, requests_of, tokens_of


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Expert-parallel groups, and the tensor-parallel groups inside nodes."""
    case.shapes.check_drafts(case.batch.draft_tokens)
    return {
        "ep": blocks(case.ranks, case.layout.expert_parallel, "layout.expert_parallel"),
        "node": blocks(case.ranks, case.layout.tensor_parallel, "layout.tensor_parallel"),
    }


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """Cached tokens of a rank's requests."""
    return {"lengths": lengths_of(case)[rank]}


def memory(case: Case) -> list[MemoryItem]:
    """Weights of a rank, INT8 but for BF16 absorbed up-projections, embedding and head; latent cache in BF16."""
    s, tokens, tp = case.shapes, tokens_of(case), case.layout.tensor_parallel
    absorbed = s.kv_lora * s.heads * (s.nope_dim + s.v_dim)
    layers, draft = s.layers + s.mtp_layers, s.mtp_layers
    shared = s.shared_experts * s.expert_parameters // (tp if case.knobs.shared == "tp" else 1)
    local = (s.routed_experts // case.layout.expert_parallel + case.knobs.spare_experts) * s.expert_parameters
    longest = case.batch.prompt_tokens + case.batch.output_tokens
    return [
        ("attention", "weights", layers * (s.mla_parameters + absorbed)),
        ("dense FFN shards", "weights", s.dense_layers * s.dense_parameters / tp),
        ("routed experts", "weights", (s.moe_layers + draft) * local),
        ("shared expert", "weights", (s.moe_layers + draft) * shared),
        ("router", "weights", (s.moe_layers + draft) * 4 * s.router_parameters),
        ("MTP projection", "weights", draft * 2 * s.hidden * s.hidden),
        ("embedding and head shards", "weights", 2 * 2 * s.embedding_parameters / tp),
        ("latent cache, BF16, full outputs", "KV", 2 * requests_of(case) * longest * s.kv_values * layers),
        ("gathered tokens and sums", "activations", tokens * case.layout.expert_parallel * s.hidden * (1 + 2 * 2)),
        ("exchange buffers", "communication", tokens * case.layout.expert_parallel * s.hidden * 3),
    ]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """Iteration, TPOT, throughput per card."""
    return decode_measures(case.batch, seconds)


ITERATION = Workload(iteration, groups, coordinates, memory, measures)
