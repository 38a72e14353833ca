"""AllGather and ReduceScatter around rings, as NCCL runs them: each rank passes on what it got to the next one.

All but one shard cross every edge of a ring. Over nodes, as many rings as a node has members share the bytes, and each
leaves a node by another member's link, so what crosses nodes is spread over all of them: per rank, with n members in
nodes of k and shards of M bytes, (n-1) M (k-1)/k go to a neighbour in the node and (n-1) M / k to one in the next node.

A shard takes n-1 steps, from neighbour to neighbour. Where the engine says what a step costs (`step_latencies`: asking,
writing and confirming are three), each takes so many latencies of its hop; where not, its start-up holds them.

Worked example: 4 nodes of 8, M = 1 MB: every rank puts 31 MB on the wire, of which 3.9 MB leave its node. Sent straight
to every rank it would be 24 MB. With hops of 0.5 us on average and three of them a step, the 31 steps take 46.5 us.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.collective.hierarchical import lock_step, nodes_of
from simulator.collective.messages import CollectiveCall
from simulator.collective.transfer import Phase


def ring(call: CollectiveCall) -> tuple[Phase, ...]:
    """All ranks in lock-step at the rate of the curve for a shard."""
    if call.empty:
        return call.waited()
    fabric, engine, members, shard = call.messages.fabric, call.engine, call.members, call.collective.bytes_per_pair
    n, nodes = len(members), nodes_of(fabric, members)
    k, sent = len(nodes[0]), (n - 1) * shard
    inside = sent if n == k else sent * (k - 1) // k
    messages = []
    for node, after in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        for place, rank in enumerate(node):
            messages += [(rank, node[(place + 1) % k], inside), (rank, after[place], sent - inside)]
    rate = engine.rate_bytes_per_s(call.curve, shard)
    latency_s = call.latency_s + (n - 1) * _step_s(call, messages)
    return (Phase(latency_s, (lock_step(fabric, engine, members, messages, sent, rate, (n + 1) * shard),)),)


def _step_s(call: CollectiveCall, messages: Sequence[tuple[int, int, int]]) -> float:
    """What a step takes beside its bytes: latencies of a hop, the mean over the bytes of all hops."""
    count, fabric = call.engine.step_latencies, call.messages.fabric
    if count is None:
        return 0.0
    total = sum(size * fabric.route(source, target).latency_s for source, target, size in messages if size)
    return count.count * total / sum(size for _, _, size in messages)
