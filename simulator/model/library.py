"""Models of the library, or a user's own, as layers of modules."""

from __future__ import annotations

from pathlib import Path

from simulator.model.indexer import Indexer
from simulator.model.linear_attention import GatedDelta
from simulator.model.transformer import Attention, Dense, Experts, FeedForward, Grouped, Latent, Layer, Model, Precision
from simulator.spec.model import load_model
from simulator.spec.model_tables import LATENT, ModelShapesSpec, ModelSpec, PrecisionSpec


def load_transformer(name: str | Path) -> Model:
    """A model by its name in the library, or by the path of a .toml file, a config.json or the folder of one; raises as
    `load_model` does."""
    return transformer_of(load_model(name))


def transformer_of(spec: ModelSpec) -> Model:
    """The layers that a model's numbers describe; its MTP layers are like its last one."""
    shapes = spec.shapes
    layers = tuple(Layer(_attention(shapes, number), _feed_forward(shapes, number))
                   for number in range(shapes.layers.count))
    drafts = layers[-1:] * _count(shapes, "mtp_layers")
    return Model(spec.name, shapes.hidden.count, shapes.vocabulary.count, layers, drafts,
                 bool(_count(shapes, "tied")), _precision(spec.precision))


def _count(shapes: ModelShapesSpec, name: str) -> int:
    """A number of the file; 0 where it is not given."""
    number = getattr(shapes, name)
    return number.count if number is not None else 0


def _precision(table: PrecisionSpec | None) -> Precision:
    return Precision(**table.model_dump(exclude={"source"})) if table else Precision()


def _attention(shapes: ModelShapesSpec, number: int) -> Attention:
    """Of the layer with this number."""
    heads = shapes.heads.count
    if shapes.kv_lora:
        q_lora, kv_lora, *dims = (_count(shapes, name) for name in ("q_lora", *LATENT))
        return Latent(heads, q_lora, kv_lora, dims[0], dims[1], dims[2], _indexer(shapes))
    if shapes.full_every and (number + 1) % shapes.full_every.count:
        names = ("linear_heads", "linear_key_heads", "linear_key_dim", "linear_v_dim", "linear_conv")
        return GatedDelta(*(_count(shapes, name) for name in names))
    every = _count(shapes, "window_every")
    sees_all = every > 0 and (number + 1) % every == 0
    switches = (bool(_count(shapes, name)) for name in ("sinks", "attention_bias", "qk_norm", "attention_gate"))
    return Grouped(heads, _count(shapes, "kv_heads"), _count(shapes, "head_dim"),
                   0 if sees_all else _count(shapes, "window"), *switches)


def _indexer(shapes: ModelShapesSpec) -> Indexer | None:
    if not shapes.index_heads:
        return None
    return Indexer(*(_count(shapes, name) for name in ("index_heads", "index_dim", "index_top_k")))


def _feed_forward(shapes: ModelShapesSpec, number: int) -> FeedForward:
    """Of the layer with this number: dense in the first ones, and where not every layer has experts."""
    every = _count(shapes, "moe_every") or 1
    if not shapes.routed_experts or number < _count(shapes, "dense_layers") or (number + 1) % every:
        return Dense(_count(shapes, "dense_intermediate"))
    intermediate = _count(shapes, "expert_intermediate")
    shared = _count(shapes, "shared_intermediate") or _count(shapes, "shared_experts") * intermediate
    return Experts(shapes.routed_experts.count, _count(shapes, "experts_per_token"), intermediate, shared,
                   _count(shapes, "expert_groups"), _count(shapes, "groups_per_token"),
                   bool(_count(shapes, "expert_bias")), bool(_count(shapes, "shared_gate")))
