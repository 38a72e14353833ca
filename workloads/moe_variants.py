"""Other ways to do the same exchange, for comparison: generic proxies, and writes that GPUs post themselves.

The GPU side is that of `pplx_moe` where tokens go one by one to their experts' ranks; what differs is who posts what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from pydantic import Field

from simulator.live.host import Host
from simulator.live.nic import Write
from simulator.live.thread import HostProcess, HostThread, JournalRow, Label
from simulator.study import scenario
from simulator.study.scenario import Workload
from workloads.pplx_moe import (
    Knobs,
    Step,
    Tokens,
    coordinates,
    dispatch_and_combine,
    groups,
    measures,
    memory,
    readings,
    step_of,
)


class GenericKnobs(Knobs):
    """Generic proxies."""

    threads: int = Field(1, gt=0, description="proxy threads of a GPU: 1 as NVSHMEM's IBRC, 4 as UCCL-EP")


Case = scenario.Case[Tokens, scenario.Layout, GenericKnobs]


def exchanges(step: Step) -> list[tuple[Label, str, str, list[tuple[int, int]], int, int]]:
    """Dispatch and combine: label, flag of the GPU, flag for the GPU, (peer, rows), bytes of a row, rows to come."""
    sent = [(peer, step.rows[step.rank][peer]) for peer in step.remote]
    back = [(peer, step.rows[peer][step.rank]) for peer in step.remote]
    return [
        (step.label("dispatch.tokens"), step.on("send_done"), step.on("dispatched"), sent, step.token.slot_bytes,
         step.received(step.remote)),
        (step.label("combine.tokens"), step.on("combine_packed"), step.on("combined"), back, step.token.combine_bytes,
         step.sent(step.remote)),
    ]  # fmt: skip


def tokens_in_turn(parts: list[tuple[int, int]], seed: str) -> list[int]:
    """The peer of every row, in the order of the tokens, whose experts are anywhere."""
    peers = [peer for peer, rows in parts for _ in range(rows)]
    Random(seed).shuffle(peers)
    return peers


# --- generic proxies: one FIFO command and one write per token copy ---------------------------------------------------


def generic_proxies(host: Host, case: Case) -> HostProcess:
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
           seen: JournalRow) -> HostProcess:
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
            self._host.seen_by_gpu(flag, JournalRow(-1, -1))

    def _received(self, write: Write, row: JournalRow) -> None:
        self._arrived[write.immediate] += self._amount_of(write)
        amount, flag = self._wanted.get(write.immediate, (-1, ""))
        if self._arrived[write.immediate] == amount:
            self._host.seen_by_gpu(flag, row)


# --- GPU-initiated writes (IBGDA): no host thread takes part ----------------------------------------------------------


def gpu_initiated(host: Host, case: Case) -> HostProcess:
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


def posted_by(live: Callable[[Host, Case], HostProcess]) -> Workload:
    """The exchange with others who post its writes."""
    return Workload(dispatch_and_combine, groups, coordinates, memory, measures, live, readings)


GENERIC = posted_by(generic_proxies)
GPU_INITIATED = posted_by(gpu_initiated)
