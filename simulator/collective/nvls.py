"""AllReduce in the switch (NVLink SHARP): a rank asks for sums of its shard, and the switch gives what it sums to all.

The switch reads the shard of every rank from all of them, and writes the sum into all of them: each rank sends its
whole buffer to be summed and a shard of sums to be written, and receives a shard of sums and then the whole buffer.
Per rank of n with a buffer of b bytes:

    wire, each way   b + b/n          memory   b t      with t = `transfer_bytes`: a read of the buffer, and a write

Worked example: 8 ranks sum 8 MB: each puts 9 MB on the wire, where shards by ReduceScatter and AllGather take 14 MB.
"""

from __future__ import annotations

from simulator.collective.messages import CollectiveCall
from simulator.collective.transfer import CapacityKey, Phase, Transfer
from simulator.errors import InputError
from simulator.fabric.graph import Edge, Fabric


def sent_bytes(buffer_bytes: int, members: int) -> int:
    """What a rank puts on the wire, and gets from it."""
    return buffer_bytes + -(-buffer_bytes // members)


def ports(fabric: Fabric, members: tuple[int, ...]) -> tuple[tuple[Edge, Edge], ...] | None:
    """The links of each member to the one switch that joins all, and back; None where there is none."""
    found = []
    for rank, peer in zip(members, (*members[1:], members[0]), strict=True):
        there, back = fabric.route(rank, peer).edges, fabric.route(peer, rank).edges
        if len(there) != 2 or len(back) != 2:
            return None
        found.append((there[0], back[-1]))
    return tuple(found) if len({there[1] for there, _ in found}) == 1 else None


def all_reduce(call: CollectiveCall) -> tuple[Phase, ...]:
    """One transfer of all members in lock-step. InputError: more than one switch lies between them."""
    if call.empty:
        return call.waited()
    engine, members, size = call.engine, call.members, call.collective.bytes_per_pair
    links = ports(call.messages.fabric, members)
    if links is None:
        raise InputError(f"group '{call.collective.group}': a switch sums for members that it joins itself, and no one "
                         "switch joins all of these; use ring or hierarchical")
    sent, rate = sent_bytes(size, len(members)), engine.rate_bytes_per_s(call.curve, size)
    moved = round(size * (engine.transfer_bytes.si + engine.staging_bytes))
    loads: list[tuple[CapacityKey, int]] = []
    for rank, (there, back) in zip(members, links, strict=True):
        loads += [(("out", rank, rate), sent), (("hbm", rank), moved), (("l2", rank), moved),
                  (("link", *there), sent), (("link", *back), sent)]
    return (Phase(call.latency_s, (Transfer.of(sent, loads, members, engine.share),)),)
