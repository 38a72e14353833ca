"""Rows between ranks as writes of network cards, and the kernels before and behind them, a send and a receive part.

The crossing is the same, whether the writes are posted by a proxy with its transfer engine (`proxy`), by generic
proxies (`generic_proxy`), or by the GPU itself (`deepep_ll`, whose kernels are its own). Peers in the node get their
rows by stores over NVLink. The GPU side is a recorded program, the host side a live one; they meet in flags, whose
names carry layer and micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from simulator.die.kernels import Work
from simulator.live.thread import Label
from simulator.model import ops
from simulator.model.transformer import Experts
from simulator.parallel.border import Form
from simulator.parallel.exchange.all_to_all import check_whole
from simulator.parallel.exchange.task import Exchange, ExpertTask
from simulator.parallel.mesh import place_of
from simulator.program.rank import Event
from simulator.program.task import SizeTable

ROUTE_BYTES = 1024  # of a rank's counts per expert
SOURCE_BYTES = 16   # of a dispatched row: where it came from  # fmt: skip
Block = Literal["dispatch", "combine"]
DispatchDtype = Literal["", "fp8", "bf16"]
DISPATCH_DTYPE = "of dispatched values: fp8 with a scale for 128 of them, bf16, or (empty) as the software stack has it"
WIRE_BYTES = {"fp8": 1.0 + 4.0 / 128, "bf16": 2.0}  # of a value


class RowSettings(BaseModel):
    """How rows go to their ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nvlink: bool = Field(True, description="peers in the node by stores over NVLink instead of the cards")
    rotated: bool = Field(True, description="senders begin with the node after their own; otherwise all with rank 0")
    dispatch_dtype: DispatchDtype = Field("", description=DISPATCH_DTYPE)


class Leg(NamedTuple):
    """One way of a crossing over the cards. flag: of the GPU, when rows are packed; answer: for it, when all have come.
    parts: (place, rows) of every peer. arriving: rows that come from them."""

    label: Label
    flag: str
    answer: str
    parts: list[tuple[int, int]]
    row_bytes: int
    arriving: int


@dataclass(frozen=True)
class Crossing:
    """Dispatch and combine of one rank in one layer and micro-batch.

    name: what flags and counters begin with. place: of this rank among those that exchange; first: the rank at place 0.
    rows: of every pair, [source][target]. tokens: of this rank. slot_bytes, combine_bytes: of a row on its way there
    and back. node: neighbours that reach each other without the cards. alike: all ranks send and receive the same, and
    this is what rank 0 does (`at`).
    """

    name: str
    layer: int
    micro_batch: int
    place: int
    first: int
    rows: SizeTable
    tokens: int
    slot_bytes: int
    combine_bytes: int
    node: int
    settings: Any
    alike: bool = False

    def at(self, rank: int) -> Crossing:
        """The same as a rank does it."""
        place = rank % len(self.rows)
        return replace(self, place=place, first=rank - place) if self.alike else self

    @property
    def peers(self) -> list[int]:
        """All other places in the order in which this one posts: node by node from the next one on, and in each of them
        GPU by GPU from its own number on, so that no two ranks of a node write to the same GPU at the same time."""
        places, gpus = len(self.rows), self.node
        if not self.settings.rotated:
            return [peer for peer in range(places) if peer != self.place]
        node, gpu = divmod(self.place, gpus)
        ring = ((node + far) % (places // gpus) * gpus + (gpu + near) % gpus
                for far in range(1, places // gpus + 1) for near in range(gpus))
        return [peer for peer in ring if peer != self.place]

    @property
    def remote(self) -> list[int]:
        """Those that are reached through the cards."""
        near = self.place // self.node if self.settings.nvlink else -1
        return [peer for peer in self.peers if peer // self.node != near]

    def node_bytes(self, row_bytes: int, back: bool = False) -> SizeTable:
        """Bytes between the ranks of this node."""
        first = self.place // self.node * self.node
        places = range(first, first + self.node)
        return tuple(tuple((self.rows[b][a] if back else self.rows[a][b]) * row_bytes for b in places) for a in places)

    def sent(self, peers: Sequence[int]) -> int:
        """Rows of this rank that go to some places."""
        return sum(self.rows[self.place][peer] for peer in peers)

    def received(self, peers: Sequence[int]) -> int:
        """Rows of some places that come to this rank."""
        return sum(self.rows[peer][self.place] for peer in peers)

    def rank(self, place: int) -> int:
        """Which rank is there."""
        return self.first + place

    def on(self, what: str) -> str:
        """The name of a flag or a counter."""
        return f"{self.name} {what}"

    def label(self, name: str) -> Label:
        """What its transfers are called."""
        return Label(name, self.layer, self.micro_batch)

    def leg(self, block: Block) -> Leg:
        """Rows there, or results back."""
        remote, label = self.remote, self.label(f"{block}.tokens")
        if block == "dispatch":
            parts = [(peer, self.rows[self.place][peer]) for peer in remote]
            come = self.received(remote)
            return Leg(label, self.on("send_done"), self.on("dispatched"), parts, self.slot_bytes, come)
        parts = [(peer, self.rows[peer][self.place]) for peer in remote]
        return Leg(label, self.on("combine_packed"), self.on("combined"), parts, self.combine_bytes, self.sent(remote))

    def in_turn(self, leg: Leg) -> list[int]:
        """The place of every row of a leg, in the order of the tokens, whose experts are anywhere."""
        peers = [peer for peer, rows in leg.parts for _ in range(rows)]
        self.shuffle(leg, peers)
        return peers

    def shuffle(self, leg: Leg, pieces: list[Any]) -> None:
        """Put what is sent on a leg in an order by chance, the same in every run."""
        Random(f"{self.rank(self.place)} {self.on(leg.label.name)}").shuffle(pieces)


@dataclass(frozen=True)
class Asked:
    """What a GPU asks for: its part of a crossing, one way."""

    crossing: Crossing
    block: Block
    flag: str

    def at(self, rank: int) -> Self:
        """The same as a rank asks for it."""
        return replace(self, crossing=self.crossing.at(rank))


class RowKernels(Exchange):
    """Count and pack, then spin and shuffle; pack, then spin and sum.

    begins: the flags by which a host, or card, is asked for a dispatch and a combine. turns: whether rows go out in
    turns where all ranks are alike, each of which then does what rank 0 does, seen from its own place.
    """

    needs: Form = "own"
    gives: Form = "own"
    by_row = True
    begins: tuple[str, str] = ("send_done", "combine_packed")
    turns: bool = False
    settings: type[RowSettings] = RowSettings
    asked: type[Asked] = Asked

    def __init__(self, task: ExpertTask) -> None:
        check_whole(task, task.settings.name)
        self._task, self._routed = task, task.routed(task.own)
        self._crossing = crossing_of(task, task.settings.own or self.settings(), self.turns and task.alike)
        self._stored: Event | None = None

    def dispatch(self) -> None:
        """Count routes, then pack the rows of every remote peer; peers in the node get theirs over NVLink."""
        npu, x = self._task.npu, self._crossing
        counted = npu.launch(ops.passes(x.tokens * self._task.experts.per_token * 8.0, ROUTE_BYTES), "dispatch.count")
        self._set_flag("dispatch.route_done", "route_done")
        self._stored = self._over_nvlink(counted, "dispatch.nvlink", x.node_bytes(x.slot_bytes))
        npu.launch(phase(x.tokens * x.slot_bytes, x.sent(x.remote) * x.slot_bytes), "dispatch.pack")
        self._set_flag("dispatch.send_done", "send_done")

    def arrive(self) -> None:
        """Spin on the flag, then shuffle what came into the layout of the grouped GEMM."""
        npu, x = self._task.npu, self._crossing
        self._wait_stored()
        npu.wait_flag("dispatch.wait", x.on("dispatched"))
        arrived = x.received(range(len(x.rows))) * x.slot_bytes
        npu.launch(ops.passes(arrived, arrived), "dispatch.shuffle")

    def compute(self) -> None:
        """Local experts on the rows that came."""
        place = 0 if self._crossing.alike else place_of(self._task.mesh, self._task.npu.rank)
        self._task.launch_experts_of(place, self._routed.rows)

    def combine(self) -> None:
        """Pack expert outputs per peer; peers in the node get theirs over NVLink."""
        npu, x = self._task.npu, self._crossing
        back = x.received(x.remote) * x.combine_bytes
        packed = npu.launch(ops.passes(back, back), "combine.pack")
        self._set_flag("combine.send_done", "combine_packed")
        self._stored = self._over_nvlink(packed, "combine.nvlink", x.node_bytes(x.combine_bytes, back=True))

    def collect(self) -> None:
        """Spin on the flag, then sum the copies of every token in FP32."""
        npu, x = self._task.npu, self._crossing
        self._wait_stored()
        npu.wait_flag("combine.wait", x.on("combined"))
        arrived = x.sent(range(len(x.rows))) * x.combine_bytes
        npu.launch(ops.passes(arrived, x.tokens * x.combine_bytes), "combine.sum")
        self._set_flag("combine.done", "combine_done")

    def _set_flag(self, name: str, what: str) -> None:
        """A flag, and what is asked for by it."""
        block: Block = "dispatch" if what == self.begins[0] else "combine"
        flag = self._crossing.on(what)
        request = self.asked(self._crossing, block, flag) if what in self.begins else None
        self._task.npu.set_flag(name, flag, request=request)

    def _over_nvlink(self, after: Event, name: str, sizes: SizeTable) -> Event:
        npu = self._task.npu
        with npu.stream("nvlink"):
            npu.wait(after)
            if self._crossing.settings.nvlink and len(sizes) > 1:
                return npu.group("node").all_to_all_uneven(name, sizes, self._via)
            return npu.record()

    @property
    def _via(self) -> str:
        """What drives the stores."""
        return self._task.via

    def _wait_stored(self) -> None:
        assert self._stored is not None, "what was not sent cannot come"
        self._task.npu.wait(self._stored)


def crossing_of(task: ExpertTask, settings: Any, alike: bool) -> Crossing:
    """That of rank 0 where all ranks are alike, else of the rank which records; its program becomes its own."""
    rank, places = 0 if alike else task.npu.rank, task.mesh.block
    routed, own = task.routed(task.own), task.own
    tokens = own[rank % places] if rank % places < len(own) else 0
    micro_batch = f".{task.label}" if task.label >= 0 else ""
    name = task.npu.new_name(f"step {task.layer}{micro_batch}")
    slot_bytes = slot_bytes_of(task, settings.dispatch_dtype)
    return Crossing(name, task.layer, task.label, rank % places, rank // places * places,
                    task.table(routed.sizes(1.0)), tokens, slot_bytes, 2 * task.model.hidden,
                    min(task.settings.node, places), settings, alike)


def slot_bytes_of(task: ExpertTask, dtype: DispatchDtype) -> int:
    """Bytes of a dispatched row: its values, and where it came from."""
    return round(task.model.hidden * WIRE_BYTES.get(dtype, task.stack.wire_bytes)) + SOURCE_BYTES


def phase(read_bytes: float, write_bytes: float) -> Work:
    """A further phase of a kernel that is running already."""
    return replace(ops.passes(read_bytes, write_bytes), family="phase")


def copy_out(arrived_bytes: float) -> Work:
    """Rows that peers have just written, and that lie in L2, to where the grouped GEMM reads them."""
    return replace(phase(0.0, arrived_bytes), cached_bytes=arrived_bytes)


def buffers(experts: Experts, hidden: int, ranks: int, tokens: int,
            private_tokens: int) -> list[tuple[str, str, float]]:
    """What the rows of so many tokens of every rank keep in memory: private ones of every sender, those that leave, and
    room for all that may come, for two exchanges at a time."""
    slot_bytes = hidden + 4 * -(-hidden // 128) + SOURCE_BYTES
    most = ranks * tokens * experts.per_token
    return [
        ("private receive buffers", "communication", ranks * private_tokens * slot_bytes),
        ("send buffer", "communication", tokens * experts.per_token * 2 * hidden),
        ("receive buffer", "communication", most * 2 * hidden / ranks * 2),
    ]
