"""The commands that launch a deployment with a serving framework, for what the framework has words for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simulator.errors import InputError
from simulator.paths import did_you_mean
from simulator.search import emit_sglang, emit_trtllm, emit_vllm
from simulator.search.deployment import Ask, Found
from simulator.search.launch import Launch, launches

FRAMEWORKS: Mapping[str, Callable[[Sequence[Launch]], list[str]]] = {
    "vllm": emit_vllm.lines, "sglang": emit_sglang.lines, "trtllm": emit_trtllm.lines}  # fmt: skip


def flags(found: Found, ask: Ask, framework: str) -> list[str]:
    """Lines of shell that launch all engines, and a router before several; what the framework cannot be told is said in
    comments. InputError: the framework is none of FRAMEWORKS."""
    if framework not in FRAMEWORKS:
        hint = did_you_mean(framework, FRAMEWORKS)
        raise InputError(f"--emit {framework}: one of {', '.join(FRAMEWORKS)}{hint}")
    return FRAMEWORKS[framework](launches(found, ask))
