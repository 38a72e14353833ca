"""The table of collectives: what each kind is called, how it may go about it, and how many bytes that moves.

AllReduce is made of others: a ReduceScatter and an AllGather of shards, or in one shot every buffer to every rank; or
the switch sums (`nvls`). With "auto" it goes as its library would (`protocols`).

Worked example: 8 ranks sum 1 MB. In shards of 128 kB each rank sends 2 x 7 x 128 kB = 1.8 MB and pays two start-ups; in
one shot it sends 7 MB and pays one, which is shorter for small buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from simulator.collective import direct, hierarchical, nvls, one_sided, pairwise, protocols
from simulator.collective.messages import CollectiveCall
from simulator.collective.ring import ring
from simulator.collective.transfer import Phase, memory_per_byte
from simulator.errors import NoSuchName
from simulator.paths import did_you_mean
from simulator.program.task import ALGORITHMS, Collective
from simulator.spec.machine import CollectiveSpec
from simulator.spec.protocols import ALGORITHMS_OF

Amounts = tuple[float, float]


class Algorithm(NamedTuple):
    """One way to go about a kind of collective: its phases, and the `amounts` of a rank."""

    lower: Callable[[CollectiveCall], tuple[Phase, ...]]
    amounts: Callable[[Collective, int, CollectiveSpec], Amounts]


def _exchanged(copies: Callable[[int], int]) -> Callable[[Collective, int, CollectiveSpec], Amounts]:
    """Of an exchange with all other members that copies its size so often on each."""

    def amounts(collective: Collective, n: int, engine: CollectiveSpec) -> Amounts:
        peers = max(n - 1, 1)
        each: float = collective.bytes_per_pair
        if collective.sizes:  # the mean of all ranks, without what stays at home
            each = sum(sum(row) - row[rank] for rank, row in enumerate(collective.sizes)) / n / peers
        wire = each * (n - 1)
        return wire, wire * (engine.transfer_bytes.si + copies(n) / peers * engine.staging_bytes)

    return amounts


_TO_PEERS, _SHARDS = _exchanged(direct.copied_to_peers), _exchanged(direct.copied_shards)


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


def _reduced(collective: Collective, n: int, engine: CollectiveSpec) -> Amounts:
    """The sum of its parts."""
    parts = [_SHARDS(part, n, engine) for part in parts_of(collective, n)]
    return sum(wire for wire, _ in parts), sum(memory for _, memory in parts)


def _through(ends: Callable[[Collective], tuple[float, float]]) -> Callable[[Collective, int, CollectiveSpec], Amounts]:
    """Of an exchange in which so many bytes leave a rank, and so many arrive at it."""

    def amounts(collective: Collective, n: int, engine: CollectiveSpec) -> Amounts:
        leaving, arriving = ends(collective)
        return leaving, (leaving + arriving) * memory_per_byte(engine)

    return amounts


def _as_protocol(collective: Collective, n: int, engine: CollectiveSpec) -> Amounts:
    """Those of the protocol that its library takes in one node."""
    chosen, own = protocols.chosen(collective, n, engine)
    return algorithm_of(chosen).amounts(chosen, n, own)


def automatic(call: CollectiveCall) -> tuple[Phase, ...]:
    """As its library goes about it: by the fastest of the protocols that reach all members."""
    one_switch = nvls.ports(call.messages.fabric, call.members) is not None
    chosen, engine = protocols.chosen(call.collective, len(call.members), call.engine, one_switch)

    def lowered(part: Collective, curve: str) -> tuple[Phase, ...]:
        inner = replace(call, engine=engine, collective=part, curve=curve or part.kind, lower=lowered)
        return algorithm_of(part).lower(inner)

    return lowered(chosen, "")


def _summed_by_switch(collective: Collective, n: int, engine: CollectiveSpec) -> Amounts:
    """Of `nvls`."""
    size = collective.bytes_per_pair
    return nvls.sent_bytes(size, n), size * (engine.transfer_bytes.si + engine.staging_bytes)


_NONE = _through(lambda one: (0.0, 0.0))
TABLE = {
    ("all_to_all", "direct"): Algorithm(direct.all_to_all, _TO_PEERS),
    ("all_to_all", "pairwise"): Algorithm(pairwise.all_to_all, _TO_PEERS),
    ("all_gather", "direct"): Algorithm(direct.shards, _SHARDS),
    ("all_gather", "hierarchical"): Algorithm(hierarchical.all_gather, _SHARDS),
    ("all_gather", "ring"): Algorithm(ring, _SHARDS),
    ("reduce_scatter", "direct"): Algorithm(direct.shards, _SHARDS),
    ("reduce_scatter", "hierarchical"): Algorithm(hierarchical.reduce_scatter, _SHARDS),
    ("reduce_scatter", "ring"): Algorithm(ring, _SHARDS),
    **{("all_reduce", way): Algorithm(all_reduce, _reduced) for way in ("direct", "hierarchical", "ring", "one_shot")},
    ("all_reduce", "nvls"): Algorithm(nvls.all_reduce, _summed_by_switch),
    **{(kind, "auto"): Algorithm(automatic, _as_protocol) for kind in ALGORITHMS_OF},
    ("barrier", "direct"): Algorithm(CollectiveCall.waited, _NONE),
    ("send", "direct"): Algorithm(direct.message, _through(lambda one: (float(one.bytes_per_pair), 0.0))),
    ("recv", "direct"): Algorithm(direct.message, _through(lambda one: (0.0, float(one.bytes_per_pair)))),
    ("put", "direct"): Algorithm(one_sided.put, _through(lambda one: (one.sent_bytes, one.received_bytes))),
    ("collect", "direct"): Algorithm(one_sided.collect, _NONE),
}
"""By kind of collective and name of algorithm."""

for _kind, _name in TABLE:
    ALGORITHMS.setdefault(_kind, []).append(_name)


def algorithm_of(collective: Collective) -> Algorithm:
    """How a collective is gone about; NoSuchName with the algorithms of its kind if it names none of them."""
    kind, name = collective.kind, collective.algorithm
    if (kind, name) not in TABLE:
        there = ALGORITHMS.get(kind, [])
        text = f"{kind}: no algorithm '{name}'{did_you_mean(name, there)}; there are {', '.join(there)}"
        raise NoSuchName(name, text)
    return TABLE[kind, name]


def amounts(collective: Collective, n: int, engine: CollectiveSpec) -> Amounts:
    """Bytes that one rank of a group of n puts on the wire, and that it moves through its memory."""
    return algorithm_of(collective).amounts(collective, n, engine)
