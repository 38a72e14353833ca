"""Published values beside simulated ones, as plain rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

EXPECTED_KEYS = ("id", "metric", "value", "simulated", "error", "role")


def plain(value: Any) -> Any:
    """The same value as JSON has it: numpy numbers become numbers; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def expected_row(row: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """One expected value: id, metric, value, simulated, error, role, and the keys in `more`."""
    return {key: plain(row.get(key)) for key in (*EXPECTED_KEYS, *more)}


def band_text(band: tuple[float | None, float | None]) -> str:
    """A band in words: "0.25 to 0.31", "above 1", "below 1"."""
    low, high = band
    if high is None:
        return f"above {low:g}"
    return f"below {high:g}" if low is None else f"{low:g} to {high:g}"
