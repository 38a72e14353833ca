"""Decode layers on host-proxy MoE kernels: one or two micro-batches, which share one proxy and engine per GPU.

Some MoE layers are simulated; an iteration is as many as the model has. With two micro-batches the send and receive
parts of one surround attention and experts of the other (`schedules.hooks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import Field

from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.model.drafts import check_drafts, tokens_per_iteration
from simulator.model.micro_batch import MicroBatch, parted
from simulator.model.transformer import experts_of, kv_bytes_per_token, matrices
from simulator.parallel.border import Engines
from simulator.parallel.exchange.proxy import ProxySettings
from simulator.parallel.exchange.rows import buffers
from simulator.parallel.exchange.task import ExchangeSettings
from simulator.parallel.forward import Forward
from simulator.parallel.mesh import Mesh, groups_of
from simulator.parallel.routed import Draw, drawn_by_step
from simulator.parallel.tokens import Tokens
from simulator.program.rank import Rank
from simulator.stack.pplx import STACK
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload
from workloads.moe_exchange import hosts, nodes
from workloads.schedules import hooks


class Requests(Part):
    """Requests of every rank, and what they look like. draft_tokens and acceptance: of multi-token prediction."""

    per_rank: int = Field(16, gt=0)
    cached_tokens: int = Field(4096, gt=0)
    draft_tokens: int = Field(1, ge=0)
    acceptance: float = Field(0.8, ge=0, le=1)

    @property
    def queries(self) -> int:
        """Tokens of a request in one iteration."""
        return 1 + self.draft_tokens

    @property
    def accepted(self) -> float:
        """Tokens that a request gains in one iteration."""
        return tokens_per_iteration(self.acceptance, self.draft_tokens)


class DecodeKnobs(ProxySettings):
    """How many layers are simulated, and in how many micro-batches."""

    layers: int = Field(4, gt=1, description="layers that are simulated; the first one fills the pipeline")
    micro_batches: int = Field(1, gt=0, le=2)


_DRAWS: dict[int, Draw] = {1: drawn_by_step, 2: partial(drawn_by_step, first=1)}  # by micro-batches
Case = scenario.Case[Requests, scenario.Layout, DecodeKnobs]


def decode(npu: Rank, case: Case) -> None:
    """Layers of one iteration, as one captured graph; micro-batches are as large as the larger one."""
    npu.program.captured = True
    batch, knobs, ranks, parts = case.batch, case.knobs, case.ranks, case.knobs.micro_batches
    check_drafts(case.model, batch.draft_tokens, "batch.draft_tokens")
    if batch.per_rank < parts:
        raise ValueError(f"{parts} micro-batches need as many requests on a rank; batch.per_rank is "
                         f"{batch.per_rank}: set it to 2 or more, or knobs.micro_batches to 1")
    requests = -(-batch.per_rank // parts) * parts
    whole = MicroBatch(decodes=((batch.queries, batch.cached_tokens),) * requests)
    settings = ExchangeSettings("proxy", "nvlink", case.routing.skew, case.seed, draw=_DRAWS[parts], own=knobs,
                                node=case.node_ranks)
    layers = case.model.layers[-1:] * knobs.layers
    labels = ("layer", "micro_batch") if parts > 1 else ("layer",)
    step = Forward(npu, case.model, Mesh(dp=ranks, ep=ranks), STACK, Engines("nvlink"), settings, False, labels,
                   range(knobs.layers), layers)
    hooks(step, *(Tokens(one, (one.tokens,) * ranks) for one in parted(whole, parts)))


def proxy(host: Host, case: Case) -> HostProcess:
    """The proxy thread of one rank, in the order in which its GPU asks."""
    yield from hosts(host, case, "proxy")


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Of data-parallel attention and experts of their own on every rank, and the GPUs of each node."""
    return {**groups_of(Mesh(dp=case.ranks, ep=case.ranks)), **nodes(case)}


def memory(case: Case) -> list[MemoryItem]:
    """FP8 weights, attention on every rank, experts spread; BF16 cache of the rank's requests; buffers."""
    model, ranks, batch = case.model, case.ranks, case.batch
    experts = experts_of(model, ranks)
    sizes, drafts = (matrices(layers, model.hidden) for layers in (model.layers, model.drafts))
    cached_tokens = batch.per_rank * (batch.cached_tokens + batch.queries)
    drafting = sum(drafts.values()) + len(model.drafts) * 2 * model.hidden**2
    return [
        ("attention", "weights", sizes["attention"]),
        ("shared expert", "weights", sizes["shared"]),
        ("routed experts", "weights", sizes["experts"] // ranks),
        ("dense FFN", "weights", sizes["dense"]),
        ("embedding and head, BF16", "weights", 4 * model.vocabulary * model.hidden),
        ("multi-token prediction", "weights", drafting / ranks),
        ("latent cache, BF16", "KV", kv_bytes_per_token(model, "bf16") * cached_tokens),
        *buffers(experts, model.hidden, ranks, batch.per_rank, case.knobs.private_tokens),
    ]


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Time of a layer once the pipeline is full, and what an iteration of all layers makes of it."""
    ends = columns["name"] == "combine.sum"
    last = {layer: float(columns["end_ps"][ends & (columns["layer"] == layer)].mean()) / 1e12
            for layer in range(case.knobs.layers)}
    layer_s = (last[case.knobs.layers - 1] - last[0]) / (case.knobs.layers - 1)
    iteration_s = layer_s * (len(case.model.layers) + case.batch.draft_tokens)
    rate = case.batch.per_rank * case.batch.accepted / iteration_s
    return {
        "layer_us": layer_s * 1e6,
        "iteration_ms": iteration_s * 1e3,
        "tpot_ms": iteration_s * 1e3 / case.batch.accepted,
        "throughput_tok_s_per_card": rate,
        "throughput_tok_s": rate * case.ranks,
    }


DECODE = Workload(decode, groups, memory=memory, live=proxy, readings=readings)
