"""Other ways to do the same exchange, for comparison: generic proxies, GPU-initiated writes, reduction on the sender.

The GPU side is that of `pplx_moe` where tokens go one by one to their experts' ranks; what differs is who posts what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from pydantic import Field

from simulator.model import ops
from simulator.model.routing import Sizes
from simulator.program.flag import set_flag, wait_flag
from simulator.program.host import Host
from simulator.program.host_thread import HostThread, Steps
from simulator.program.journal import Key, Label
from simulator.program.nic import Write
from simulator.program.rank import Event, Rank
from simulator.scenario import Case, Workload
from workloads.pplx_moe import (
    COMBINE_BYTES,
    NODE,
    SLOT_BYTES,
    Knobs,
    Step,
    dispatch_and_combine,
    groups,
    measures,
    memory,
    phase,
    place,
    readings,
    step_of,
)


class GenericKnobs(Knobs):
    """Generic proxies."""

    threads: int = Field(1, gt=0, description="proxy threads of a GPU: 1 as NVSHMEM's IBRC, 4 as UCCL-EP")


class ReducingKnobs(Knobs):
    """Kernels that hold SMs from start to end."""

    held_sms: int = Field(20, ge=0, description="SMs that the kernel holds while it waits for the wire")


def exchanges(step: Step) -> list[tuple[Label, str, str, list[tuple[int, int]], int, int]]:
    """Dispatch and combine: label, flag of the GPU, flag for the GPU, (peer, rows), bytes of a row, rows to come."""
    sent = [(peer, step.rows[step.rank][peer]) for peer in step.remote]
    back = [(peer, step.rows[peer][step.rank]) for peer in step.remote]
    return [
        (step.label("dispatch.tokens"), step.on("send_done"), step.on("dispatched"), sent, SLOT_BYTES,
         step.received(step.remote)),
        (step.label("combine.tokens"), step.on("combine_packed"), step.on("combined"), back, COMBINE_BYTES,
         step.sent(step.remote)),
    ]  # fmt: skip


def tokens_in_turn(parts: list[tuple[int, int]], seed: str) -> list[int]:
    """The peer of every row, in the order of the tokens, whose experts are anywhere."""
    peers = [peer for peer, rows in parts for _ in range(rows)]
    Random(seed).shuffle(peers)
    return peers


# --- generic proxies: one FIFO command and one write per token copy ---------------------------------------------------


def generic_proxies(host: Host, case: Case) -> Steps:
    """Threads that each take a command of the GPU and post its write, one after the other."""
    threads = [HostThread(host.env, host.rank, f"proxy {number}", host.costs.poll.si, host.journal)
               for number in range(case.knobs.threads)]
    for number in range(case.batch.steps):
        step = step_of(case, host.rank, number)
        for label, flag, answer, parts, size, arriving in exchanges(step):
            counter = step.on(label.name)
            host.engine.count(label, counter, arriving, gpu_flag=answer)
            seen = yield from host.until_flag(flag)
            yield host.env.timeout(int(host.costs.command_fifo.si * 1e12))
            peers = tokens_in_turn(parts, f"{host.rank} {counter}")
            yield host.env.all_of([
                host.env.process(_serve(host, thread, label, peers[first :: len(threads)], size, counter, seen))
                for first, thread in enumerate(threads)
            ])  # fmt: skip


def _serve(host: Host, thread: HostThread, label: Label, peers: list[int], size: int, counter: str,
           seen: Key) -> Steps:
    cards = host.engine.nics
    each_s = host.costs.command.si + host.engine.spec.post.si
    for turn, peer in enumerate(peers):
        row = yield from thread.work("command", each_s, label, "proxy.command", seen)
        cards[turn % len(cards)].post(Write(label, host.rank, peer, size, counter, posted=row))


class Counters:
    """Counters in a GPU's own memory, which arriving writes raise by `amount_of` and its kernels spin on."""

    def __init__(self, host: Host, amount_of: Callable[[Write], int]) -> None:
        self._host, self._amount_of = host, amount_of
        self._arrived: Counter[str] = Counter()
        self._wanted: dict[str, tuple[int, str]] = {}
        for nic in host.engine.nics:
            nic.received, nic.completed = self._received, lambda *_: None

    def want(self, counter: str, amount: int, flag: str) -> None:
        """The GPU sees `flag` as soon as so much has arrived."""
        self._wanted[counter] = amount, flag
        if self._arrived[counter] == amount:
            self._host.seen_by_gpu(flag, Key(-1, -1))

    def _received(self, write: Write, row: Key) -> None:
        self._arrived[write.immediate] += self._amount_of(write)
        amount, flag = self._wanted.get(write.immediate, (-1, ""))
        if self._arrived[write.immediate] == amount:
            self._host.seen_by_gpu(flag, row)


# --- GPU-initiated writes (IBGDA): no host thread takes part ----------------------------------------------------------


def gpu_initiated(host: Host, case: Case) -> Steps:
    """Warps ring the card's doorbell for every token copy; receivers spin on counters in their own memory."""
    counters = Counters(host, lambda write: 1)
    for number in range(case.batch.steps):
        step = step_of(case, host.rank, number)
        for label, flag, answer, parts, size, arriving in exchanges(step):
            counter = step.on(label.name)
            counters.want(counter, arriving, answer)
            row = yield host.flag(flag)  # the doorbell crosses PCIe as a flag does; nobody polls for it
            for turn, peer in enumerate(tokens_in_turn(parts, f"{host.rank} {counter}")):
                nic = host.engine.nics[turn % len(host.engine.nics)]
                nic.post(Write(label, host.rank, peer, size, counter, posted=row))


# --- reduction on the sender: one copy per token and node, kernels that hold SMs --------------------------------------


def reducing(npu: Rank, case: Case) -> None:
    """Tokens cross the wire once per node, to the GPU of the sender's number, and spread from there over NVLink;
    results are summed in their node before they go back."""
    npu.program.captured = True
    held = (("sm", case.knobs.held_sms),) if case.knobs.held_sms else ()
    for number in range(case.batch.steps):
        step, rails = step_of(case, npu.rank, number), rails_of(case, npu.rank, number)
        with npu.scope(layer=number):
            _reducing_dispatch(npu, step, rails, case.batch.per_rank, held)
            _reducing_combine(npu, step, rails, case.batch.per_rank, held)


def _reducing_dispatch(npu: Rank, step: Step, rails: Step, tokens: int, held: Any) -> None:
    npu.launch(ops.passes(tokens * 8 * 8.0, 1024), "dispatch.count")
    npu.launch(phase(tokens * SLOT_BYTES, rails.sent(rails.remote) * SLOT_BYTES), "dispatch.pack")
    set_flag(npu, "dispatch.send_done", rails.on("send_done"))
    wait_flag(npu, "dispatch.wait", rails.on("dispatched"), held)
    _spread(npu, step, "dispatch.nvlink", SLOT_BYTES)
    arrived = step.received(range(len(step.rows))) * SLOT_BYTES
    npu.launch(ops.passes(arrived, arrived), "dispatch.shuffle")


def _reducing_combine(npu: Rank, step: Step, rails: Step, tokens: int, held: Any) -> Event:
    arrived = step.received(range(len(step.rows))) * COMBINE_BYTES
    npu.launch(ops.passes(arrived, arrived), "combine.pack")
    _spread(npu, step, "combine.nvlink", COMBINE_BYTES)
    npu.launch(phase(arrived, rails.received(rails.remote) * COMBINE_BYTES), "combine.reduce")
    set_flag(npu, "combine.send_done", rails.on("combine_packed"))
    wait_flag(npu, "combine.wait", rails.on("combined"), held)
    back = rails.sent(rails.remote) * COMBINE_BYTES
    return npu.launch(ops.passes(back, tokens * COMBINE_BYTES), "combine.sum")


def _spread(npu: Rank, step: Step, name: str, row_bytes: int) -> None:
    """All copies for the experts of this node, between its GPUs."""
    node = npu.group("node")
    copies = sum(map(sum, step.rows)) // len(step.rows)
    node.all_to_all(name, copies * row_bytes // node.size, "nvlink")


def rails_of(case: Case, rank: int, number: int) -> Step:
    """The step's rows on the wire: a token goes once to every other node where one of its experts is."""
    return Step(number, -1, rank, _rails(case.ranks, case.batch.per_rank, case.shapes.experts_per_token),
                case.knobs)


@cache
def _rails(ranks: int, tokens: int, per_token: int) -> Sizes:
    gpus = min(NODE, ranks)
    reached = round(tokens * (1.0 - (1.0 - gpus / ranks) ** per_token))  # by expectation
    return tuple(tuple(reached if source % gpus == target % gpus else 0 for target in range(ranks))
                 for source in range(ranks))


def reducing_writes(host: Host, case: Case) -> Steps:
    """The kernel's warps post a write per chunk of 32 tokens; receivers spin on counters in their own memory."""
    counters = Counters(host, lambda write: write.size_bytes)
    for number in range(case.batch.steps):
        for label, flag, answer, parts, size, arriving in exchanges(rails_of(case, host.rank, number)):
            counter = f"{number} {label.name}"
            counters.want(counter, arriving * size, answer)
            row = yield host.flag(flag)
            for turn, (peer, rows) in enumerate(_chunks(parts, 32)):
                nic = host.engine.nics[turn % len(host.engine.nics)]
                nic.post(Write(label, host.rank, peer, rows * size, counter, posted=row))


def _chunks(parts: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    return [(peer, min(most, rows - first)) for peer, rows in parts for first in range(0, rows, most)]


def two_sided(live: Callable[[Host, Case], Steps], program: Callable[[Rank, Case], None]) -> Workload:
    """A variant of the exchange with the same readings."""
    return Workload(program, groups, place, memory, measures, live, readings)


GENERIC = two_sided(generic_proxies, dispatch_and_combine)
GPU_INITIATED = two_sided(gpu_initiated, dispatch_and_combine)
REDUCING = two_sided(reducing_writes, reducing)
