"""Collectives as phases of transfers: who sends how much over which link, and what it moves through memory.

A balanced exchange is lowered to **one transfer for all ranks** (they run in lock-step) for each way through the fabric
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

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from simulator.collective.hierarchical import backwards, hierarchical
from simulator.collective.one_sided import ONE_SIDED, lowered
from simulator.collective.pairwise import even, pairwise
from simulator.collective.ring import ring
from simulator.collective.transfer import Key, Phase, Transfer
from simulator.errors import InputError, NoSuchName
from simulator.fabric.crossings import Way, crossings, way_of
from simulator.paths import did_you_mean
from simulator.program.task import Collective
from simulator.units import to_ps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from simulator.fabric.graph import Edge, Fabric
    from simulator.program.world import Groups
    from simulator.spec.machine import CollectiveSpec

__all__ = ["Key", "Lowering", "Phase", "Transfer"]

Sizes = tuple[tuple[int, ...], ...]


class Lowering:
    """Lowers collectives on one fabric; results are cached by (collective, members).

    mode: "auto" (balanced exchanges as one class, uneven ones pair by pair), "classes" (uneven ones by sender) or
    "pairwise" (everything pair by pair). groups: all there are, who may share links between dies.
    """

    def __init__(
        self, fabric: Fabric, engines: dict[str, CollectiveSpec], mode: str = "auto", groups: Groups | None = None
    ) -> None:
        self.fabric, self.engines, self.mode = fabric, engines, mode
        self.partitions = [
            {rank: number for number, members in enumerate(instances) for rank in members}
            for instances in (groups or {}).values()
            if len(instances) > 1
        ]
        self._crossings = cache(partial(crossings, fabric, sharers=self._sharers))
        self._pools: dict[tuple, list[Key]] = {}
        self._links: dict[Edge, Key] = {}
        self._balanced = cache(self._all_pairs)
        self._crossed = cache(self._crossing)
        self.lower = cache(self._lower)

    def _lower(self, collective: Collective, members: tuple[int, ...], ladder: str = "") -> tuple[Phase, ...]:
        """The phases of `collective` among `members` (global ranks, in group order).

        ladder: the kind whose rates they have, if it is another one than that of `collective`.
        """
        engine = engine_of(collective, self.engines)
        n = len(members)
        if n == 1:
            return (Phase(0.0, ()),)
        _check_reach(self.fabric, collective, engine, members)
        if collective.kind == "send":
            return (self._message(collective, *members),)
        if collective.kind in ONE_SIDED:
            return lowered(self.fabric, engine, collective, members)
        kind = collective.kind
        if kind == "barrier":
            return (Phase(self._latency_s(engine, members), ()),)
        if kind == "all_reduce":
            own = kind if engine.ladder.all_reduce else ""
            return tuple(phase for part in _parts(collective, n) for phase in self.lower(part, members, own))
        if not (collective.sizes or collective.bytes_per_pair):
            return (Phase(self._latency_s(engine, members), ()),)
        if collective.algorithm == "pairwise" and kind == "all_to_all":
            return self._in_steps(collective, members, engine)
        if collective.sizes:
            return (self._uneven(collective, members, engine),)
        if collective.algorithm == "hierarchical" and kind in ("all_gather", "reduce_scatter"):
            latency_s = self._latency_s(engine, members)
            pieces = hierarchical(self.fabric, engine, ladder or kind, members, collective.bytes_per_pair, latency_s)
            return pieces if kind == "all_gather" else backwards(pieces)
        if collective.algorithm == "ring" and kind in ("all_gather", "reduce_scatter"):
            latency_s = self._latency_s(engine, members)
            return (ring(self.fabric, engine, ladder or kind, members, collective.bytes_per_pair, latency_s),)
        size = collective.bytes_per_pair
        copied = (2 * (n - 1) if kind == "all_to_all" else n + 1) * size  # into and out of buffers
        # whole bytes at each end of each message, so that one class and its messages agree to the byte
        ends = round((size * engine.transfer_bytes.si + copied / (n - 1) * engine.copy_bytes.si) / 2.0)
        rate = engine.rate_bytes_per_s(ladder or kind, size)
        transfers = self._balanced(members, size, ends, rate, engine.weight.si)
        return (Phase(self._latency_s(engine, members), transfers),)

    def _in_steps(
        self, collective: Collective, members: tuple[int, ...], engine: CollectiveSpec
    ) -> tuple[Phase, ...]:
        """An All2All that goes from peer to peer between nodes."""
        place = {rank: number for number, rank in enumerate(members)}

        def lowered(pairs: list[tuple[int, int]], ladder: str) -> tuple[Transfer, ...]:
            if not collective.sizes:
                return even(self.fabric, engine, pairs, collective.bytes_per_pair, ladder)
            sized = [(a, b, collective.sizes[place[a]][place[b]]) for a, b in pairs]
            each = sum(a == pairs[0][0] for a, _ in pairs) if pairs else 1  # messages of a sender in this step
            return self._messages([one for one in sized if one[2]], ladder, engine, engine.weight.si / each)

        return pairwise(self.fabric, engine, members, self._latency_s(engine, members), lowered)

    def _messages(
        self, sized: list[tuple[int, int, int]], ladder: str, engine: CollectiveSpec, weight: float
    ) -> tuple[Transfer, ...]:
        """One transfer for each (sender, receiver, bytes), at the rate of their mean size."""
        rate = engine.rate_bytes_per_s(ladder, sum(size for _, _, size in sized) / max(len(sized), 1))
        ends = engine.transfer_bytes.si / 2.0 + engine.copy_bytes.si
        return tuple(self._pair(a, b, size, size * ends, rate, weight) for a, b, size in sized)

    def _all_pairs(
        self, members: tuple[int, ...], size: int, ends: int, rate: float, weight: float
    ) -> tuple[Transfer, ...]:
        """`size` bytes from each to each, which load the memory at both ends with `ends` bytes."""
        if self.mode == "pairwise":
            pairs, each = ((a, b) for a in members for b in members if a != b), weight / (len(members) - 1)
            return tuple(self._pair(a, b, size, ends, rate, each) for a, b in pairs)
        return tuple(self._together(members, way, size, ends, rate, weight) for way in self._crossings(members)[0])

    def _together(
        self, members: tuple[int, ...], way: Way, size: int, ends: int, rate: float, weight: float
    ) -> Transfer:
        """All messages of one way, in lock-step. ends: bytes through memory at each end of each."""
        loads: list[tuple[Key, int]] = []
        ranks = [rank for rank in members if way.peers[rank]]
        out, hbm, l2 = self._pool("out", rate), self._pool("hbm"), self._pool("l2")
        sizes = {count: size * count for count in {*way.peers.values(), *way.links.values()}}
        moved = {peers: 2 * peers * ends for peers in sizes}
        for rank in ranks:
            peers = way.peers[rank]
            loads += [(out[rank], sizes[peers]), (hbm[rank], moved[peers]), (l2[rank], moved[peers])]
        links = self._links
        for edge, count in way.links.items():
            key = links.get(edge)
            if key is None:
                key = links[edge] = ("link", *edge)
            loads.append((key, sizes[count]))
        most = max(way.peers.values())
        return Transfer(size * most, tuple(loads), tuple(ranks), weight * (most / (len(members) - 1)))

    def _sharers(self, source: int, target: int) -> tuple[int, ...]:
        """The partitions of the ranks into groups that leave both together."""
        return tuple(number for number, of in enumerate(self.partitions) if of[source] == of[target])

    def _pool(self, kind: str, *rate: float) -> list[Key]:
        """The capacity of this kind of every rank: one object for all that are equal, of whom there may be millions."""
        if (kind, *rate) not in self._pools:
            self._pools[kind, *rate] = [(kind, rank, *rate) for rank in range(self.fabric.ranks)]
        return self._pools[kind, *rate]

    def _uneven(self, collective: Collective, members: tuple[int, ...], engine: CollectiveSpec) -> Phase:
        """An All2All whose pairs differ; where the messages of each sender, or receiver, are alike, a class each."""
        sizes, n = collective.sizes, len(members)
        if len(sizes) != n or any(len(row) != n for row in sizes):
            raise ValueError(f"{collective.kind} in group '{collective.group}' of {n}: sizes must be {n} x {n}")
        pairs, weight = [(i, j) for i in range(n) for j in range(n) if i != j and sizes[i][j]], engine.weight.si
        sized = [(members[i], members[j], sizes[i][j]) for i, j in pairs]
        transfers = [*self._messages(sized, collective.kind, engine, weight / (n - 1))]
        if self.mode != "pairwise":
            if _alike(sizes):
                transfers = self._merged(transfers, 0, dict.fromkeys(members, weight))
            elif _alike(tuple(zip(*sizes, strict=True))):
                transfers = self._merged(transfers, 1, dict.fromkeys(members, weight))
            elif self.mode == "classes":
                total = sum(sizes[i][j] for i, j in pairs)
                sent = {members[i]: weight * n * (sum(sizes[i]) - sizes[i][i]) / max(total, 1) for i in range(n)}
                transfers = self._merged(transfers, 0, sent)
        return Phase(self._latency_s(engine, members), tuple(transfers))

    def _merged(self, pairs: list[Transfer], end: int, weights: dict[int, float]) -> list[Transfer]:
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
            loads: Counter[Key] = Counter()
            for message in messages:
                loads.update(dict(message.loads))
            size = sum(message.size_bytes for message in messages)
            ranks = tuple(dict.fromkeys(rank for message in messages for rank in message.ranks))
            merged.append(Transfer(size, tuple(loads.items()), ranks, weights[rank] * (size / whole[rank])))
        return merged

    def _pair(self, source: int, target: int, size: int, memory: float, rate: float, weight: float) -> Transfer:
        """One message; `memory`: bytes through HBM and L2 at each end."""
        moved = round(memory)
        pools, links = self._crossed(source, target)
        ports: tuple[Key, Key] = ("out", source, rate), ("in", target, rate)
        loads = *[(key, size) for key in ports], *[(key, moved) for key in pools], *[(key, size) for key in links]
        return Transfer(size, loads, (source, target), weight)

    def _crossing(self, source: int, target: int) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """HBM and L2 of both ends, and the links between them."""
        pools = tuple((pool, rank) for rank in (source, target) for pool in ("hbm", "l2"))
        return pools, tuple(("link", *edge) for edge in self.fabric.route(source, target).edges)

    def _message(self, collective: Collective, source: int, target: int) -> Phase:
        """A send and its recv."""
        engine, size = self.engines[collective.via], collective.bytes_per_pair
        memory = size * (engine.transfer_bytes.si / 2.0 + engine.copy_bytes.si)
        pair = self._pair(source, target, size, memory, engine.rate_bytes_per_s("send", size), engine.weight.si)
        return Phase(self._latency_s(engine, (source, target)), (pair,) if size else ())

    def _latency_s(self, engine: CollectiveSpec, members: tuple[int, ...]) -> float:
        start = engine.startup.si + engine.startup_per_peer.si * (len(members) - 1)
        return start + self._crossings(members)[1]


def _parts(all_reduce: Collective, members: int) -> tuple[Collective, ...]:
    """What an AllReduce is made of: a ReduceScatter and an AllGather of shards, or in one shot everybody's buffer."""
    if all_reduce.algorithm == "one_shot":
        return (replace(all_reduce, kind="all_gather", algorithm="direct"),)
    shard = -(-all_reduce.bytes_per_pair // members)
    return tuple(replace(all_reduce, kind=kind, bytes_per_pair=shard) for kind in ("reduce_scatter", "all_gather"))


def _check_reach(fabric: Fabric, collective: Collective, engine: CollectiveSpec, members: Sequence[int]) -> None:
    level = engine.within
    if level is not None and len({fabric.instance(rank, level) for rank in members}) > 1:
        raise InputError(
            f"engine '{collective.via}' does not leave a {level}, and group '{collective.group}' has members in several"
        )


def engine_of(collective: Collective, engines: Mapping[str, CollectiveSpec]) -> CollectiveSpec:
    """The engine that drives a collective; NoSuchName with those there are if there is none of this name."""
    if collective.via not in engines:
        name, there = collective.via, sorted(engines)
        hint = did_you_mean(name, there)
        raise NoSuchName(name, f"no engine '{name}'{hint} for collectives: this machine has {', '.join(there)}")
    return engines[collective.via]


def alone_ps(
    phases: tuple[Phase, ...], ranks: Iterable[int], busy_ps: Callable[[int, Sequence[int]], int]
) -> dict[int, int]:
    """How long an exchange takes each rank with nobody else there, in ps: every latency, and the busiest capacity.

    Of the last phase only the transfers count that a rank waits for. Where messages differ it can take longer.
    busy_ps(before, numbers): what the busiest capacity needs for some transfers of the phase that has so many before.
    """
    before, alone_ps = 0, 0
    for phase in phases[:-1]:
        alone_ps += busy_ps(before, range(len(phase.transfers)))
        before += len(phase.transfers)
    alone_ps += sum(to_ps(phase.latency_s) for phase in phases)
    waits_for: dict[int, list[int]] = {rank: [] for rank in ranks}
    for number, transfer in enumerate(phases[-1].transfers):
        for rank in dict.fromkeys(transfer.ranks):
            if rank in waits_for:
                waits_for[rank].append(number)
    known: dict[tuple[int, ...], int] = {}
    for numbers in map(tuple, waits_for.values()):
        if numbers not in known:
            known[numbers] = busy_ps(before, numbers)
    return {rank: alone_ps + known[tuple(numbers)] for rank, numbers in waits_for.items()}


def busy_of(transfers: Sequence[Transfer], rate_of: Callable[[Key], float]) -> Callable[[int, Sequence[int]], int]:
    """busy(before, numbers), in ps: what the busiest capacity needs for transfers before + number of these."""
    import numpy as np

    places: dict[Key, int] = {}
    place = np.array([places.setdefault(key, len(places)) for one in transfers for key, _ in one.loads], dtype=np.int64)
    loads = np.array([load for one in transfers for _, load in one.loads], dtype=float)
    rates = np.array([rate_of(key) for key in places])
    ends = np.cumsum([0, *(len(one.loads) for one in transfers)]).tolist()

    def busy(before: int, numbers: Sequence[int]) -> int:
        rows = [slice(ends[before + number], ends[before + number + 1]) for number in numbers]
        if not rows:
            return 0
        moved = np.bincount(np.concatenate([place[row] for row in rows]), np.concatenate([loads[row] for row in rows]))
        return to_ps(float((moved / rates[: len(moved)]).max(initial=0.0)))

    return busy


def _alike(sizes: Sizes) -> bool:
    """Whether every row has one size, whatever the diagonal says."""
    return all(len({size for j, size in enumerate(row) if j != i}) <= 1 for i, row in enumerate(sizes))
