"""DeepEP's low-latency kernels: GPUs post a write for every row themselves (IBGDA), and no host thread takes part.

A kernel has as few thread blocks, an SM each, as give every one the same number of experts. In dispatch a block takes a
token at a time, quantises it and sends its rows: over NVLink by stores, else by a doorbell for each; in combine its
warps send the rows of its experts back. A row leaves as soon as it is packed, so that packing and the wire work at the
same time; behind the last one of an expert and receiver goes a count, or a flag, on which the receiver spins before it
copies rows out, or sums them.

    dispatch   begin | pack ...  | counts | ... spin | copy       combine   begin | pack ...  | flags | ... spin | sum
                     | NVLink, cards ...  | counts                                | NVLink, cards ... | flags

Published by DeepSeek, deepseek-ai/DeepEP at dd758ca (csrc/kernels/legacy/internode_ll.cu).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.die.kernels import Work
from simulator.live.gpu_initiated import Arrival, Posted
from simulator.live.thread import Label
from simulator.model import ops
from simulator.parallel.exchange.rows import Asked, Block, RowKernels, copy_out, phase
from simulator.program.rank import Event

COUNT_BYTES = 4  # that a count, or flag, adds to
ROWS_TOGETHER = 2  # of one peer, as one write of two messages: half as many flows, and a row's time early at most


class RowPosts(Asked):
    """The rows of one leg as writes (`live.gpu_initiated.Posts`)."""

    arrivals: tuple[Arrival, ...] = ()

    @property
    def label(self) -> Label:
        """What they are called."""
        return self.crossing.label(f"{self.block}.tokens")

    @property
    def writes(self) -> Iterator[Posted]:
        """All rows, in the order of the tokens, whose experts are anywhere; where all ranks are alike, to all peers in
        turn."""
        x, leg = self.crossing, self.crossing.leg(self.block)
        if x.alike:
            most = max((rows for _, rows in leg.parts), default=0)
            pieces = [(peer, min(ROWS_TOGETHER, rows - first)) for first in range(0, most, ROWS_TOGETHER)
                      for peer, rows in leg.parts if first < rows]  # fmt: skip
        else:
            pieces = [(peer, min(ROWS_TOGETHER, rows - first)) for peer, rows in leg.parts
                      for first in range(0, rows, ROWS_TOGETHER)]  # fmt: skip
            x.shuffle(leg, pieces)
        counter = x.on(leg.label.name)
        return (Posted(x.rank(peer), rows * leg.row_bytes, counter, rows) for peer, rows in pieces)


@dataclass(frozen=True)
class CountPosts(Asked):
    """What follows the rows of one leg (`live.gpu_initiated.Posts`): a count, or flag, of every expert there for every
    peer with tokens. slots: experts of every place; none have tokens behind the first `sources`."""

    slots: tuple[int, ...]
    sources: int

    @property
    def label(self) -> Label:
        """What they are called."""
        return self.crossing.label(f"{self.block}.counts")

    def _between(self, source: int, target: int) -> int:
        """How many go from one place to another."""
        sender, holder = (source, target) if self.block == "dispatch" else (target, source)
        return self.slots[holder] if sender < self.sources else 0

    @property
    def arrivals(self) -> list[Arrival]:
        """All rows that come over the cards, and the counts behind them."""
        x, leg = self.crossing, self.crossing.leg(self.block)
        counts = sum(self._between(peer, x.place) for peer in x.remote) * COUNT_BYTES
        return [Arrival(x.on(leg.label.name), leg.arriving * leg.row_bytes + counts, leg.answer)]

    @property
    def writes(self) -> Iterator[Posted]:
        """To all peers in turn."""
        x, counter = self.crossing, self.crossing.on(self.crossing.leg(self.block).label.name)
        counts = [(peer, self._between(x.place, peer)) for peer in x.remote]
        return (Posted(x.rank(peer), count * COUNT_BYTES, counter, count) for peer, count in counts if count)


class LowLatency(RowKernels):
    """Rows by the GPU itself."""

    apart = True
    turns = True

    def dispatch(self) -> None:
        """Tokens are packed and sent one by one; counts follow."""
        x = self._crossing
        begun = self._begin("dispatch", "dispatch.count")
        self._stored = self._over_nvlink(begun, "dispatch.nvlink", x.node_bytes(x.slot_bytes))
        read, write = 2.0 * x.tokens * self._task.model.hidden, 1.0 * x.tokens * x.slot_bytes
        self._task.npu.launch(ops.loop("deepep_ll_send", sum(self._slots), x.tokens, read, write), "dispatch.pack")
        self._counts("dispatch", "send_done")

    def arrive(self) -> None:
        """Spin on the counts, then copy what came into the layout of the grouped GEMM."""
        x = self._crossing
        self._come("dispatch", "dispatched")
        arrived = x.received(range(len(x.rows))) * x.slot_bytes
        self._task.npu.launch(copy_out(arrived), "dispatch.shuffle")

    def combine(self) -> None:
        """Rows are sent back one by one, expert by expert; flags follow."""
        x = self._crossing
        begun = self._begin("combine", "combine.pack")
        self._stored = self._over_nvlink(begun, "combine.nvlink", x.node_bytes(x.combine_bytes, back=True))
        back = 1.0 * x.received(x.remote) * x.combine_bytes
        self._task.npu.launch(phase(back, back), "combine.copy")
        self._counts("combine", "combine_packed")

    def collect(self) -> None:
        """Spin on the flags, then sum the copies of every token in FP32."""
        x = self._crossing
        self._come("combine", "combined")
        read, write = 1.0 * x.sent(range(len(x.rows))) * x.combine_bytes, 1.0 * x.tokens * x.combine_bytes
        self._task.npu.launch(ops.loop("deepep_ll_sum", sum(self._slots), x.tokens, read, write), "combine.sum")

    # --- parts -------------------------------------------------------------------------------------------------------

    @property
    def _via(self) -> str:
        return self._task.settings.engine or "deepep_ll"

    @property
    def _slots(self) -> tuple[int, ...]:
        """Experts of every place."""
        mesh = self._task.mesh
        held = tuple(len(rows) for rows in self._routed.rows for _ in range(mesh.expert_tensor if mesh.apart else 1))
        return (0,) * (len(self._crossing.rows) - len(held)) + held

    def _begin(self, block: Block, name: str) -> Event:
        """What comes before the first row, of all experts; then the cards have rows to send."""
        npu, flag = self._task.npu, self._crossing.on(f"{block} begun")
        begun = npu.launch(Work(f"deepep_ll_{block}", kind="vector", dtype="fp32", rows=(0,) * sum(self._slots)), name)
        npu.set_flag(f"{block}.begun", flag, request=RowPosts(self._crossing, block, flag))
        return begun

    def _counts(self, block: Block, what: str) -> None:
        """They follow what was posted, when all of it is packed."""
        x, sources = self._crossing, len(self._task.own)
        counts = CountPosts(x, block, x.on(what), self._slots, sources)
        self._task.npu.set_flag(f"{block}.send_done", x.on(what), request=counts)

    def _come(self, block: Block, what: str) -> None:
        """What peers in the node store, and what comes over the cards."""
        self._wait_stored()
        self._task.npu.wait_flag(f"{block}.wait", self._crossing.on(what))
