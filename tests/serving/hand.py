"""What a service did, written by hand: a few requests with times in ms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.serving.record import DONE, NEVER, REFUSED, STEPS, TIMES, UNFINISHED, Served
from simulator.serving.requests import independent

MS = 10**9


def request(arrival: float, *, tokens: tuple[int, int] = (100, 1), engine: int | tuple[int, int] = 0, cached: int = 0,
            preemptions: int = 0, preempted: float = 0, emitted: int | None = None, status: int = DONE,
            **times: float) -> dict[str, Any]:  # fmt: skip
    """One request; engine: of both, or of prefill and of decode; emitted: as many as it wants."""
    prefill, decode = engine if isinstance(engine, tuple) else (engine, engine)
    if "prefilled" in times:
        times = {"first_token": times["prefilled"]} | times
    return {"times": {"arrival": arrival, **times}, "tokens": tokens, "prefill": prefill, "decode": decode,
            "cached": cached, "preemptions": preemptions, "preempted": preempted, "status": status,
            "emitted": tokens[1] if emitted is None else emitted}


def step(start: float, duration: float, decoding: int = 0, prefill: int = 0, *, engine: int = 0, cached: int = 0,
         waiting: int = 0, blocks: int = 0, most: int | None = None) -> tuple[float, ...]:  # fmt: skip
    """One step, as a row; most: tokens of the fullest group (None: of the only one)."""
    most = decoding + prefill if most is None else most
    return engine, start * MS, duration * MS, decoding, cached, prefill, waiting, blocks, most


def served(requests: Sequence[dict[str, Any]], steps: Sequence[tuple[float, ...]], **more: Any) -> Served:
    """A record of them; more: other fields of `Served`."""
    def column(name: str) -> np.ndarray:
        return np.array([one[name] for one in requests])

    def time(name: str) -> np.ndarray:
        times = (one["times"].get(name) for one in requests)
        return np.array([NEVER if at is None else round(at * MS) for at in times], dtype=np.int64)

    times = {name: time(name) for name in TIMES}
    tokens = column("tokens")
    asked = independent(np.sort(np.maximum(times["arrival"], 0)) / 1e12, tokens[:, 0], tokens[:, 1])
    rows = np.array(steps, dtype=np.int64).reshape(len(steps), len(STEPS))
    table = dict(zip(STEPS, rows.T, strict=True))
    return Served(**{"requests": asked, "times": times, "prefill_engine": column("prefill"),
                     "decode_engine": column("decode"), "cached_tokens": column("cached"),
                     "preemptions": column("preemptions"), "preempted_ps": np.round(column("preempted") * MS),
                     "emitted": column("emitted"), "status": column("status"), "steps": table,
                     "engines": ["engine 0"], "gpus": 2, **more})  # fmt: skip


def together(**more: Any) -> Served:
    """Two requests that share an engine, one refused, one that still waits when the run is stopped.

    Tokens of the first at 30, 40, 70 and 80 ms; of the second at 70, 80 and 90 ms.
    """
    return served(
        [request(0, tokens=(100, 4), routed=5, admitted=10, prefilled=30, last_token=80),
         request(20, tokens=(300, 3), cached=100, routed=25, admitted=40, prefilled=70, last_token=90),
         request(50, tokens=(9000, 1), engine=-1, emitted=0, status=REFUSED),
         request(85, tokens=(50, 5), emitted=0, routed=88, status=UNFINISHED)],
        [step(10, 20, 0, 100, blocks=7), step(30, 10, 1, cached=101, waiting=1, blocks=7),
         step(40, 30, 1, 200, cached=102, blocks=26), step(70, 10, 2, cached=404, blocks=26),
         step(80, 10, 1, cached=302, blocks=19)],
        **more)  # fmt: skip


def apart(**more: Any) -> Served:
    """Prefill and decode apart: tokens at 11, 34 and 44 ms; a step of the decode engine runs when its KV arrives."""
    return served(
        [request(0, tokens=(100, 3), engine=(0, 1), routed=1, admitted=1, prefilled=11, joined=16, last_token=44)],
        [step(1, 10, 0, 100), step(14, 10, 1, engine=1), step(24, 10, 2, engine=1), step(34, 10, 2, engine=1)],
        **{"engines": ["prefill 0", "decode 0"], **more})  # fmt: skip
