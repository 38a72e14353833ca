"""MoE dispatch and combine of many tokens as DeepEP's normal kernels do it: a copy per node, and sums before the wire.

In dispatch a token crosses the network cards once for every node where an expert of it is, to the GPU with its sender's
number, and goes on from there over NVLink, once for every GPU. Combine is the way back: results are summed in their
node before they cross. Kernels hold SMs while they wait; tokens move in chunks, so that the wire, NVLink and the copy
out of the buffers work on different chunks at the same time. GPUs post the writes themselves.

    dispatch   count, pack | wire 0   | wire 1   | ...         combine   nvlink 0 | nvlink 1 | ...
                own node's | nvlink 0 | ...                                 sum 0 | ...
                             copy     | copy 0   | ...                              wire 0   | ...  | sum of nodes

Experts are chosen alike; how many copies there are is their expectation. Published by DeepSeek, deepseek-ai/DeepEP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from simulator.model import ops
from simulator.program.flag import set_flag, wait_flag
from simulator.program.host import Host
from simulator.program.host_thread import Steps
from simulator.program.journal import Label
from simulator.program.nic import Write
from simulator.program.rank import Event, Rank
from simulator.scenario import Case, MemoryItem, Workload
from workloads.moe_variants import Counters
from workloads.pplx_moe import COMBINE_BYTES, NODE, SLOT_BYTES, groups, measures, phase, place
from workloads.readings import between_us

WRITE_TOKENS = 32  # of a write
FP8 = 1.0 + 4.0 / 128  # bytes of an element with its share of a scale


class ReducingKnobs(BaseModel):
    """How the exchange is done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    held_sms: int = Field(20, ge=0, description="SMs that a kernel holds while it waits")
    chunks: int = Field(8, gt=0, description="pieces in which tokens move, one behind the other")
    nodes_per_token: int = Field(0, ge=0, description="a token's experts are on so many nodes at most; 0: on any")


@dataclass(frozen=True)
class Copies:
    """Of one rank's tokens. per_node: to each node, its own one too; inside: to all GPUs of all nodes, which is also
    what one GPU passes on in its node, whoever sent it."""

    tokens: int
    nodes: int
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
    gpus = near * min(NODE, case.ranks)
    return Copies(tokens, nodes, tokens * _reached(near, chosen) / nodes, tokens * _reached(gpus, chosen))


def _reached(places: int, chosen: int) -> float:
    """Of so many places, how many different ones so many choices find."""
    return places * (1.0 - (1.0 - 1.0 / places) ** chosen)


def counter(step: int, what: str, chunk: int) -> str:
    """The name of a chunk's flag."""
    return f"step {step} {what} {chunk}"


# --- what the GPU does ------------------------------------------------------------------------------------------------


def reducing(npu: Rank, case: Case) -> None:
    """Step after step, with nothing in between."""
    npu.program.captured = True
    held = (("sm", case.knobs.held_sms),) if case.knobs.held_sms else ()
    for number in range(case.batch.steps):
        with npu.scope(layer=number):
            dispatch(npu, case, number, held)
            combine(npu, case, number, held)


def dispatch(npu: Rank, case: Case, number: int, held: Any) -> None:
    """Own node's tokens at once, then what comes over the wire, chunk by chunk, over NVLink and out of the buffers."""
    copies, chunks = copies_of(case), case.knobs.chunks
    npu.launch(ops.passes(copies.tokens * 8 * 8.0, 1024), "dispatch.count")
    npu.launch(phase(copies.tokens * SLOT_BYTES, copies.crossing * SLOT_BYTES), "dispatch.pack")
    set_flag(npu, "dispatch.send_done", counter(number, "packed", 0))
    share = copies.inside / copies.nodes
    copied = received(npu, spread(npu, "dispatch.nvlink", share * SLOT_BYTES), share)
    for chunk in range(chunks if copies.nodes > 1 else 0):
        wait_flag(npu, "dispatch.wait", counter(number, "dispatched", chunk), held)
        part = (copies.inside - share) / chunks
        copied = received(npu, spread(npu, "dispatch.nvlink", part * SLOT_BYTES), part)
    npu.wait(copied)


def received(npu: Rank, arrived: Event, rows: float) -> Event:
    """Out of the buffers, beside what arrives next."""
    with npu.stream("receive"):
        npu.wait(arrived)
        return npu.launch(ops.passes(rows * SLOT_BYTES, rows * SLOT_BYTES), "dispatch.copy")


def combine(npu: Rank, case: Case, number: int, held: Any) -> None:
    """Over NVLink to the GPU with the sender's number, summed chunk by chunk, back over the wire, and summed again."""
    copies, chunks = copies_of(case), case.knobs.chunks
    back = copies.per_node * copies.nodes
    for chunk in range(chunks):
        spread(npu, "combine.nvlink", copies.inside / chunks * COMBINE_BYTES)
        npu.launch(phase(copies.inside / chunks * COMBINE_BYTES, back / chunks * COMBINE_BYTES), "combine.reduce")
        set_flag(npu, "combine.send_done", counter(number, "reduced", chunk))
    for chunk in range(chunks if copies.nodes > 1 else 0):
        wait_flag(npu, "combine.wait", counter(number, "combined", chunk), held)
    npu.launch(ops.passes(back * COMBINE_BYTES, copies.tokens * COMBINE_BYTES), "combine.sum")


def spread(npu: Rank, name: str, total_bytes: float) -> Event:
    """Bytes of one GPU to all of its node, an equal part for each; its own part stays."""
    node = npu.group("node")
    return node.all_to_all(name, round(total_bytes / node.size), "nvlink")


# --- who writes to other nodes ----------------------------------------------------------------------------------------


def writes(host: Host, case: Case) -> Steps:
    """The kernel's warps post a write for every few tokens; receivers spin on counters in their own memory."""
    counters = Counters(host, lambda write: write.size_bytes)
    copies, chunks = copies_of(case), case.knobs.chunks
    others = [(host.rank + far * NODE) % case.ranks for far in range(1, copies.nodes)]
    rows = round(copies.per_node / chunks)
    for number in range(case.batch.steps):
        for block, sent, arrived, size in (("dispatch", "packed", "dispatched", SLOT_BYTES),
                                           ("combine", "reduced", "combined", COMBINE_BYTES)):  # fmt: skip
            label = Label(f"{block}.tokens", number)
            names = [counter(number, arrived, chunk) for chunk in range(chunks)]
            for name in names:
                counters.want(name, rows * size * len(others), name)
            for chunk, name in enumerate(names):
                if chunk == 0 or block == "combine":  # dispatch packs everything first
                    seen = yield host.flag(counter(number, sent, chunk))
                for turn, (peer, part) in enumerate(_pieces(others, rows)):
                    nic = host.engine.nics[turn % len(host.engine.nics)]
                    nic.post(Write(label, host.rank, peer, part * size, name, posted=seen))


def _pieces(peers: list[int], rows: int) -> list[tuple[int, int]]:
    """(peer, tokens) of each write, to all peers in turn."""
    return [(peer, min(WRITE_TOKENS, rows - first)) for first in range(0, rows, WRITE_TOKENS) for peer in peers]


# --- what a scenario needs to know ------------------------------------------------------------------------------------


def memory(case: Case) -> list[MemoryItem]:
    """What leaves in one exchange, and what has come to be passed on: whole, the chunks' buffers are smaller."""
    copies = copies_of(case)
    return [
        ("send buffer", "communication", copies.per_node * copies.nodes * COMBINE_BYTES),
        ("receive buffer", "communication", copies.inside * COMBINE_BYTES),
    ]


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Both times on an average rank, and DeepEP's bandwidth: copies to nodes, their own too, with scales, over time."""
    copies = copies_of(case)
    dispatch = between_us(columns, "dispatch.count", "dispatch.copy")
    together = between_us(columns, "combine.nvlink", "combine.sum")
    elements = copies.per_node * copies.nodes * case.shapes.hidden
    return {
        "dispatch_us": dispatch, "combine_us": together, "dispatch_combine_us": dispatch + together,
        "dispatch_rdma_gb_s": elements * FP8 / dispatch / 1e3, "combine_rdma_gb_s": elements * 2 / together / 1e3,
    }  # fmt: skip


REDUCING = Workload(reducing, groups, place, memory, measures, writes, readings)
