"""Large timelines made as columns at once: repeated layers of kernels and exchanges, no two of the same length."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.observe.columns import COLUMNS
from simulator.observe.recorded import Memory, Peaks, Recorded

_LAYER = [("attention.norm", "vector", "compute"), ("attention.qkv", "gemm", "compute"),
          ("attention.flash", "attention", "compute"), ("attention.o", "gemm", "compute"),
          ("dispatch.tokens", "all_to_all", "comm"), ("experts.gate_up", "grouped_gemm", "compute"),
          ("experts.down", "grouped_gemm", "compute"), ("combine.tokens", "all_to_all", "comm")]
_ENGINE = {"vector": "vector", "all_to_all": "sdma"}


def large_columns(ranks: int, layers: int) -> dict[str, Any]:
    """The timeline of so many ranks and layers, eight tasks each."""
    random = np.random.default_rng(0)
    each = layers * len(_LAYER)
    rows = ranks * each
    task = np.tile(np.arange(each, dtype=np.int32), ranks)
    place = task % len(_LAYER)
    length = random.integers(2_000_000, 90_000_000, rows)
    waited = np.where((place == 4) | (place == 7), random.integers(0, 20_000_000, rows), 0)
    passed = np.cumsum((length + waited).reshape(ranks, each), axis=1).reshape(-1)
    start = passed - length
    after = np.empty(rows, dtype=object)
    after[:] = [(), *((one,) for one in range(each - 1))] * ranks
    texts = {name: np.array([one[column] for one in _LAYER], dtype=object)[place]
             for column, name in enumerate(("name", "kind", "stream"))}
    communication = (place == 4) | (place == 7)
    engine = np.array([_ENGINE.get(kind, "cube") for _, kind, _ in _LAYER], dtype=object)[place]
    moved = np.where(communication, 1e6, 4e7) * random.uniform(0.5, 1.5, rows)
    columns = {**texts, "engine": engine, "task": task, "communication": communication, "after": after,
               "rank": np.repeat(np.arange(ranks, dtype=np.int32), each),
               "layer": (task // len(_LAYER)).astype(np.int32), "micro_batch": (task % 2).astype(np.int32),
               "ready_ps": start - waited, "start_ps": start, "end_ps": passed,
               "solo_ps": length, "flops": np.where(texts["kind"] == "gemm", 1e11, 0.0), "hbm_bytes": moved,
               "l2_bytes": 2 * moved, "wire_bytes": np.where(communication, moved, 0.0),
               "bound_by": np.where(communication, "wire", "HBM").astype(object)}
    return {name: columns[name] if name in columns else _rest(name, kind, rows) for name, (kind, _) in COLUMNS.items()}


def _rest(name: str, kind: str, rows: int) -> Any:
    """A column of which nothing is said."""
    if kind in ("text", "counts", "amounts"):
        made = np.empty(rows, dtype=object)
        made[:] = ["large" if kind == "text" else ()] * rows
        return made
    if name == "multiplicity":
        return np.ones(rows, dtype=np.int32)
    return np.full(rows, 0 if name == "issued_ps" else -1, dtype=kind)


def recorded(columns: dict[str, Any], **about: Any) -> Recorded:
    """A run with these columns, on a machine of round numbers."""
    given = {"scenario": "hand:made", "title": "a run made by hand", "version": "0", "seed": 0, "machine": "a machine",
             "model": "a model", "cards": 1, "ranks": 1, "classes": 1, "mode": "all", "changes": {},
             "settings": {"a": 1}}
    present = sorted(set(columns["rank"].tolist()))
    ranks = len(present)
    peaks = Peaks(1e12, 3e12, {"cube": 24, "vector": 48}, {"node": 1e11}, {"cube": {"bf16": 3e14}})
    parameters = [{"name": "chip.hbm.peak", "value": 1.0, "unit": "TB/s", "kind": "published", "source": "a paper",
                   "share": 0.5, "saves": 0.25}]
    expected = [{"id": "one", "metric": "latency_ms", "value": 2.0, "simulated": 1.0, "error": -0.5, "role": "predict",
                 "band": ""}]
    metrics = {"latency_ms": float(columns["end_ps"].max(initial=0)) / 1e9}
    its = {"ranks": ranks, "classes": ranks, "leaders": " ".join(map(str, present))}
    return Recorded(given | its | about, columns, metrics, expected, parameters,
                    Memory(64e9, 60e9, [("weights", "all", 30e9), ("KV", "cache", 8e9)]), peaks)
