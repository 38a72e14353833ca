"""MoE dispatch and combine over RDMA driven by host proxies, as Perplexity's kernels do it (arXiv 2510.27656).

One busy-polling proxy and one transfer engine per GPU; kernels are split in a send and a receive part. The GPU side is
a recorded program, the host side (`proxy`) a live one; they meet in flags. Names of flags and counters carry the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from simulator.live.host import Host
from simulator.live.thread import HostProcess, Label
from simulator.model import ops
from simulator.model.layout import blocks
from simulator.model.routing import routing_of
from simulator.program.rank import Event, Rank
from simulator.program.task import SizeTable
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload
from workloads.faults import Fault, strike
from workloads.readings import hops, span_us

NODE = 8
ROUTE_BYTES = 1024  # of a rank's counts per expert


class PerRank(Part):
    """What every rank brings to one exchange: tokens, or requests."""

    per_rank: int = Field(gt=0)


class Tokens(PerRank):
    """Tokens of every rank in one step, and how many steps follow each other."""

    per_rank: int = Field(128, gt=0)
    steps: int = Field(1, gt=0)


class Knobs(BaseModel):
    """How the exchange is done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    private_tokens: int = Field(32, ge=0, description="tokens per sender that may be written before routes are known")
    templates: bool = Field(True, description="scatter and barrier as one command; without, every peer is one")
    nvlink: bool = Field(True, description="peers in the node by stores over NVLink instead of the cards")
    fault: Fault = Fault()
    rotated: bool = Field(True, description="senders begin with the node after their own; otherwise all with rank 0")


Case = scenario.Case[Tokens, scenario.Layout, Knobs]
AnyCase = scenario.Case[PerRank, scenario.Layout, Knobs]


@dataclass(frozen=True)
class Token:
    """What a token of so many elements is on the wire."""

    hidden: int

    @property
    def slot_bytes(self) -> int:
        """In dispatch: FP8, a scale of 4 B per 128 values, and where it came from."""
        return self.hidden + 4 * -(-self.hidden // 128) + 16

    @property
    def combine_bytes(self) -> int:
        """In combine: BF16."""
        return 2 * self.hidden


@dataclass(frozen=True)
class Step:
    """One dispatch and combine of one rank, in a layer and micro-batch: rows of every pair, [source][target]."""

    layer: int
    micro_batch: int
    rank: int
    rows: SizeTable
    token: Token
    knobs: Any

    @property
    def peers(self) -> list[int]:
        """All other ranks in the order in which this one posts: node by node from the next one on, and in each of them
        GPU by GPU from its own number on, so that no two ranks of a node write to the same GPU at the same time."""
        ranks, gpus = len(self.rows), min(NODE, len(self.rows))
        if not self.knobs.rotated:
            return [peer for peer in range(ranks) if peer != self.rank]
        node, gpu = divmod(self.rank, gpus)
        ring = ((node + far) % (ranks // gpus) * gpus + (gpu + place) % gpus
                for far in range(1, ranks // gpus + 1) for place in range(gpus))
        return [peer for peer in ring if peer != self.rank]

    @property
    def remote(self) -> list[int]:
        """Those that are reached through the cards."""
        return [peer for peer in self.peers if not self.near(peer)]

    def near(self, peer: int) -> bool:
        """Whether a peer is reached over NVLink."""
        return self.knobs.nvlink and peer // NODE == self.rank // NODE

    def node_bytes(self, row_bytes: int, back: bool = False) -> SizeTable:
        """Bytes between the ranks of this node."""
        ranks = range(self.rank // NODE * NODE, min(self.rank // NODE * NODE + NODE, len(self.rows)))
        return tuple(tuple((self.rows[b][a] if back else self.rows[a][b]) * row_bytes for b in ranks) for a in ranks)

    def sent(self, peers: Sequence[int]) -> int:
        """Rows of this rank that go to some peers."""
        return sum(self.rows[self.rank][peer] for peer in peers)

    def received(self, peers: Sequence[int]) -> int:
        """Rows of some peers that come to this rank."""
        return sum(self.rows[peer][self.rank] for peer in peers)

    def on(self, what: str) -> str:
        """The name of a flag or a counter of this step."""
        part = f".{self.micro_batch}" if self.micro_batch >= 0 else ""
        return f"step {self.layer}{part} {what}"

    def label(self, name: str) -> Label:
        """What its transfers are called."""
        return Label(name, self.layer, self.micro_batch)


def step_of(case: AnyCase, rank: int, layer: int, micro_batch: int = -1, tokens: int = 0) -> Step:
    """One step of one rank, routing drawn per step and rank."""
    s = case.shapes
    rows = _rows(case.ranks, tokens or case.batch.per_rank, s.routed_experts, s.experts_per_token, case.routing.skew,
                 (case.seed, layer, micro_batch + 1))
    return Step(layer, micro_batch, rank, rows, Token(s.hidden), case.knobs)


@cache
def _rows(
    ranks: int, tokens: int, experts: int, per_token: int, skew: float | None, seed: tuple[int, ...]
) -> SizeTable:
    return routing_of((tokens,) * ranks, experts, per_token, skew, seed).sizes(1)


# --- what the GPU does ------------------------------------------------------------------------------------------------


def dispatch_send(npu: Rank, step: Step, tokens: int) -> Event:
    """Count routes, then pack the tokens of every remote peer; peers in the node get theirs over NVLink."""
    counted = npu.launch(ops.passes(tokens * 8 * 8.0, ROUTE_BYTES), "dispatch.count")
    npu.set_flag("dispatch.route_done", step.on("route_done"))
    stored = _over_nvlink(npu, step, counted, "dispatch.nvlink", step.node_bytes(step.token.slot_bytes))
    npu.launch(phase(tokens * step.token.slot_bytes, step.sent(step.remote) * step.token.slot_bytes), "dispatch.pack")
    npu.set_flag("dispatch.send_done", step.on("send_done"))
    return stored


def dispatch_receive(npu: Rank, step: Step, stored: Event) -> Event:
    """Spin on the flag of the host, then shuffle what came into the layout of the grouped GEMM."""
    npu.wait(stored)
    npu.wait_flag("dispatch.wait", step.on("dispatched"))
    arrived = step.received(range(len(step.rows))) * step.token.slot_bytes
    return npu.launch(ops.passes(arrived, arrived), "dispatch.shuffle")


def combine_send(npu: Rank, step: Step) -> Event:
    """Pack expert outputs per peer; peers in the node get theirs over NVLink."""
    back = step.received(step.remote) * step.token.combine_bytes
    packed = npu.launch(ops.passes(back, back), "combine.pack")
    npu.set_flag("combine.send_done", step.on("combine_packed"))
    return _over_nvlink(npu, step, packed, "combine.nvlink", step.node_bytes(step.token.combine_bytes, back=True))


def combine_receive(npu: Rank, step: Step, stored: Event, tokens: int) -> Event:
    """Spin on the flag, then sum the copies of every token in FP32."""
    npu.wait(stored)
    npu.wait_flag("combine.wait", step.on("combined"))
    arrived = step.sent(range(len(step.rows))) * step.token.combine_bytes
    summed = npu.launch(ops.passes(arrived, tokens * step.token.combine_bytes), "combine.sum")
    npu.set_flag("combine.done", step.on("combine_done"))
    return summed


def phase(read_bytes: float, write_bytes: float) -> Any:
    """A further phase of a kernel that is running already."""
    from dataclasses import replace

    return replace(ops.passes(read_bytes, write_bytes), family="phase")


def _over_nvlink(npu: Rank, step: Step, after: Event, name: str, sizes: SizeTable) -> Event:
    with npu.stream("nvlink"):
        npu.wait(after)
        if step.knobs.nvlink and len(sizes) > 1:
            return npu.group("node").all_to_all_uneven(name, sizes, "nvlink")
        return npu.record()


def dispatch_and_combine(npu: Rank, case: Case) -> None:
    """Step after step, with nothing in between: what a benchmark of the kernels runs."""
    npu.program.captured = True
    for number in range(case.batch.steps):
        step = step_of(case, npu.rank, number)
        with npu.scope(layer=number):
            dispatch_receive(npu, step, dispatch_send(npu, step, case.batch.per_rank))
            combine_receive(npu, step, combine_send(npu, step), case.batch.per_rank)


# --- what the host does -----------------------------------------------------------------------------------------------


def proxy(host: Host, case: Case) -> HostProcess:
    """The proxy thread of one rank."""
    strike(host, case.knobs.fault)
    host.engine.templates = case.knobs.templates
    barrier = None
    for number in range(case.batch.steps):
        step = step_of(case, host.rank, number)
        yield from dispatch_proxy(host, step, barrier)
        barrier = yield from combine_proxy(host, step)
    if barrier is not None:
        yield from host.until(barrier, "the last barrier")


def dispatch_proxy(host: Host, step: Step, barrier: Any) -> HostProcess:
    """Routes to everybody, tokens into private buffers, and what those cannot take once all routes are known."""
    engine, knobs = host.engine, step.knobs
    routes, tokens = step.label("dispatch.routes"), step.label("dispatch.tokens")
    routed = engine.count(routes, step.on("routes"), len(step.peers))
    seen = yield from host.until_flag(step.on("route_done"))
    yield from engine.scatter(host.proxy, routes, [(peer, ROUTE_BYTES) for peer in step.peers], step.on("routes"), seen)
    seen = yield from host.until_flag(step.on("send_done"))
    if barrier is not None:
        seen = yield from host.until(barrier, "the barrier of the step before")
    mine = step.rows[step.rank]
    first = [(peer, min(mine[peer], knobs.private_tokens) * step.token.slot_bytes) for peer in step.remote]
    if knobs.private_tokens:
        yield from engine.scatter(host.proxy, tokens, first, step.on("tokens"), seen)
    known = yield from host.until(routed, "the routes of all peers")
    arrive = len(step.remote) if knobs.private_tokens else 0
    arrive += sum(step.rows[peer][step.rank] > knobs.private_tokens for peer in step.remote)
    engine.count(tokens, step.on("tokens"), arrive, gpu_flag=step.on("dispatched"))
    rest = [(peer, (mine[peer] - knobs.private_tokens) * step.token.slot_bytes) for peer in step.remote
            if mine[peer] > knobs.private_tokens]
    if rest:
        yield from engine.scatter(host.proxy, step.label("dispatch.overflow"), rest, step.on("tokens"), known)


def combine_proxy(host: Host, step: Step) -> HostProcess:
    """Everything back in one write per peer (offsets are known), then a barrier; returns what it ends with."""
    engine, tokens, barrier = host.engine, step.label("combine.tokens"), step.label("barrier")
    engine.count(tokens, step.on("combine"), len(step.remote), gpu_flag=step.on("combined"))
    seen = yield from host.until_flag(step.on("combine_packed"))
    parts = [(peer, step.rows[peer][step.rank] * step.token.combine_bytes) for peer in step.remote]
    yield from engine.scatter(host.proxy, tokens, parts, step.on("combine"), seen)
    done = yield from host.until_flag(step.on("combine_done"))
    passed = engine.count(barrier, step.on("barrier"), len(step.peers))
    yield from engine.barrier(host.proxy, barrier, step.peers, step.on("barrier"), done)
    return passed


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """The GPUs of each node."""
    return {"node": blocks(case.ranks, min(NODE, case.ranks), "cards: GPUs of whole nodes")}


def coordinates(case: Case, rank: int) -> Mapping[str, object]:
    """Nothing beside its number."""
    return {}


def memory(case: AnyCase) -> list[MemoryItem]:
    """Buffers of the exchange: private ones per sender, and one for everything that may come."""
    most = case.ranks * case.batch.per_rank * min(case.shapes.experts_per_token, 8)
    private = case.ranks * case.knobs.private_tokens * Token(case.shapes.hidden).slot_bytes
    result = Token(case.shapes.hidden).combine_bytes
    return [
        ("private receive buffers", "communication", private),
        ("send buffer", "communication", case.batch.per_rank * case.shapes.experts_per_token * result),
        ("receive buffer", "communication", most * result / case.ranks * 2),
    ]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """The whole run."""
    return {"latency_ms": seconds * 1e3}


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Latency of dispatch and combine on an average rank, and where that of the slowest rank went, hop by hop."""
    dispatch = span_us(columns, "dispatch.count", "dispatch.shuffle")
    combine = span_us(columns, "combine.pack", "combine.sum")
    rows = [_rows(case.ranks, case.batch.per_rank, case.shapes.routed_experts, case.shapes.experts_per_token,
                  case.routing.skew, (case.seed, number, 0)) for number in range(case.batch.steps)]
    inside = sum(count for table in rows for source, row in enumerate(table) for target, count in enumerate(row)
                 if source // NODE == target // NODE)
    return {
        "dispatch_us": dispatch, "combine_us": combine, "dispatch_combine_us": dispatch + combine,
        "nvlink_share": inside / sum(sum(row) for table in rows for row in table),
        **{f"dispatch_hop_{name}_us": time for name, time in hops(columns, "dispatch.shuffle").items()},
        **{f"combine_hop_{name}_us": time for name, time in hops(columns, "combine.sum").items()},
    }  # fmt: skip


DISPATCH_COMBINE = Workload(dispatch_and_combine, groups, coordinates, memory, measures, proxy, readings)
