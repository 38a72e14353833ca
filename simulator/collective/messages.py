"""Messages between ranks as transfers on one fabric: one by one, or all of one way through it in lock-step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from simulator.collective.transfer import CapacityKey, Phase, Transfer, memory_per_byte
from simulator.fabric.crossings import Way, crossings, way_of
from simulator.fabric.graph import Edge, Fabric
from simulator.program.task import Collective
from simulator.program.world import Groups
from simulator.spec.machine import CollectiveSpec


class Messages:
    """Makes the transfers of messages on one fabric.

    mode: "pairwise" for messages one by one, where "auto" and "classes" put together those of one way. groups: all
    there are, who may share links between dies.
    """

    def __init__(self, fabric: Fabric, mode: str, groups: Groups | None) -> None:
        self.fabric, self.mode = fabric, mode
        alone = {rank: -1 - rank for rank in range(fabric.ranks)}  # where they are in no group of a name
        self.partitions = [alone | {rank: number for number, members in enumerate(instances) for rank in members}
                           for instances in (groups or {}).values()
                           if len(instances[0]) < fabric.ranks]
        self._crossings = cache(partial(crossings, fabric, sharers=self._sharers))
        self._pools: dict[tuple, list[CapacityKey]] = {}
        self._links: dict[Edge, CapacityKey] = {}
        self._port = lru_cache(4096)(lambda *key: key)  # one object for all that are equal
        self.all_pairs = cache(self._all_pairs)
        self._crossed = cache(self._crossing)

    def latency_s(self, engine: CollectiveSpec, members: tuple[int, ...]) -> float:
        """From the meeting of the members to the first byte at the one who is furthest away."""
        return engine.startup_s(len(members)) + self._crossings(members)[1]

    def pair(self, source: int, target: int, size: int, memory: float, rate: float, weight: float) -> Transfer:
        """One message; `memory`: bytes through HBM and L2 at each end."""
        moved, crossed = round(memory), self._crossed(source, target)
        keys = (self._port("out", source, rate), self._port("in", target, rate), *crossed)
        sizes = (size, size, moved, moved, moved, moved, *[size] * (len(crossed) - 4))
        return Transfer(size, keys, sizes, (source, target), weight)

    def _crossing(self, source: int, target: int) -> tuple[CapacityKey, ...]:
        """HBM and L2 of both ends, and the links between them."""
        pools = (self._pool(pool)[rank] for rank in (source, target) for pool in ("hbm", "l2"))
        return *pools, *map(self._link, self.fabric.route(source, target).edges)

    def each(self, sized: list[tuple[int, int, int]], curve: str, engine: CollectiveSpec,
             weight: float) -> tuple[Transfer, ...]:
        """One transfer for each (sender, receiver, bytes), at the rate of their mean size."""
        rate = engine.rate_bytes_per_s(curve, sum(size for _, _, size in sized) / max(len(sized), 1))
        ends = memory_per_byte(engine)
        return tuple(self.pair(a, b, size, size * ends, rate, weight) for a, b, size in sized)

    def _all_pairs(self, members: tuple[int, ...], size: int, ends: int, rate: float,
                   weight: float) -> tuple[Transfer, ...]:
        """`size` bytes from each to each, which load the memory at both ends with `ends` bytes."""
        if self.mode == "pairwise":
            pairs, each = ((a, b) for a in members for b in members if a != b), weight / (len(members) - 1)
            return tuple(self.pair(a, b, size, ends, rate, each) for a, b in pairs)
        return tuple(self._together(members, way, size, ends, rate, weight) for way in self._crossings(members)[0])

    def _together(self, members: tuple[int, ...], way: Way, size: int, ends: int, rate: float,
                  weight: float) -> Transfer:
        """All messages of one way, in lock-step. ends: bytes through memory at each end of each."""
        keys: list[CapacityKey] = []
        loads: list[int] = []
        ranks = [rank for rank in members if way.peers[rank]]
        out, hbm, l2 = self._pool("out", rate), self._pool("hbm"), self._pool("l2")
        sizes = {count: size * count for count in {*way.peers.values(), *way.links.values()}}
        moved = {peers: 2 * peers * ends for peers in sizes}
        for rank in ranks:
            peers = way.peers[rank]
            keys += out[rank], hbm[rank], l2[rank]
            loads += sizes[peers], moved[peers], moved[peers]
        keys += map(self._link, way.links)
        loads += map(sizes.__getitem__, way.links.values())
        most = max(way.peers.values())
        return Transfer(size * most, tuple(keys), tuple(loads), tuple(ranks), weight * (most / (len(members) - 1)))

    def merged(self, pairs: list[Transfer], end: int, weights: dict[int, float]) -> list[Transfer]:
        """One transfer per way of each sender (end 0) or receiver (end 1): its messages move in proportion."""
        classes: dict[tuple, list[Transfer]] = {}
        whole: Counter[int] = Counter()
        fabric = self.fabric
        one_way = fabric.whole and len(set(fabric.ways)) == 1 and fabric.spec.fabric[0].kind == "switch"
        for pair in pairs:
            way = None if one_way else way_of(fabric, fabric.route(*pair.ranks), self._sharers, *pair.ranks)
            classes.setdefault((pair.ranks[end], way), []).append(pair)
            whole[pair.ranks[end]] += pair.size_bytes
        merged = []
        for (rank, _), messages in classes.items():
            loads: Counter[CapacityKey] = Counter()
            for message in messages:
                loads.update(dict(zip(message.keys, message.moved_bytes, strict=True)))
            size = sum(message.size_bytes for message in messages)
            ranks = tuple(dict.fromkeys(rank for message in messages for rank in message.ranks))
            merged.append(Transfer.of(size, loads.items(), ranks, weights[rank] * (size / whole[rank])))
        return merged

    def _sharers(self, source: int, target: int) -> tuple[int, ...]:
        """The partitions of the ranks into groups that leave both together."""
        return tuple(number for number, of in enumerate(self.partitions) if of[source] == of[target])

    def _link(self, edge: Edge) -> CapacityKey:
        """The capacity of a link: one object for all that are equal."""
        key = self._links.get(edge)
        if key is None:
            key = self._links[edge] = ("link", *edge)
        return key

    def _pool(self, kind: str, *rate: float) -> list[CapacityKey]:
        """The capacity of this kind of every rank: one object for all that are equal, of whom there may be millions."""
        if (kind, *rate) not in self._pools:
            self._pools[kind, *rate] = [(kind, rank, *rate) for rank in range(self.fabric.ranks)]
        return self._pools[kind, *rate]


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective to lower: who exchanges what, and which engine drives it.

    curve: the kind of collective whose rates it has. lower: the phases of another one among the same members, at the
    rates of a curve ("": its own).
    """

    messages: Messages
    engine: CollectiveSpec
    collective: Collective
    members: tuple[int, ...]
    curve: str
    lower: Callable[[Collective, str], tuple[Phase, ...]]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to move."""
        return not (self.collective.sizes or self.collective.bytes_per_pair)

    @property
    def latency_s(self) -> float:
        """What passes before its first byte moves."""
        return self.messages.latency_s(self.engine, self.members)

    def waited(self) -> tuple[Phase, ...]:
        """The latency, and nothing else: what is left where there is nothing to move."""
        return (Phase(self.latency_s, ()),)
