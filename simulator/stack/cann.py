"""CANN on Ascend: which kernels a generation has for a phase, and what it sends of a model in its precision.

`cann_2025` is that of servers in production (Atlas A2), `cann_recipes` that of the recipes for Atlas A3.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import InputError
from simulator.model.transformer import Experts, Model
from simulator.stack.cann_decode import CannDecode, decoding
from simulator.stack.cann_prefill import CannPrefill

DEPLOYED = CannPrefill("cann_2025")
RECIPES = CannPrefill("cann_recipes_2025", latents_apart=True)


def deployed(model: Model, phase: str) -> CannPrefill | CannDecode:
    """Kernels of `cann_2025`, which has those of decode, too."""
    if phase == "decode":
        return decoding(model, phase)
    return _prefill(DEPLOYED, model, phase)


def recipes(model: Model, phase: str) -> CannPrefill:
    """Kernels of `cann_recipes_2025`."""
    return _prefill(RECIPES, model, phase)


def _prefill(stack: CannPrefill, model: Model, phase: str) -> CannPrefill:
    """The stack with activations as the model's layers take them; InputError for another phase."""
    if phase != "prefill":
        raise InputError(f"kernels '{stack.name}' are of prefill here: batch.phase={phase} has none on this machine")
    mixed = any(isinstance(layer.feed_forward, Experts) for layer in model.layers)
    dtype = model.precision.experts if mixed else model.precision.dense
    return stack if dtype == "int8" else replace(stack, wire_bytes=2.0, scale_bytes=0.0)
