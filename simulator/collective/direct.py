"""Every member writes straight to every other one, all at once.

A balanced exchange is **one transfer for all ranks** (they run in lock-step) for each way through the fabric
(`crossings`): its size is what one rank puts on the wire there, its loads are the bytes on every link, HBM and L2 of
the group. What stays inside nodes can end before what leaves them, and then leaves room to others. An uneven All2All
becomes one transfer per pair, or, as flow classes, one per sender and way with a weight in proportion to its bytes.
Balanced exchanges are lowered pair by pair too where a reference is wanted. All messages of a rank together weigh as
much as one kernel (times the engine's `weight`) where flows compete for a capacity.

Bytes through local memory, per rank of a group of n, with t = `transfer_bytes` (a read where a wire byte leaves and a
write where it arrives) and c = `copy_bytes` (a read and a write) of the driving engine:

    all_to_all of b per pair          wire (n-1)b    memory (n-1)b t + 2(n-1)b c        copied in and out
    all_gather, reduce_scatter of M   wire (n-1)M    memory (n-1)M t + (n+1)M c         one shard in, n out (or back)

Worked example: all_to_all of 1 MB over 4 ranks, t = 2, c = 2: each rank sends 3 MB and moves 6 + 12 = 18 MB, so 6 B of
memory traffic for each byte on the wire.
"""

from __future__ import annotations

from simulator.collective.messages import CollectiveCall
from simulator.collective.transfer import Phase
from simulator.program.task import SizeTable


def all_to_all(call: CollectiveCall) -> tuple[Phase, ...]:
    """As many bytes from each to each, or those of a table."""
    return _uneven(call) if call.collective.sizes else _balanced(call, copied_to_peers(len(call.members)))


def shards(call: CollectiveCall) -> tuple[Phase, ...]:
    """An AllGather or a ReduceScatter."""
    return _balanced(call, copied_shards(len(call.members)))


def message(call: CollectiveCall) -> tuple[Phase, ...]:
    """A send and its recv."""
    engine, size, (source, target) = call.engine, call.collective.bytes_per_pair, call.members
    sized = [(source, target, size)] if size else []
    return (Phase(call.latency_s, call.messages.each(sized, "send", engine, engine.share)),)


def _balanced(call: CollectiveCall, copies: int) -> tuple[Phase, ...]:
    """copies: how often its size is copied into and out of buffers."""
    if call.empty:
        return call.waited()
    engine, size = call.engine, call.collective.bytes_per_pair
    # whole bytes at each end of each message, so that one class and its messages agree to the byte
    peers = len(call.members) - 1
    ends = round((size * engine.transfer_bytes.si + copies * size / peers * engine.staging_bytes) / 2.0)
    rate = engine.rate_bytes_per_s(call.curve, size)
    return (Phase(call.latency_s, call.messages.all_pairs(call.members, size, ends, rate, engine.share)),)


def _uneven(call: CollectiveCall) -> tuple[Phase, ...]:
    """An All2All whose pairs differ; where the messages of each sender, or receiver, are alike, a class each."""
    collective, members, messages, engine = call.collective, call.members, call.messages, call.engine
    sizes, n = collective.sizes, len(members)
    if len(sizes) != n or any(len(row) != n for row in sizes):
        raise ValueError(f"{collective.kind} in group '{collective.group}' of {n}: sizes must be {n} x {n}")
    pairs, weight = [(i, j) for i in range(n) for j in range(n) if i != j and sizes[i][j]], engine.share
    sized = [(members[i], members[j], sizes[i][j]) for i, j in pairs]
    transfers = [*messages.each(sized, collective.kind, engine, weight / (n - 1))]
    if messages.mode != "pairwise":
        if _alike(sizes):
            transfers = messages.merged(transfers, 0, dict.fromkeys(members, weight))
        elif _alike(tuple(zip(*sizes, strict=True))):
            transfers = messages.merged(transfers, 1, dict.fromkeys(members, weight))
        elif messages.mode == "classes":
            total = sum(sizes[i][j] for i, j in pairs)
            sent = {members[i]: weight * n * (sum(sizes[i]) - sizes[i][i]) / max(total, 1) for i in range(n)}
            transfers = messages.merged(transfers, 0, sent)
    return (Phase(call.latency_s, tuple(transfers)),)


def _alike(sizes: SizeTable) -> bool:
    """Whether every row has one size, whatever the diagonal says."""
    return all(len({size for j, size in enumerate(row) if j != i}) <= 1 for i, row in enumerate(sizes))


def copied_to_peers(n: int) -> int:
    """Sizes of an All2All that a rank copies: into buffers, and out of them."""
    return 2 * (n - 1)


def copied_shards(n: int) -> int:
    """Shards of an AllGather or ReduceScatter that a rank copies: its own in and all out, or back."""
    return n + 1
