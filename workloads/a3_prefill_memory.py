"""What one die keeps in memory in the prefill programs of Atlas A3."""

from __future__ import annotations

from simulator.model.layout import deal
from simulator.study.scenario import MemoryItem
from workloads.a3_parts import Case


def weights(case: Case) -> list[MemoryItem]:
    """Weights of one rank: INT8 but for the BF16 key/value up-projection, embedding and head, and the FP32 router."""
    s = case.shapes
    kv_b = s.kv_lora * s.heads * (s.nope_dim + s.v_dim)
    local_experts = s.routed_experts // case.layout.expert_parallel
    return [
        ("attention", "weights", s.layers * (s.mla_parameters + kv_b)),
        ("dense FFN", "weights", s.dense_layers * s.dense_parameters),
        ("routed experts", "weights", s.moe_layers * local_experts * s.expert_parameters),
        ("shared expert", "weights", s.moe_layers * s.shared_experts * s.expert_parameters),
        ("router", "weights", s.moe_layers * 4 * s.router_parameters),
        ("embedding and head shards", "weights", 2 * 2 * s.embedding_parameters / case.ranks),
    ]


def memory(case: Case, attention_tokens: int, tokens: int, heads: int) -> list[MemoryItem]:
    """What the fullest rank holds: `attention_tokens` in attention with `heads` heads, `tokens` everywhere else."""
    s, rows = case.shapes, tokens * case.shapes.experts_per_token
    arriving = -(-sum(case.batch.lengths) * s.experts_per_token // case.ranks)
    per_head = 2 * (2 * s.qk_dim + s.nope_dim + 3 * s.v_dim)  # q, k, kv_b's output, v, o
    phases = {
        "embedding": 2 * 2 * sum(case.batch.lengths) * s.hidden,
        "attention": attention_tokens * heads * per_head,
        "experts": arriving * (s.hidden + 4 * 2 * s.expert_intermediate + 2 * s.hidden),
        "dense FFN": tokens * (4 * 2 + 1) * s.dense_intermediate,
    }
    largest = max(phases, key=lambda name: phases[name])
    return [
        *weights(case),
        ("latent cache, BF16", "KV", 2 * tokens * s.kv_values * s.layers),
        ("hidden state and residual", "activations", 2 * 2 * tokens * s.hidden),
        (f"largest phase: {largest}", "activations", phases[largest]),
        ("dispatched and combined rows", "communication", (rows + arriving) * s.hidden * 2),
    ]


def data_parallel_memory(case: Case) -> list[MemoryItem]:
    """Every rank keeps the prompts that fall on it."""
    tokens = max(sum(hand) for hand in deal(case.batch.lengths, case.ranks))
    return memory(case, tokens, tokens, case.shapes.heads)


def sequence_parallel_memory(case: Case) -> list[MemoryItem]:
    """Every rank keeps its share of the tokens, and all tokens for its heads."""
    total = sum(case.batch.lengths)
    return memory(case, total, -(-total // case.ranks), case.shapes.heads // case.ranks)
