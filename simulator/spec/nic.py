"""What a network card and the host threads that drive it cost: the typed tables `nic` and `proxy` of a machine."""

from __future__ import annotations

from typing import Literal

from simulator.spec.typed_toml import TomlTable
from simulator.units import Bytes, BytesPerSecond, Hertz, PositiveCount, Seconds, Share


class NicSpec(TomlTable):
    """The network cards of one die. Rates and latencies are those of one card, one way, but for `message_rate`.

    A write that is posted waits for the writes before it; the cards of the die together start `message_rate` of them a
    second at most, and each moves their bytes at `goodput` at most, through HBM and `pcie`: the PCIe link of the die,
    which its cards share. Its first byte arrives `latency` later, and later still where the card has writes to other
    ranks outstanding: their bytes stand before it in the queues of the network, `standing_queue` of them at most, and
    leave these at goodput. The sender's completion comes `acknowledge` after the last byte.
    delivery: writes of one card to one peer arrive in the order in which they were sent, or in any order.
    post: time of the posting thread per write of a scatter; post_page: per page of a paged write. chain: writes per
    doorbell. split: from this size on, a single write is cut over all cards of the die. rail_crossing: share of the
    goodput that is left between cards of different rails for a write that begins to arrive beside another sender's.
    retransmit: a write that was lost, because a card at either end was dead, is sent again after this time, and each
    time again, as a whole; after `give_up` of it, it completes with an error.
    """

    name: str
    per_die: PositiveCount
    goodput: BytesPerSecond
    pcie: BytesPerSecond
    message_rate: Hertz
    latency: Seconds
    acknowledge: Seconds
    standing_queue: Bytes
    delivery: Literal["ordered", "unordered"]
    post: Seconds
    post_page: Seconds
    chain: PositiveCount
    split: Bytes
    rail_crossing: Share
    retransmit: Seconds
    give_up: Seconds


class ProxySpec(TomlTable):
    """The two busy-polling threads of a die, and its flags over PCIe.

    flag_to_host, flag_to_gpu: until the other side can see a flag. flag_write: time of the thread that sets a GPU's
    flag. poll: from what a thread polls for to the thread acting on it. submit: time of the proxy to hand a command to
    the engine's thread; dequeue: time of that thread to take it, before the first write. completion: its time per entry
    of a completion queue, of which it takes `poll_batch` at once. watcher: from progress of the GPU in unified memory
    to a callback on the host.
    readmit: from the return of a dead card until an engine that had passed it over uses it again.
    A generic proxy: command_fifo is the latency from the GPU to its thread, command the thread's serial time for each.
    """

    flag_to_host: Seconds
    flag_to_gpu: Seconds
    flag_write: Seconds
    poll: Seconds
    submit: Seconds
    dequeue: Seconds
    completion: Seconds
    poll_batch: PositiveCount
    watcher: Seconds
    readmit: Seconds
    command_fifo: Seconds
    command: Seconds
