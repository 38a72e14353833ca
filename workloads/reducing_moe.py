"""MoE dispatch and combine of many tokens as DeepEP's normal kernels do it: a copy per node, and sums before the wire.

In dispatch a token crosses the network cards once for every node where an expert of it is, to the GPU with its sender's
number, and goes on from there over NVLink, once for every GPU. Combine is the way back: results are summed in their
node before they cross. Kernels hold SMs while they wait; tokens move in chunks, so that the wire, NVLink and the copy
out of the buffers, or the sum, work on different chunks at the same time. GPUs post the writes themselves.

    dispatch   count, pack | wire 0   | wire 1   | ...     combine   nvlink 0 | nvlink 1 | ...
                own node's | nvlink 0 | ...                                   | sum 0    | sum 1  | ...
                             copy     | copy 0   | ...                                   | wire 0 | ... | sum of nodes

Every set of experts is as likely; how many copies there are is their expectation. Published by DeepSeek,
deepseek-ai/DeepEP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from simulator.live.host import Host
from simulator.live.nic import Write
from simulator.live.thread import HostProcess, JournalRow, Label
from simulator.model import ops
from simulator.model.layout import split
from simulator.program.rank import Event, Rank
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Workload
from workloads.moe_variants import Counters
from workloads.pplx_moe import NODE, ROUTE_BYTES, Token, Tokens, coordinates, groups, measures, phase
from workloads.readings import between_us

WRITE_TOKENS = 32  # of a write; those of a channel's chunk in DeepEP's configuration for 32 ranks (remembered)
FP8 = 1.0 + 4.0 / 128  # bytes of an element with its share of a scale


class ReducingKnobs(BaseModel):
    """How the exchange is done. held_sms and chunk_tokens are DeepEP's (deepseek-ai/DeepEP, `Buffer`'s configuration;
    remembered): 20 SMs are 10 channels, and a channel sends 32 tokens at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    held_sms: int = Field(20, ge=0, description="SMs that a kernel holds while it waits")
    chunk_tokens: int = Field(320, gt=0, description="tokens that move together: 32 on each of 10 channels")
    nodes_per_token: int = Field(0, ge=0, description="a token's experts are on so many nodes at most; 0: on any")


Case = scenario.Case[Tokens, scenario.Layout, ReducingKnobs]


@dataclass(frozen=True)
class Copies:
    """Of one rank's tokens. per_node: to each node, its own one too; inside: to all GPUs of all nodes, which is also
    what one GPU passes on in its node, whoever sent it; chunks: in how many they move."""

    tokens: int
    token: Token
    nodes: int
    chunks: int
    per_node: float
    inside: float

    @property
    def crossing(self) -> float:
        """Those that leave the node."""
        return self.per_node * (self.nodes - 1)


def copies_of(case: Case) -> Copies:
    """By expectation; see the module's text."""
    tokens, chosen, nodes = case.batch.per_rank, case.shapes.experts_per_token, max(case.ranks // NODE, 1)
    near = min(case.knobs.nodes_per_token or nodes, nodes)
    experts, gpus = case.shapes.routed_experts * near // nodes, near * min(NODE, case.ranks)
    to_nodes, to_gpus = (_reached(places, experts, chosen) for places in (near, gpus))
    chunks = ceil(tokens / case.knobs.chunk_tokens)
    return Copies(tokens, Token(case.shapes.hidden), nodes, chunks, tokens * to_nodes / nodes, tokens * to_gpus)


def _reached(places: int, experts: int, chosen: int) -> float:
    """How many of so many places, with as many of the experts each, have one of the different ones that are chosen."""
    missed = prod((experts - experts / places - one) / (experts - one) for one in range(chosen))
    return places * (1.0 - max(missed, 0.0))


def flag(step: int, what: str, chunk: int = 0) -> str:
    """The name of a flag, and of the counter that sets it."""
    return f"step {step} {what} {chunk}"


# --- what the GPU does ------------------------------------------------------------------------------------------------


def reducing(npu: Rank, case: Case) -> None:
    """Step after step, with nothing in between."""
    npu.program.captured = True
    held = (("sm", case.knobs.held_sms),) if case.knobs.held_sms else ()
    for number in range(case.batch.steps):
        with npu.scope(layer=number):
            dispatch(npu, copies_of(case), number, held)
            combine(npu, copies_of(case), number, held)


def dispatch(npu: Rank, copies: Copies, number: int, held: Any) -> None:
    """Own node's tokens at once, then what comes over the wire, chunk by chunk, over NVLink and out of the buffers."""
    npu.launch(ops.passes(copies.tokens * 8 * 8.0, ROUTE_BYTES), "dispatch.count")
    size = copies.token.slot_bytes
    npu.launch(phase(copies.tokens * size, copies.crossing * size), "dispatch.pack")
    npu.set_flag("dispatch.send_done", flag(number, "packed"))
    own = copies.inside / copies.nodes
    copied = received(npu, own * size)
    for chunk in range(copies.chunks if copies.nodes > 1 else 0):
        npu.wait_flag("dispatch.wait", flag(number, "dispatched", chunk), held)
        copied = received(npu, (copies.inside - own) / copies.chunks * size)
    npu.wait(copied)


def received(npu: Rank, size: float) -> Event:
    """So many bytes over NVLink, then out of the buffers, beside what arrives next."""
    arrived = spread(npu, "dispatch.nvlink", size)
    with npu.stream("receive"):
        npu.wait(arrived)
        return npu.launch(ops.passes(size, size), "dispatch.copy")


def combine(npu: Rank, copies: Copies, number: int, held: Any) -> None:
    """Over NVLink to the GPU with the sender's number, summed chunk by chunk, back over the wire, and summed again."""
    size = copies.token.combine_bytes
    inside, back = copies.inside * size, copies.per_node * copies.nodes * size
    for chunk in range(copies.chunks):
        arrived = spread(npu, "combine.nvlink", inside / copies.chunks)
        with npu.stream("sum"):
            npu.wait(arrived)
            npu.launch(phase(inside / copies.chunks, back / copies.chunks), "combine.reduce")
            summed = npu.set_flag("combine.send_done", flag(number, "summed", chunk))
    npu.wait(summed)
    if copies.nodes > 1:
        npu.wait_flag("combine.wait", flag(number, "combined"), held)
    npu.launch(ops.passes(back, copies.tokens * size), "combine.sum")


def spread(npu: Rank, name: str, total_bytes: float) -> Event:
    """Bytes of one GPU to all of its node, an equal part for each; its own part stays."""
    node = npu.group("node")
    return node.all_to_all(name, round(total_bytes / node.size), "nvlink")


# --- who writes to other nodes ----------------------------------------------------------------------------------------


def writes(host: Host, case: Case) -> HostProcess:
    """The kernel's warps post writes chunk by chunk; receivers spin on counters in their own memory."""
    counters, copies = Counters(host, lambda write: write.size_bytes), copies_of(case)
    others = [(host.rank + far * NODE) % case.ranks for far in range(1, copies.nodes)]
    chunks = split(round(copies.per_node), copies.chunks)
    for number in range(case.batch.steps):
        for chunk, tokens in enumerate(chunks):
            arrived = flag(number, "dispatched", chunk)
            counters.want(arrived, tokens * copies.token.slot_bytes * len(others), arrived)
        seen = yield host.flag(flag(number, "packed"))
        for chunk, tokens in enumerate(chunks):
            arrived = flag(number, "dispatched", chunk)
            post(host, Label("dispatch.tokens", number), others, tokens, copies.token.slot_bytes, arrived, seen)
        arrived = flag(number, "combined")
        counters.want(arrived, sum(chunks) * copies.token.combine_bytes * len(others), arrived)
        for chunk, tokens in enumerate(chunks):
            seen = yield host.flag(flag(number, "summed", chunk))
            post(host, Label("combine.tokens", number), others, tokens, copies.token.combine_bytes, arrived, seen)


def post(
    host: Host, label: Label, peers: list[int], tokens: int, token_bytes: int, counter: str, seen: JournalRow
) -> None:
    """Some tokens for each peer, in writes of a few to all peers in turn."""
    pieces = [(peer, min(WRITE_TOKENS, tokens - first)) for first in range(0, tokens, WRITE_TOKENS) for peer in peers]
    for turn, (peer, piece) in enumerate(pieces):
        card = host.engine.nics[turn % len(host.engine.nics)]
        card.post(Write(label, host.rank, peer, piece * token_bytes, counter, posted=seen))


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def memory(case: Case) -> list[MemoryItem]:
    """What leaves in one exchange, and what has come to be passed on: whole, the chunks' buffers are smaller."""
    copies = copies_of(case)
    return [
        ("send buffer", "communication", copies.per_node * copies.nodes * copies.token.combine_bytes),
        ("receive buffer", "communication", copies.inside * copies.token.combine_bytes),
    ]


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Both times on an average rank, and DeepEP's bandwidth: copies to nodes, their own too, with scales, over time."""
    copies = copies_of(case)
    dispatch_us = between_us(columns, "dispatch.count", "dispatch.copy")
    combine_us = between_us(columns, "combine.nvlink", "combine.sum")
    elements = copies.per_node * copies.nodes * case.shapes.hidden
    return {
        "dispatch_us": dispatch_us, "combine_us": combine_us, "dispatch_combine_us": dispatch_us + combine_us,
        "dispatch_rdma_gb_s": elements * FP8 / dispatch_us / 1e3,
        "combine_rdma_gb_s": elements * 2 / combine_us / 1e3,
    }  # fmt: skip


REDUCING = Workload(reducing, groups, coordinates, memory, measures, writes, readings)
