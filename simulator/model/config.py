"""The modules of a model from the numbers of its file."""

from __future__ import annotations

from simulator.model.transformer import Dense, Experts, Grouped, Latent, Layer, Model, Precision
from simulator.spec.model import ModelSpec, shapes_of


def transformer_of(spec: ModelSpec) -> Model:
    """Its layers, one after the other."""
    s = shapes_of(spec)
    latent = Latent(s.heads, s.q_lora, s.kv_lora, s.rope_dim, s.nope_dim, s.v_dim)
    attention = Grouped(s.heads, s.kv_heads, s.qk_dim, qk_norm=True) if s.kv_heads else latent
    shared = s.shared_experts * s.expert_intermediate
    experts = Experts(s.routed_experts, s.experts_per_token, s.expert_intermediate, shared, s.expert_groups,
                      s.groups_per_token)
    dense, mixed = Layer(attention, Dense(s.dense_intermediate)), Layer(attention, experts)
    layers = (dense,) * s.dense_layers + (mixed,) * s.moe_layers
    return Model(s.name, s.hidden, s.vocabulary, layers, (mixed,) * s.mtp_layers, False, Precision())
