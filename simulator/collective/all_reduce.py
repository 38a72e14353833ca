"""AllReduce: a ReduceScatter and an AllGather of shards, or in one shot every buffer to every rank.

Worked example: 8 ranks sum 1 MB. In shards of 128 kB each rank sends 2 x 7 x 128 kB = 1.8 MB and pays two start-ups; in
one shot it sends 7 MB and pays one, which is shorter for small buffers.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.collective.messages import CollectiveCall
from simulator.collective.transfer import Phase
from simulator.program.task import Collective


def all_reduce(call: CollectiveCall) -> tuple[Phase, ...]:
    """Its parts one after the other, at the rates of AllReduce if the engine has a curve of them."""
    own = call.collective.kind if call.engine.ladder.all_reduce else ""
    parts = parts_of(call.collective, len(call.members))
    return tuple(phase for part in parts for phase in call.lower(part, own))


def parts_of(collective: Collective, members: int) -> tuple[Collective, ...]:
    """The collectives of shards that an AllReduce is made of."""
    if collective.algorithm == "one_shot":
        return (replace(collective, kind="all_gather", algorithm="direct"),)
    shard = -(-collective.bytes_per_pair // members)
    return tuple(replace(collective, kind=kind, bytes_per_pair=shard) for kind in ("reduce_scatter", "all_gather"))
