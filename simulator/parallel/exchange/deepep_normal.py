"""DeepEP's normal kernels, for many tokens: a copy per node crosses the network, and sums before they cross it back.

In dispatch a token crosses the network cards once for every node where an expert of it is, to the GPU with its sender's
number, and goes on from there over NVLink, once for every GPU. Combine is the way back: results are summed in their
node before they cross. Two SMs of a kernel are a channel: one sends, and is held while NVLink moves what it stores, one
receives; both are held while they wait for a chunk. A channel takes tokens in turns and passes copies on at a rate of
its own, so that the number of SMs sets the rate until a wire does. Tokens move in chunks, so that the wire, NVLink and
the copy out of the buffers, or the sum, work on different chunks at the same time. GPUs post the writes themselves.

    dispatch   notify | wire 0   | wire 1   | ...         combine   notify | nvlink 0 | nvlink 1 | ...
                  own node's     | nvlink 0 | nvlink 1                     | sum 0    | sum 1  | ...
                  channels       | copy 0   | copy 1                                  | wire 0 | ... | sum of nodes

How many copies there are (`copies`) is their expectation. Published by DeepSeek, deepseek-ai/DeepEP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.live.gpu_initiated import Arrival, Posted
from simulator.live.thread import Label
from simulator.model import ops
from simulator.model.layout import split
from simulator.parallel.border import Form
from simulator.parallel.exchange.all_to_all import check_whole
from simulator.parallel.exchange.copies import Copies, Passed, copies_of
from simulator.parallel.exchange.rows import DISPATCH_DTYPE, Block, DispatchDtype, phase, slot_bytes_of
from simulator.parallel.exchange.task import Exchange, ExpertTask, check_no_shared_places
from simulator.program.rank import Event

WRITE_TOKENS = 32  # of a write; those of a channel's chunk in DeepEP's configuration for 32 ranks (remembered)


class NormalSettings(BaseModel):
    """How the exchange is done. sms and chunk_tokens are DeepEP's (deepseek-ai/DeepEP at dd758ca, `Buffer.num_sms` and
    `get_dispatch_config`): 20 SMs are 10 channels, and where nodes exchange one sends 32 tokens at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sms: int = Field(20, ge=2, multiple_of=2, description="SMs of a kernel from start to end; two are a channel")
    chunk_tokens: int = Field(320, gt=0, description="tokens that move together: 32 on each of 10 channels")
    dispatch_dtype: DispatchDtype = Field("", description=DISPATCH_DTYPE)
    nodes_per_token: int = Field(
        0, ge=0, description="a token's experts are on so many nodes at most; 0: on as many as its groups of experts"
    )


def check_sms(key: str, settings: NormalSettings, machine: str, cores: Mapping[str, int]) -> None:
    """InputError: a kernel would hold every SM of the machine's chip, or more; pairs of them must leave one."""
    most = (cores["sm"] - 1) // 2 * 2
    if settings.sms > most:
        raise InputError(f"{key}={settings.sms}: the chip of {machine} has {cores['sm']} SMs; it must be 2 to {most}, "
                         "so that one is left for compute")


@dataclass(frozen=True)
class ChunkPosts:
    """Writes to the same numbers of other nodes at one flag, and what comes from them (`live.gpu_initiated.Posts`).

    chunks: of each the counter that it raises, and (rank, tokens) for every one of them. places: of the ranks that
    exchange, where they are alike, and these are the ranks that rank 0 writes to (0: what one rank does by itself).
    """

    flag: str
    label: Label
    row_bytes: int
    chunks: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    arrivals: tuple[Arrival, ...]
    places: int = 0

    def at(self, rank: int) -> ChunkPosts:
        """The same as a rank posts it."""
        if not self.places:
            return self
        place = rank % self.places
        chunks = ((counter, tuple((rank - place + (peer + place) % self.places, tokens) for peer, tokens in parts))
                  for counter, parts in self.chunks)
        return replace(self, chunks=tuple(chunks))

    @property
    def writes(self) -> Iterator[Posted]:
        """Of a few tokens each, to all ranks in turn, chunk by chunk."""
        for counter, parts in self.chunks:
            for first in range(0, max((tokens for _, tokens in parts), default=0), WRITE_TOKENS):
                for rank, tokens in parts:
                    if tokens > first:
                        yield Posted(rank, min(WRITE_TOKENS, tokens - first) * self.row_bytes, counter)


class Normal(Exchange):
    """Tokens once per node, results summed per node."""

    needs: Form = "own"
    gives: Form = "own"
    by_row = False

    def __init__(self, task: ExpertTask) -> None:
        check_whole(task, "deepep_normal")
        check_no_shared_places(task, "deepep_normal")
        self._task, self._settings = task, task.settings.own or NormalSettings()
        self._routed = task.routed(task.own)
        rank = 0 if task.alike else task.npu.rank
        self._place = rank % task.mesh.block
        self._first = rank - self._place
        self._places = task.mesh.block if task.alike else 0
        self._copies: Copies = copies_of(self._routed, task, self._place, self._settings)
        micro_batch = f".{task.label}" if task.label >= 0 else ""
        self._name = task.npu.new_name(f"step {task.layer}{micro_batch}")
        self._channels = self._settings.sms // 2
        self._held = (("sm", self._settings.sms),)
        self._sizes = {"dispatch": slot_bytes_of(task, self._settings.dispatch_dtype),
                       "combine": 2 * task.model.hidden}  # fmt: skip
        self._stored: Event | None = None

    def dispatch(self) -> None:
        """Own node's tokens at once, then what comes over the wire, chunk by chunk, over NVLink and out of buffers."""
        npu, copies = self._task.npu, self._copies
        begun = npu.launch(Work("deepep_notify", kind="vector", dtype="fp32"), "dispatch.count")
        if copies.nodes > 1:
            npu.set_flag("dispatch.send_done", self._flag("packed"), request=self._all_chunks())
        self._stored = self._received(begun, copies.own, copies.tokens, 1)
        come = sum(tokens for _, tokens in copies.from_nodes)
        for chunk in range(copies.chunks if copies.nodes > 1 else 0):
            begun = npu.wait_flag("dispatch.wait", self._flag("dispatched", chunk), self._held)
            self._stored = self._received(begun, copies.passed_on, come, copies.chunks)

    def arrive(self) -> None:
        """All of them are there."""
        assert self._stored is not None, "what was not sent cannot come"
        self._task.npu.wait(self._stored)

    def compute(self) -> None:
        """Local experts on the rows that came."""
        self._task.launch_experts_of(self._place, self._routed.rows)

    def combine(self) -> None:
        """Over NVLink to the GPU with the sender's number, summed chunk by chunk, over the wire, and summed again."""
        npu, copies, size = self._task.npu, self._copies, self._sizes["combine"]
        begun = npu.launch(Work("deepep_notify", kind="vector", dtype="fp32"), "combine.count")
        chunks = copies.chunks if copies.nodes > 1 else 1
        for chunk in range(chunks):
            stored = self._spread(begun, "combine.nvlink", copies.inside, chunks, "combine")
            rows, moved = round(copies.summed / chunks), size / chunks
            begun = npu.launch(ops.loop("deepep_normal_combine", self._channels, rows, copies.inside.leaving * moved,
                                        copies.summed * moved, self._task.model.hidden), "combine.reduce")
            if copies.nodes > 1:
                with npu.stream("sum"):
                    npu.wait(begun)
                    npu.wait(stored)
                    npu.set_flag("combine.send_done", self._flag("summed", chunk), request=self._one_chunk(chunk))
        npu.wait(stored)
        if copies.nodes > 1:
            npu.wait_flag("combine.wait", self._flag("combined"), self._held)
            npu.launch(phase(copies.returning * size, copies.tokens * size), "combine.sum")

    # --- parts -------------------------------------------------------------------------------------------------------

    def _flag(self, what: str, chunk: int = 0) -> str:
        """The name of a flag, and of the counter that sets it."""
        return f"{self._name} {what} {chunk}"

    def _received(self, begun: Event, passed: Passed, tokens: int, parts: int) -> Event:
        """One of so many parts over NVLink, and through the channels that send it and take it out of the buffers."""
        stored = self._spread(begun, "dispatch.nvlink", passed, parts, "dispatch")
        size = self._sizes["dispatch"] / parts
        self._task.npu.launch(ops.loop("deepep_normal_dispatch", self._channels, round(tokens / parts),
                                       passed.leaving * size, passed.arriving * size), "dispatch.copy")
        return stored

    def _spread(self, begun: Event, name: str, passed: Passed, parts: int, block: Block) -> Event:
        """One of so many parts to, or from, all of the node, beside the kernel whose blocks store it."""
        npu, row_bytes, via = self._task.npu, self._sizes[block], self._task.settings.engine or "deepep_normal"
        with npu.stream("nvlink"):
            npu.wait(begun)
            node, senders = npu.group("node"), (("sm", self._channels),)
            if not passed.table:
                return node.all_to_all(name, round(passed.leaving / parts * row_bytes / node.size), via, cores=senders)
            table = passed.table if block == "dispatch" else tuple(zip(*passed.table, strict=True))
            sizes = tuple(tuple(round(copies / parts * row_bytes) for copies in row) for row in table)
            return node.all_to_all_uneven(name, sizes, via, cores=senders)

    def _label(self, block: Block) -> Label:
        return Label(f"{block}.tokens", self._task.layer, self._task.label)

    def _all_chunks(self) -> ChunkPosts:
        """What a dispatch posts when it is packed."""
        counters = [self._flag("dispatched", chunk) for chunk in range(self._copies.chunks)]
        leave, come = (self._chunks(one) for one in (self._copies.to_nodes, self._copies.from_nodes))
        size = self._sizes["dispatch"]
        arrivals = [Arrival(counter, size * sum(tokens for _, tokens in parts), counter)
                    for counter, parts in zip(counters, come, strict=True)]
        return ChunkPosts(self._flag("packed"), self._label("dispatch"), size,
                          tuple(zip(counters, leave, strict=True)), tuple(arrivals), self._places)

    def _one_chunk(self, chunk: int) -> ChunkPosts:
        """What a combine posts when a chunk is summed: back to where it came from."""
        counter, size = self._flag("combined"), self._sizes["combine"]
        come = [tokens for parts in self._chunks(self._copies.to_nodes) for _, tokens in parts]
        arrivals = (Arrival(counter, size * sum(come), counter),) if not chunk else ()
        back = self._chunks(self._copies.from_nodes)[chunk]
        return ChunkPosts(self._flag("summed", chunk), self._label("combine"), size, ((counter, back),), arrivals,
                          self._places)

    def _chunks(self, parts: tuple[tuple[int, int], ...]) -> list[tuple[tuple[int, int], ...]]:
        """(rank, tokens) of every chunk, of (place, tokens) of all."""
        cut = [(self._first + place, split(tokens, self._copies.chunks)) for place, tokens in parts]
        return [tuple((rank, pieces[chunk]) for rank, pieces in cut) for chunk in range(self._copies.chunks)]
