"""The commands that launch a deployment with a serving framework, for what the framework has words for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from simulator.errors import InputError
from simulator.paths import did_you_mean
from simulator.search import emit_sglang, emit_trtllm, emit_vllm
from simulator.search.deployment import Ask, Engine, Found
from simulator.search.engine import words_of
from simulator.search.launch import Launch, launches, wrapped

FRAMEWORKS: Mapping[str, Callable[[Sequence[Launch]], list[str]]] = {
    "vllm": emit_vllm.lines, "sglang": emit_sglang.lines, "trtllm": emit_trtllm.lines}  # fmt: skip


def flags(found: Found, ask: Ask, framework: str) -> list[str]:
    """Lines of shell that launch all engines, and a router before several; what the framework cannot be told is said in
    comments. InputError: the framework is none of FRAMEWORKS."""
    if framework not in FRAMEWORKS:
        hint = did_you_mean(framework, FRAMEWORKS)
        raise InputError(f"--emit {framework}: one of {', '.join(FRAMEWORKS)}{hint}")
    return FRAMEWORKS[framework](launches(found, ask))


def framework_of(stack: str) -> str | None:
    """The framework whose kernels a generation has; none where it is not one of FRAMEWORKS."""
    return next((name for name in FRAMEWORKS if stack.startswith(name)), None)


def steps(found: Found, ask: Ask) -> list[str]:
    """Lines of shell that simulate what was searched: a step of the engines that decode, and one that prefills."""
    engines, before = found.deployment.engines, found.deployment.prefill or found.deployment.engines
    decode = [*_step(engines, ask), f"--batch {found.requests} --context {ask.cached_tokens}"]
    prompts = [f"--phase prefill --context {ask.new_tokens}"]
    prompts += [f"--prefix {ask.input_tokens - ask.new_tokens}"] if ask.input_tokens > ask.new_tokens else []
    prompts += [f"--chunk {before.tokens}"] if before.tokens < ask.new_tokens else []
    groups = launches(found, ask)[0].mesh.dp
    return wrapped(decode) + wrapped([*_step(before, ask), *prompts, f"--batch {groups}"])


def _step(engine: Engine, ask: Ask) -> list[str]:
    model, machine = (shlex.quote(one) for one in (ask.model, ask.machine))
    return [f"braid step --model {model} --machine {machine}", f"--stack {engine.stack} --mesh {engine.mesh}",
            *(f"--set {shlex.quote(f'{key}={text}')}" for key, text in words_of(ask, engine).settings.items())]
