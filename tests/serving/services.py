"""Small services for tests: a dense model of two layers, few blocks, and step times by a formula where these are not
what a test is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.model.micro_batch import MicroBatch
from simulator.serving import steps
from simulator.serving.engine import Engine
from simulator.serving.group import Group
from simulator.serving.loop import Loop
from simulator.serving.record import Served
from simulator.serving.requests import Requests, independent
from simulator.serving.settings import Service
from simulator.study.scenario import Scenario
from simulator.study.step import StepWords, step_of

BLOCK = 16


@cache
def step(mesh: str = "tp=1", model: str = "qwen3_8b", layers: int = 2) -> Scenario:
    """A decode step of a small model."""
    return step_of(StepWords(model, "dgx_h100", "vllm", mesh, "decode", {"model.shapes.layers": str(layers)}))


def instances(mesh: str = "tp=1", count: int = 1, tokens: int = 0, **scheduling: Any) -> dict[str, Any]:
    """Engines that are alike, whose groups have room for so many tokens (0: what memory leaves)."""
    return {"count": count, "step": step(mesh), "scheduling": scheduling, "cache": {"tokens": tokens}}


def service(engines: dict[str, Any] | None = None, **parts: Any) -> Service:
    """A service whose API server takes no time unless `front` says so."""
    parts.setdefault("front", {"request_ms": 0.0})
    return Service.model_validate({"title": "a test", "engines": engines or instances(), **parts})


def drawn(count: int, seed: int = 0, *, rate: float = 400.0, inputs: tuple[int, int] = (1, 300),
          outputs: tuple[int, int] = (1, 60)) -> Requests:  # fmt: skip
    """Requests of a Poisson stream, of lengths drawn evenly."""
    random = np.random.default_rng(seed)
    return independent(np.cumsum(random.exponential(1 / rate, count)), random.integers(*inputs, count, endpoint=True),
                       random.integers(*outputs, count, endpoint=True))  # fmt: skip


def sharing(count: int, seed: int = 0, families: int = 3) -> Requests:
    """The same, where prompts of a family begin with the same blocks, as far as they go."""
    plain = drawn(count, seed)
    family = np.random.default_rng(seed + 1).integers(families, size=count)
    chains = [number * 1000 + np.arange(tokens // BLOCK)
              for number, tokens in zip(family.tolist(), plain.input_tokens.tolist(), strict=True)]  # fmt: skip
    start = np.concatenate([[0], np.cumsum([len(chain) for chain in chains])])
    return Requests(plain.arrival_s, plain.input_tokens, plain.output_tokens, np.concatenate(chains), start, BLOCK,
                    plain.after, plain.think_s, plain.priority)  # fmt: skip


def by_formula(_: Scenario, groups: Sequence[MicroBatch]) -> float:
    """Seconds of a step: flat, then linear in rows and in tokens attended to; the slowest group counts."""
    return 1e-3 + max(2e-6 * max(one.tokens - 40, 0) + 1e-8 * max(sum(one.held) - 2000, 0) for one in groups)


def steps_by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take what `by_formula` says, and none is simulated."""
    monkeypatch.setattr(steps, "step_seconds", by_formula)


def run(the_service: Service, requests: Requests, **how: Any) -> Served:
    return Loop(the_service, requests, **{"steps": "lattice", **how}).run()


def watched(monkeypatch: pytest.MonkeyPatch, look: Callable[[Engine], None]) -> None:
    """Look at an engine whenever it has decided on a step, and whenever a step has ended."""
    for name in ("_begin", "_step_ends"):
        monkeypatch.setattr(Engine, name, _followed(getattr(Engine, name), look))


def served_watched(the_service: Service, requests: Requests, look: Callable[[Engine], None],
                   monkeypatch: pytest.MonkeyPatch) -> tuple[Loop, Served]:
    """A run to its end, whose engines are looked at all the time."""
    watched(monkeypatch, look)
    loop = Loop(the_service, requests, steps="lattice")
    served = loop.run()
    assert served.done.all()
    return loop, served


def _followed(method: Callable[[Engine], None], look: Callable[[Engine], None]) -> Callable[[Engine], None]:
    def both(engine: Engine) -> None:
        method(engine)
        look(engine)

    return both


def groups_of(loop: Loop) -> list[Group]:
    return [group for engine in loop._engines for group in engine.groups]


def load_of(groups: Sequence[MicroBatch]) -> steps.Load:
    """What a step asks that has this batch, group by group."""
    decoding = [len(one.decodes) for one in groups]
    cached = [sum(held for _, held in one.decodes) for one in groups]
    new = [sum(count for count, _ in one.prompts) for one in groups]
    pairs = sum(count * (before + count / 2) for one in groups for count, before in one.prompts)
    most, most_new = max(decoding), max(new)
    queries = max((count for one in groups for count, _ in one.decodes), default=1)
    padded = max(one.padded for one in groups)
    padded = padded if most_new else padded // queries if most else 0
    share = sum(decoding) / len(groups) / most if most else 1.0
    new_share = sum(new) / len(groups) / most_new if most_new else 1.0
    first, *fewer = steps.heaviest(np.array(decoding), np.array(cached), np.zeros(len(groups)), 1)
    return steps.Load(most, padded, int(first[1][0]), share, most_new, pairs / sum(new) if most_new else 0.0, new_share,
                      fewer=tuple((count, int(tokens[0])) for count, tokens in fewer))  # fmt: skip
