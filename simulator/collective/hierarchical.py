"""AllGather and ReduceScatter over nodes, pipelined: one node's shards spread inside it while the next ones arrive.

A rank's *counterparts* are the ranks with its place in the other nodes. With n nodes of k ranks and shards of M bytes:

* AllGather: in step 0 a rank spreads its own shard inside its node and sends it to its counterpart in the next node; in
  step s it spreads what arrived in step s - 1 and sends on to the node s + 1 further; n steps inside, n - 1 across.
* ReduceScatter: the same backwards: in step s the node sums the shards of one node, and sends on the sum of step s - 1.

Per rank and step (k-1) M cross the links inside the node and M the link across. Steps are phases, so a step lasts as
long as the slower of the two: which one hides the other follows from the links. Every step after the first begins with
`step_latencies` one-way latencies across, as in `pairwise`.

Worked example: 4 nodes of 8, M = 1 MB, 28 GB/s per link inside and 25 GB/s across: each of the 4 steps takes 36 us
inside and 40 us across, so links across decide: 3 x 40 + 36 = 156 us. With links inside at half their rate they are
hidden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from simulator.collective.messages import CollectiveCall
from simulator.collective.transfer import CapacityKey, Phase, Transfer
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.spec.machine import CollectiveSpec

Pairs = list[tuple[int, int]]


def nodes_of(fabric: Fabric, members: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The members by instance of the innermost level of the fabric, which must all hold as many of them."""
    level = fabric.levels[0]
    nodes: dict[int, list[int]] = {}
    for rank in members:
        nodes.setdefault(fabric.instance(rank, level), []).append(rank)
    if len({len(node) for node in nodes.values()}) > 1:
        raise InputError(f"a collective over nodes needs as many members in every {level}: got {list(nodes.values())}")
    return [tuple(node) for node in nodes.values()]


def all_gather(call: CollectiveCall) -> tuple[Phase, ...]:
    """The steps, each of them a phase; the first bears the start-up."""
    if call.empty:
        return call.waited()
    fabric, engine, shard, latency_s = call.messages.fabric, call.engine, call.collective.bytes_per_pair, call.latency_s
    nodes = nodes_of(fabric, call.members)
    k, n = len(nodes[0]), len(nodes)
    inside = [(a, b) for node in nodes for a in node for b in node if a != b]
    hop_s = engine.messages_per_step * max(fabric.route(*pair).latency_s
                                           for pair in (inside[:1] + _counterparts(nodes, 1)[:1]))
    steps = []
    for step in range(n):
        transfers = []
        if inside:
            copied = shard * (k + (1 if step == 0 else 0))
            rate = engine.rate_bytes_per_s(call.curve, n * shard)  # of the whole collective, as for other algorithms
            transfers.append(together(fabric, engine, inside, shard, rate, copied))
        if step < n - 1:
            across = _counterparts(nodes, step + 1)
            transfers.append(together(fabric, engine, across, shard, engine.rate_bytes_per_s("send", shard), 0))
        steps.append(Phase(latency_s if step == 0 else hop_s, tuple(transfers)))
    return tuple(steps)


def _counterparts(nodes: list[tuple[int, ...]], distance: int) -> Pairs:
    ahead = [nodes[(number + distance) % len(nodes)] for number in range(len(nodes))]
    return [pair for node, other in zip(nodes, ahead, strict=True) for pair in zip(node, other, strict=True)
            if len(nodes) > 1]


def reduce_scatter(call: CollectiveCall) -> tuple[Phase, ...]:
    """The transfers of the AllGather in the opposite order; the start-up stays in front."""
    steps = all_gather(call)
    latencies = [phase.latency_s for phase in steps]
    return tuple(Phase(s, phase.transfers) for s, phase in zip(latencies, reversed(steps), strict=True))


def together(fabric: Fabric, engine: CollectiveSpec, pairs: Pairs, size: int, rate: float, copied: int) -> Transfer:
    """Messages of the same size between these pairs, in lock-step; `copied`: staged bytes of each rank."""
    sends = Counter(source for source, _ in pairs)
    messages = ((source, target, size) for source, target in pairs)
    return lock_step(fabric, engine, tuple(sends), messages, sends[pairs[0][0]] * size, rate, copied)


def lock_step(fabric: Fabric, engine: CollectiveSpec, ranks: Sequence[int], messages: Iterable[tuple[int, int, int]],
               sent: int, rate: float, copied: int) -> Transfer:
    """Messages as (source, target, bytes), of which so many bytes are sent and staged by each rank."""
    moved = round(sent * engine.transfer_bytes.si + copied * engine.staging_bytes)
    loads: list[tuple[CapacityKey, int]] = []
    for rank in ranks:
        loads += [(("out", rank, rate), sent), (("hbm", rank), moved), (("l2", rank), moved)]
    links: Counter[CapacityKey] = Counter()
    for source, target, size in messages:
        if size:
            for edge in fabric.route(source, target).edges:
                links["link", *edge] += size
    return Transfer.of(sent, (*loads, *links.items()), tuple(ranks), engine.share)
