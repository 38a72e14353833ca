"""All2All over nodes step by step: a rank writes to one peer of another node at a time, as RDMA between nodes does.

Messages inside nodes move all at once, beside the first step. Every further step begins with `step_latencies` one-way
latencies between nodes: a rank says that its buffer is ready, gets what is written, and says that it has it. That is
what many peers cost: each step ends before the next one begins, whatever its size.

Worked example: 4 nodes of 8, so 24 steps; 250 KB per pair at 25 GB/s and 3 latencies of 4 us: the first step takes
10 us after the start-up, each of the other 23 takes 12 + 10 us: 516 us where all at once takes 240 us.
"""

from __future__ import annotations

from functools import partial

from simulator.collective.hierarchical import nodes_of, together
from simulator.collective.messages import CollectiveCall
from simulator.collective.transfer import Phase, Transfer
from simulator.fabric.graph import Fabric

Pairs = list[tuple[int, int]]


def steps_of(fabric: Fabric, members: tuple[int, ...]) -> tuple[Pairs, list[Pairs]]:
    """Pairs inside nodes, and those of every step between nodes: each rank sends to one other and gets from one."""
    nodes = nodes_of(fabric, members)
    n, k = len(nodes), len(nodes[0])
    inside = [(a, b) for node in nodes for a in node for b in node if a != b]
    across = [[(rank, nodes[(number + distance) % n][(place + turn) % k])
               for number, node in enumerate(nodes) for place, rank in enumerate(node)]
              for distance in range(1, n) for turn in range(k)]
    return inside, across


def all_to_all(call: CollectiveCall) -> tuple[Phase, ...]:
    """The steps, each of them a phase; the first one bears the start-up."""
    if call.empty:
        return call.waited()
    fabric, engine = call.messages.fabric, call.engine
    inside, across = steps_of(fabric, call.members)
    first, *others = across or [[]]
    lowered = partial(_uneven if call.collective.sizes else _even, call)

    def step_s(pairs: Pairs) -> float:
        return engine.messages_per_step * max(fabric.route(*pair).latency_s for pair in pairs)

    start = lowered(inside, "all_to_all") + lowered(first, "send")
    return Phase(call.latency_s, start), *(Phase(step_s(pairs), lowered(pairs, "send")) for pairs in others)


def _even(call: CollectiveCall, pairs: Pairs, curve: str) -> tuple[Transfer, ...]:
    """Messages of one size, copied into buffers and out of them, in lock-step, at the rates of a curve."""
    if not pairs:
        return ()
    engine, size = call.engine, call.collective.bytes_per_pair
    copied = 2 * size * sum(source == pairs[0][0] for source, _ in pairs)
    return (together(call.messages.fabric, engine, pairs, size, engine.rate_bytes_per_s(curve, size), copied),)


def _uneven(call: CollectiveCall, pairs: Pairs, curve: str) -> tuple[Transfer, ...]:
    """Messages of the sizes of a table, one by one, at the rates of a curve."""
    sizes, engine = call.collective.sizes, call.engine
    place = {rank: number for number, rank in enumerate(call.members)}
    sized = [(a, b, sizes[place[a]][place[b]]) for a, b in pairs]
    each = sum(a == pairs[0][0] for a, _ in pairs) if pairs else 1  # messages of a sender in this step
    return call.messages.each([one for one in sized if one[2]], curve, engine, engine.share / each)
