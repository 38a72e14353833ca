"""What can be deployed, what is asked of it, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple


class Ask(NamedTuple):
    """What a deployment is for. model, machine: as `braid step` takes them. least_gpus, most_gpus: cards of all engines
    together. input_tokens, output_tokens: of a request; prefix_share: of the input that is cached before it comes.
    ttft_ms, tpot_ms: limits of their means. acceptance: probability of a draft token after those before it (0: drafts
    are not looked at)."""

    model: str
    machine: str
    least_gpus: int
    most_gpus: int
    input_tokens: int
    output_tokens: int
    prefix_share: float = 0.0
    ttft_ms: float = 2000.0
    tpot_ms: float = 50.0
    acceptance: float = 0.0

    @property
    def new_tokens(self) -> int:
        """Of an input, what is computed, one token at least."""
        return self.input_tokens - min(int(self.prefix_share * self.input_tokens), self.input_tokens - 1)

    @property
    def cached_tokens(self) -> int:
        """Of a request in the cache, on average while it decodes."""
        return self.input_tokens + self.output_tokens // 2


class Engine(NamedTuple):
    """Engines that are alike. stack: their generation of kernels. mesh: axes as `braid step --mesh` takes them.
    settings: others of the step, (key, text) in the order of keys. tokens: of a data-parallel group in one step at most
    (max_num_batched_tokens)."""

    stack: str
    mesh: str
    settings: tuple[tuple[str, str], ...] = ()
    tokens: int = 8192

    @property
    def ranks(self) -> int:
        """Of one engine."""
        axes = dict(one.split("=") for one in self.mesh.split(","))
        sizes = [int(axes.get(name, 1)) for name in ("tp", "cp", "dp")]
        return (prod(sizes) + int(axes.get("apart", 0))) * int(axes.get("pp", 1))

    @property
    def framework(self) -> str:
        """Whose engine it is, as stacks begin: engines of one hand keys and values to each other."""
        return self.stack.partition("_")[0]

    @property
    def words(self) -> str:
        """All of it in one line, as `braid step` would be told."""
        return " ".join([self.stack, self.mesh, *(f"{key}={text}" for key, text in self.settings),
                         f"tokens={self.tokens}"])  # fmt: skip


class Deployment(NamedTuple):
    """Engines that prefill and decode, or that decode behind those that `prefill` (None: the same do both)."""

    engines: Engine
    prefill: Engine | None = None


@dataclass(frozen=True)
class Found:
    """What a deployment gives. count, prefill_count: engines of each kind; gpus: cards of all. requests: in flight on
    each engine that decodes. tok_s_per_gpu: output tokens; tok_s_per_user: of one request. stopped_by: what keeps the
    requests from being more: "TPOT", "TTFT", "memory", "max_num_seqs", "prefill", or "steps" that get longer by more
    than they get tokens. concurrency: requests in flight of
    the whole deployment, those that wait for their first token included. served: whether the times are those of
    requests that were served one by one, with the 99th percentiles (0.0: they are estimates from steps)."""

    deployment: Deployment
    count: int
    prefill_count: int
    gpus: int
    requests: int
    ttft_ms: float
    tpot_ms: float
    tok_s_per_gpu: float
    tok_s_per_user: float
    stopped_by: str
    concurrency: int = 1
    served: bool = False
    ttft_p99_ms: float = 0.0
    tpot_p99_ms: float = 0.0

    @property
    def words(self) -> str:
        """Of its engines, and how many there are."""
        engines, prefill = self.deployment
        first = f"{self.prefill_count} x {prefill.words} before " if prefill else ""
        return f"{first}{self.count} x {engines.words}"

    @property
    def family(self) -> str:
        """What it is, whatever the tokens of its steps: deployments that differ in nothing else count once."""
        engines, prefill = self.deployment
        return f"{'apart ' if prefill else ''}{engines._replace(tokens=0).words}"
