"""CANN on Ascend: which kernels a generation has for a phase, and what it sends of a model in its precision.

`cann_2025` is that of servers in production (Atlas A2), `cann_recipes` that of the recipes for Atlas A3. Collectives of
the first go node by node (HCCL's pipeline over servers, as Huawei's "DeepSeek V3/R1 inference deployment best practice
on Ascend servers" of 2025 has it), and All2All between nodes peer by peer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Attention, Latent, Model, with_precision
from simulator.stack.cann_decode import CannDecode, decoding, sent_dtype
from simulator.stack.cann_prefill import CannPrefill

Kernels = list[tuple[str, Work]]


@dataclass(frozen=True)
class CannMixed(CannPrefill):
    """Prompts beside requests that decode: attention of each from hidden states on in kernels of its own, all else as
    in prefill."""

    decoding: CannDecode = field(default_factory=CannDecode)

    def inputs(self, model: Model, attention: Attention, tokens: int, tp: int, packed: bool) -> Kernels:
        """Left to `attend`, which knows whose tokens they are."""
        return []

    def latents(self, attention: Latent) -> list[tuple[str, int]]:
        """InputError: decode has no latents to gather."""
        raise InputError(f"{self.name}: latents are gathered in prefill alone; here hidden states are (residual=split)")

    def attend(self, model: Model, attention: Attention, batch: MicroBatch, tp: int, cp: int) -> Kernels:
        """Decode, then prompts."""
        kernels: Kernels = []
        queries, new = (sum(count for count, _ in some) for some in (batch.decodes, batch.prompts))
        if queries:
            decodes, stack = replace(batch, prompts=(), ends=0, padded=0), self.decoding
            kernels += [*stack.inputs(model, attention, queries, tp, False),
                        *stack.attend(model, attention, decodes, tp, cp)]
        if new:
            prompts = [*super().inputs(model, attention, new, tp, False),
                       *super().attend(model, attention, replace(batch, decodes=(), padded=0), tp, cp)]
            kernels += [(name.replace("attention.", "attention.prompts.", 1), work) for name, work in prompts]
        return kernels


NODE_BY_NODE = "hierarchical"
DEPLOYED = CannPrefill("cann_2025", operands="tnd", algorithm=NODE_BY_NODE)
RECIPES = CannPrefill("cann_recipes_2025", latents_apart=True)


@cache
def quantised(model: Model) -> Model:
    """The model as published systems run it: INT8 weights and activations inside layers, but for the key/value
    up-projection in BF16 and an FP32 router; embedding and head as they are."""
    return with_precision(model, {"all": "int8", "kv_b": "bf16", "router": "fp32"})


def deployed(model: Model, phase: str) -> CannPrefill | CannDecode:
    """Kernels of `cann_2025`, which has those of all phases."""
    if phase == "prefill":
        return _prefill(DEPLOYED, model, phase)
    decode = replace(decoding(model, "decode"), algorithm=NODE_BY_NODE)
    if phase == "decode":
        return decode
    return CannMixed(DEPLOYED.name, DEPLOYED.operands, wire_bytes=decode.wire_bytes, scale_bytes=decode.scale_bytes,
                     algorithm=NODE_BY_NODE, decoding=decode)


def recipes(model: Model, phase: str) -> CannPrefill:
    """Kernels of `cann_recipes_2025`."""
    return _prefill(RECIPES, model, phase)


def _prefill(stack: CannPrefill, model: Model, phase: str) -> CannPrefill:
    """The stack with activations as the model's layers take them; InputError for another phase."""
    if phase != "prefill":
        raise InputError(f"kernels '{stack.name}' are of prefill here: batch.phase={phase} has none on this machine")
    return stack if sent_dtype(model) == "int8" else replace(stack, wire_bytes=2.0, scale_bytes=0.0)
