"""Drafts of the next tokens (MTP, EAGLE): layers that make them, the passes of an iteration, and what it yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.errors import InputError
from simulator.model.transformer import Dense, Layer, Model


def draft_layers(model: Model, depth: int) -> tuple[Layer, ...]:
    """So many draft layers: its MTP layers, the last of them again and again, or (EAGLE) layers like its last one where
    that is dense; InputError if it has neither."""
    own = model.drafts or (model.layers[-1:] if isinstance(model.layers[-1].feed_forward, Dense) else ())
    if own or not depth:
        return tuple(own[min(number, len(own) - 1)] for number in range(depth))
    raise InputError(f"batch.drafts: {model.name} has no draft layer of its own, and no published one is in its file")


def check_drafts(model: Model, drafted: int, setting: str) -> None:
    """InputError, with the setting that says how many tokens are drafted, where the model has no MTP layer for them."""
    if drafted and not model.drafts:
        raise InputError(f"{setting} is {drafted}, but {model.name} has no MTP layer to draft with: it must be 0")


def draft_passes(model: Model, drafted: int) -> Iterator[tuple[int, Layer, int]]:
    """Number and layer of every draft pass of an iteration, and query tokens of a request: the first one catches up
    with what was verified, later ones have one token each."""
    for depth, layer in enumerate(draft_layers(model, drafted)):
        yield len(model.layers) + depth, layer, 1 if depth else 1 + drafted


def passes(model: Model, drafted: int,
           verifying: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[Layer], int]]:
    """Numbers and layers of every pass of an iteration, and query tokens of a request: verification, by the layers of
    these numbers, then drafts."""
    yield verifying, [model.layers[number] for number in verifying], 1 + drafted
    for number, layer, queries in draft_passes(model, drafted):
        yield (number,), (layer,), queries


def tokens_per_iteration(acceptance: float, drafted: int) -> float:
    """Expected output tokens of a request, 1 + p + p^2 + ...; acceptance: probability of a draft token, given those
    before it."""
    return sum(acceptance**place for place in range(1 + drafted))
