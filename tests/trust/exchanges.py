"""What collectives move, message by message: a plain second writing of `simulator.collective`.

Routes come from the fabric and numbers of engines from the machine; everything else is written here from the texts.
A *load* is {capacity: bytes}; capacities are ("hbm", rank), ("l2", rank), ("link", from, to), and the ports ("out" or
"in", rank, rate) of an engine that moves no more than so many bytes/s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from simulator.fabric.graph import Fabric
from simulator.program.task import Collective
from simulator.program.world import Groups
from simulator.spec.machine import CollectiveSpec

Key = tuple
Pair = tuple[int, int]
Members = tuple[int, ...]


@dataclass(frozen=True)
class Moved:
    """Bytes on their way: so many of its own, what they load, and the ranks that wait for them."""

    size: int
    loads: dict[Key, int]
    ranks: Members
    weight: float


Steps = list[tuple[float, list[Moved]]]
"""One after the other: a latency in seconds, and what moves after it."""


class Exchanges:
    """Exchanges on one fabric. together: whether messages of a balanced exchange that take the same way move as one."""

    def __init__(self, fabric: Fabric, engines: dict[str, CollectiveSpec], groups: Groups, together: bool) -> None:
        self.fabric, self.engines, self.groups, self.together = fabric, engines, groups, together

    def steps(self, one: Collective, members: Members, eager: bool, curve: str = "") -> Steps:
        """Of one exchange; eager: whether a host launches it task by task; curve: the kind whose rates it has."""
        if len(members) == 1:
            return [(0.0, [])]
        engine = self.engines[one.via]
        if eager and engine.startup_eager is not None:
            engine = engine.model_copy(update={"startup": engine.startup_eager})
        first_s = engine.startup_s(len(members)) + self.furthest_s(members)
        if one.kind == "all_reduce" and one.algorithm != "nvls":
            curve = "all_reduce" if engine.ladder.all_reduce else ""
            return [step for part in _parts(one, len(members)) for step in self.steps(part, members, eager, curve)]
        if one.kind == "barrier" or not (one.bytes_per_pair or one.sizes):
            return [(first_s, [])]
        lowered = getattr(self, f"_{one.algorithm}")(one, members, engine, curve or one.kind)
        (later_s, moved), *others = lowered
        return [(first_s + later_s, moved), *others]

    def furthest_s(self, members: Members) -> float:
        """Latency of the longest way between two members."""
        return max((self.fabric.route(a, b).latency_s for a, b in permutations(members, 2)), default=0.0)

    def _direct(self, one: Collective, members: Members, engine: CollectiveSpec, curve: str) -> Steps:
        if one.kind in ("send", "recv"):
            return [(0.0, [self._message((*members,), one.bytes_per_pair, engine, "send", engine.share)])]
        if one.sizes:
            return [(0.0, self._uneven(one, members, engine))]
        size, peers, staging = one.bytes_per_pair, len(members) - 1, engine.staging_bytes
        copies = 2 * peers if one.kind == "all_to_all" else peers + 2  # in and out of buffers, or one in and all out
        memory = round((size * engine.transfer_bytes.si + copies * size / peers * staging) / 2.0)
        rate, share = engine.rate_bytes_per_s(curve, size), engine.share
        pairs = list(permutations(members, 2))
        if not self.together:
            return [(0.0, [self._pair(pair, size, memory, rate, share / peers) for pair in pairs])]
        moved = []
        for same_way in self._by_way(pairs):
            messages = [self._pair(pair, size, memory, rate, 0.0) for pair in same_way]
            sent = Counter(source for source, _ in same_way)
            most, loads = max(sent.values()), _sum(message.loads for message in messages)
            loads = {key: moved for key, moved in loads.items() if key[0] != "in"}  # as much as goes out
            moved.append(Moved(size * most, loads, tuple(sent), share * (most / peers)))
        return [(0.0, moved)]

    def _by_way(self, pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
        """Pairs that are held back by the same kind of link; of links between two dies, with the same other users."""
        ways: dict[object, list[Pair]] = {}
        for pair in pairs:
            route = self.fabric.route(*pair)
            users = self._users(pair) if len(route.edges) == 1 else ()
            ways.setdefault((self.fabric.way(route), users), []).append(pair)
        yield from ways.values()

    def _users(self, pair: Pair) -> tuple[str, ...]:
        """Names of groups that hold both, but of those that hold all ranks."""
        return tuple(name for name, instances in self.groups.items()
                     if len(instances[0]) < self.fabric.ranks and any(set(pair) <= set(one) for one in instances))

    def _uneven(self, one: Collective, members: Members, engine: CollectiveSpec) -> list[Moved]:
        n, share = len(members), engine.share
        sized = {(members[i], members[j]): one.sizes[i][j] for i, j in permutations(range(n), 2) if one.sizes[i][j]}
        rate = engine.rate_bytes_per_s("all_to_all", sum(sized.values()) / max(len(sized), 1))
        memory = engine.transfer_bytes.si / 2.0 + engine.staging_bytes
        moved = {pair: self._pair(pair, size, round(size * memory), rate, share / (n - 1))
                 for pair, size in sized.items()}
        for end in (0, 1) if self.together else ():
            by_rank = [[one.sizes[i][j] if end == 0 else one.sizes[j][i] for j in range(n) if j != i] for i in range(n)]
            if all(len(set(sizes)) <= 1 for sizes in by_rank):
                return self._merged(moved, end, share)
        return list(moved.values())

    def _merged(self, moved: dict[Pair, Moved], end: int, share: float) -> list[Moved]:
        """The messages of each rank and way as one, in proportion to their bytes."""
        merged = []
        for rank in dict.fromkeys(pair[end] for pair in moved):
            own = [pair for pair in moved if pair[end] == rank]
            whole = sum(moved[pair].size for pair in own)
            for same_way in self._by_way(own):
                size = sum(moved[pair].size for pair in same_way)
                ranks = tuple(dict.fromkeys(one for pair in same_way for one in pair))
                loads = _sum(moved[pair].loads for pair in same_way)
                merged.append(Moved(size, loads, ranks, share * (size / whole)))
        return merged

    def _message(self, pair: Members, size: int, engine: CollectiveSpec, curve: str, weight: float,
                 rate: float | None = None) -> Moved:
        memory = engine.transfer_bytes.si / 2.0 + engine.staging_bytes
        rate = engine.rate_bytes_per_s(curve, size) if rate is None else rate
        return self._pair((pair[0], pair[1]), size, round(size * memory), rate, weight)

    def _pair(self, pair: Pair, size: int, memory: int, rate: float, weight: float) -> Moved:
        """One message; memory: bytes through HBM and L2 at each end."""
        loads: dict[Key, int] = {("out", pair[0], rate): size, ("in", pair[1], rate): size}
        for rank in pair:
            loads |= {("hbm", rank): memory, ("l2", rank): memory}
        loads |= {("link", *edge): size for edge in self.fabric.route(*pair).edges}
        return Moved(size, loads, pair, weight)

    # over nodes -----------------------------------------------------------------------------------------------------

    def _nodes(self, members: Members) -> list[list[int]]:
        inner = self.fabric.levels[0]
        numbers = dict.fromkeys(self.fabric.instance(rank, inner) for rank in members)
        return [[rank for rank in members if self.fabric.instance(rank, inner) == number] for number in numbers]

    def _lock_step(self, engine: CollectiveSpec, ranks: Sequence[int], messages: Iterable[tuple[Pair, int]], sent: int,
                   rate: float, copied: int) -> Moved:
        """All at once, of which each rank sends and stages so many bytes."""
        memory = round(sent * engine.transfer_bytes.si + copied * engine.staging_bytes)
        loads: Counter[Key] = Counter()
        for rank in ranks:
            loads.update({("out", rank, rate): sent, ("hbm", rank): memory, ("l2", rank): memory})
        for pair, size in messages:
            for edge in self.fabric.route(*pair).edges:
                loads["link", *edge] += size
        return Moved(sent, dict(loads), tuple(ranks), engine.share)

    def _ring(self, one: Collective, members: Members, engine: CollectiveSpec, curve: str) -> Steps:
        """Rank k of node m passes (k - 1) / k of its bytes on to rank k + 1, and the rest to rank k of node m + 1."""
        n, nodes, shard = len(members), self._nodes(members), one.bytes_per_pair
        k, sent = len(nodes[0]), (n - 1) * shard
        inside = sent if len(nodes) == 1 else sent * (k - 1) // k
        messages = [((rank, node[(place + 1) % k]), inside) for node in nodes for place, rank in enumerate(node)]
        messages += [((rank, nodes[(number + 1) % len(nodes)][place]), sent - inside)
                     for number, node in enumerate(nodes) for place, rank in enumerate(node)]
        steps_s = 0.0
        if engine.step_latencies is not None:
            weighted = sum(size * self.fabric.route(*pair).latency_s for pair, size in messages if size)
            steps_s = (n - 1) * engine.step_latencies.count * weighted / sum(size for _, size in messages)
        rate = engine.rate_bytes_per_s(curve, shard)
        return [(steps_s, [self._lock_step(engine, members, messages, sent, rate, (n + 1) * shard)])]

    def _hierarchical(self, one: Collective, members: Members, engine: CollectiveSpec, curve: str) -> Steps:
        """Step s: what came is spread in the node, and the own shard goes to the node s + 1 further; or backwards."""
        nodes, shard = self._nodes(members), one.bytes_per_pair
        n, k = len(nodes), len(nodes[0])
        inside = [pair for node in nodes for pair in permutations(node, 2)]
        steps: list[list[Moved]] = []
        for step in range(n):
            moved = []
            if inside:
                rate, copied = engine.rate_bytes_per_s(curve, n * shard), shard * (k + (step == 0))
                moved.append(self._lock_step(engine, members, [(pair, shard) for pair in inside], (k - 1) * shard, rate,
                                             copied))
            if step < n - 1:
                pairs = self._across(nodes, step + 1, 0)
                rate = engine.rate_bytes_per_s("send", shard)
                moved.append(self._lock_step(engine, members, [(pair, shard) for pair in pairs], shard, rate, 0))
            steps.append(moved)
        if one.kind == "reduce_scatter":
            steps.reverse()
        hops = [self.fabric.route(*pair).latency_s for pair in [*inside[:1], *self._across(nodes, 1, 0)[:1]]]
        return [(engine.messages_per_step * max(hops) if number else 0.0, moved) for number, moved in enumerate(steps)]

    def _across(self, nodes: list[list[int]], distance: int, turn: int) -> list[Pair]:
        """From every rank to one of the node so much further, so many places further."""
        if len(nodes) == 1:
            return []
        return [(rank, nodes[(number + distance) % len(nodes)][(place + turn) % len(node)])
                for number, node in enumerate(nodes) for place, rank in enumerate(node)]

    def _pairwise(self, one: Collective, members: Members, engine: CollectiveSpec, _: str) -> Steps:
        """Inside nodes at once beside the first of the steps between nodes."""
        nodes = self._nodes(members)
        inside = [pair for node in nodes for pair in permutations(node, 2)]
        turns = [(distance, turn) for distance in range(1, len(nodes)) for turn in range(len(nodes[0]))]
        across = [self._across(nodes, *turn) for turn in turns]
        steps: Steps = []
        for number, pairs in enumerate(across or [[]]):
            moved = self._step(one, members, inside, engine, "all_to_all") if not number else []
            moved += self._step(one, members, pairs, engine, "send")
            hop_s = max((self.fabric.route(*pair).latency_s for pair in pairs), default=0.0)
            steps.append((engine.messages_per_step * hop_s if number else 0.0, moved))
        return steps

    def _step(self, one: Collective, members: Members, pairs: list[Pair], engine: CollectiveSpec,
              curve: str) -> list[Moved]:
        if not pairs:
            return []
        each = sum(source == pairs[0][0] for source, _ in pairs)  # messages of a rank
        if not one.sizes:
            size = one.bytes_per_pair
            rate = engine.rate_bytes_per_s(curve, size)
            return [self._lock_step(engine, list(dict.fromkeys(source for source, _ in pairs)),
                                    [(pair, size) for pair in pairs], each * size, rate, 2 * each * size)]
        place = {rank: number for number, rank in enumerate(members)}
        sized = [(pair, size) for pair in pairs if (size := one.sizes[place[pair[0]]][place[pair[1]]])]
        rate = engine.rate_bytes_per_s(curve, sum(size for _, size in sized) / max(len(sized), 1))
        return [self._message(pair, size, engine, curve, engine.share / each, rate) for pair, size in sized]

    def _nvls(self, one: Collective, members: Members, engine: CollectiveSpec, curve: str) -> Steps:
        """The switch reads the shards of all and writes the sums to all."""
        size, n = one.bytes_per_pair, len(members)
        sent, rate = size + -(-size // n), engine.rate_bytes_per_s(curve, size)
        memory = round(size * (engine.transfer_bytes.si + engine.staging_bytes))
        loads: dict[Key, int] = {}
        for rank, peer in zip(members, (*members[1:], members[0]), strict=True):
            up, down = self.fabric.route(rank, peer).edges[0], self.fabric.route(peer, rank).edges[-1]
            loads |= {("out", rank, rate): sent, ("hbm", rank): memory, ("l2", rank): memory,
                      ("link", *up): sent, ("link", *down): sent}
        return [(0.0, [Moved(sent, loads, members, engine.share)])]


def _parts(one: Collective, members: int) -> list[Collective]:
    """What an AllReduce is made of."""
    if one.algorithm == "one_shot":
        return [replace(one, kind="all_gather", algorithm="direct")]
    shard = -(-one.bytes_per_pair // members)
    return [replace(one, kind=kind, bytes_per_pair=shard) for kind in ("reduce_scatter", "all_gather")]


def _sum(loads: Iterable[dict[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for one in loads:
        total.update(one)
    return dict(total)
