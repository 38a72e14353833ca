"""What the faults of a run become on its machine: rates that change, hosts that pause, ranks that are lost.

A link or HBM goes at a share of its rate, and what crosses a link that is cut goes on where it stood once it is back. A
clock changes compute of kernels, of those that are running too, and neither latencies nor memory. Of two faults of the
same at once the one that leaves less counts. A rank that is lost starts nothing any more; its memory and the links of
its die stand still. What only hosts and their network cards feel is in `live.faults`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf

from simulator import np
from simulator.collective.transfer import CapacityKey
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.fabric.level import DIE, die
from simulator.spec.faults import MOST_STRIKES, SHARES, Fault
from simulator.spec.levels import cut_links
from simulator.units import format_si, to_ps

CLOCK, HOST, LOST = "clock", "host", "lost"
"""Of a rank, beside capacities: its clock, when its host pauses, when it is lost."""
Schedule = tuple[tuple[int, float], ...]
"""(time in ps, share of the rate from then on) in order; of a host (time in ps, how long it pauses in ps)."""
STREAM = 11  # of a run's draws, beside those of routing, lengths and launches
NUMBER = re.compile(r"[0-9]{1,9}")
CARD = re.compile(r"rank(?P<rank>[0-9]{1,9})\.nic(?P<card>[0-9]{1,9})")


def schedules_of(faults: Sequence[Fault], fabric: Fabric, cards: bool = False) -> dict[CapacityKey, Schedule]:
    """Of capacities, and of ("clock", rank), ("host", rank) and ("lost", rank). cards: whether network cards are hosts'
    own, whose links are not the fabric's.

    InputError names a fault that strikes nothing of this machine, and what there is, and one that has yet to be drawn.
    """
    held: dict[CapacityKey, list[Fault]] = defaultdict(list)  # what is held back, and by what
    for fault in faults:
        if fault.mean_s:
            raise InputError(f"fault '{fault}': its times are drawn, over the run as it is without them: braid run")
        for key in _held(fault, fabric, cards):
            held[key].append(fault)
    return {**{key: over_time(those) for key, those in held.items()}, **_pauses(faults, fabric),
            **_losses(faults, fabric)}


def _pauses(faults: Iterable[Fault], fabric: Fabric) -> dict[CapacityKey, Schedule]:
    found: dict[CapacityKey, list[tuple[int, float]]] = defaultdict(list)
    for fault in faults:
        if fault.what == "host":
            for rank in ranks_of(fault, fabric):
                found[HOST, rank].append((to_ps(fault.at_s), to_ps(fault.for_s)))
    return {key: tuple(sorted(times)) for key, times in found.items()}


def _losses(faults: Iterable[Fault], fabric: Fabric) -> dict[CapacityKey, Schedule]:
    lost: dict[CapacityKey, Schedule] = {}
    for fault in faults:
        if fault.effect == "lost":
            if fault.for_s < inf:
                raise InputError(f"fault '{fault}': a lost {fault.what} does not come back in a run; leave out 'for'")
            for rank in ranks_of(fault, fabric):
                lost[LOST, rank] = min(((to_ps(fault.at_s), 0.0),), lost.get((LOST, rank), ((to_ps(fault.at_s), 0.0),)))
    return lost


def ranks_of(fault: Fault, fabric: Fabric) -> list[int]:
    """The ranks that a fault of a rank, its host, its proxy or its node strikes; InputError: there is none."""
    size = fabric.spec.node_dies if fault.what == "node" else 1
    count = -(-fabric.ranks // size)
    if not NUMBER.fullmatch(fault.name) or int(fault.name) >= count:
        kind = "nodes" if fault.what == "node" else "ranks"
        raise InputError(f"fault '{fault}' strikes nobody: {kind} are 0 to {count - 1}")
    first = int(fault.name) * size
    return [*range(first, min(first + size, fabric.ranks))]


def card_of(fault: Fault) -> tuple[int, int] | None:
    """(rank, number) of the network card whose link a fault strikes; None for another link."""
    found = CARD.fullmatch(fault.name) if fault.what == "link" else None
    return (int(found["rank"]), int(found["card"])) if found else None


def drawn(faults: Iterable[Fault], fabric: Fabric, end_s: float, seed: int) -> tuple[Fault, ...]:
    """The faults themselves, and of those that strike about every so often the strikes until `end_s`.

    Times between strikes are exponential; a "*" of a name is drawn evenly for each strike, of a rank, a node or a card.
    """
    random = np.random.default_rng((seed, STREAM))
    found: list[Fault] = []
    for fault in faults:
        at_s = random.exponential(fault.mean_s) if fault.mean_s else inf
        if not fault.mean_s:
            found.append(replace(fault, name=_drawn_name(fault, fabric, random)))
        struck = len(found) + MOST_STRIKES
        while at_s < end_s:
            if len(found) == struck:
                raise InputError(f"fault '{fault}': it would strike more than {MOST_STRIKES:,} times in a run of "
                                 f"{format_si(end_s, 's')}; write a longer mean time")
            found.append(replace(fault, at_s=at_s, mean_s=0.0, name=_drawn_name(fault, fabric, random)))
            at_s += random.exponential(fault.mean_s)
    return tuple(found)


def _drawn_name(fault: Fault, fabric: Fabric, random: np.random.Generator) -> str:
    """With a number for each "*": the first is of a rank or a node, the second of a card."""
    nic = fabric.spec.nic
    counts = [-(-fabric.ranks // fabric.spec.node_dies) if fault.what == "node" else fabric.ranks,
              nic.per_die.count if nic is not None else 1]  # fmt: skip
    name = fault.name
    if name.count("*") > len(counts):
        raise InputError(f"fault '{fault}': a '*' stands for a rank or node, and a second one for a card")
    for count in counts:
        if "*" in name:
            name = name.replace("*", str(int(random.integers(count))), 1)
    return name


def _held(fault: Fault, fabric: Fabric, cards: bool) -> Iterator[CapacityKey]:
    """What goes at a share of its rate."""
    if fault.what == "engine":
        raise InputError(f"fault '{fault}': a run has no engines, a service has: braid serve")
    if fault.what == "proxy" and not cards:
        raise InputError(f"fault '{fault}' strikes nobody: no proxy thread posts writes in this run")
    if fault.what == "link":
        if card_of(fault) is None:
            yield from _links(fault, fabric)
        elif not cards:
            yield from _port(fault, fabric)
    elif fault.effect != "paused":
        for rank in ranks_of(fault, fabric):
            if fault.effect != "lost":
                yield fault.effect, rank
                continue
            yield from (("hbm", rank), ("l2", rank))
            yield from (("link", *edge) for other in _joined(rank, fabric)
                        for edge in ((die(rank), other), (other, die(rank))))  # fmt: skip


def _links(fault: Fault, fabric: Fabric) -> Iterator[CapacityKey]:
    """The directions of a link as in a trace."""
    try:
        edges = [edge for link in cut_links(fault.name) for edge in link.edges]
    except ValueError as error:
        raise InputError(f"fault '{fault}': {error}; or rank3.nic0") from None
    for edge in edges:
        if edge not in fabric.graph.edges:
            near = sorted(fabric.graph[edge[0]]) if edge[0] in fabric.graph else []
            hint = f"; {edge[0]} has links to {', '.join(near)}" if near else ""
            raise InputError(f"fault '{fault}' strikes nobody: there is no link from '{edge[0]}' to '{edge[1]}'{hint}")
        yield "link", *edge


def _joined(rank: int, fabric: Fabric) -> Sequence[str]:
    """What the die of a rank has links to, from the inside out."""
    edges = fabric.graph[die(rank)]
    return sorted(edges, key=lambda other: (fabric.by_level[edges[other]["level"]].order, other))


def _port(fault: Fault, fabric: Fabric) -> Iterator[CapacityKey]:
    """Both directions of a die's link to a switch: rank3.nic0 is the one furthest out that it has in this run."""
    rank, card = card_of(fault) or (0, 0)
    if rank >= fabric.ranks:
        raise InputError(f"fault '{fault}' strikes nobody: ranks are 0 to {fabric.ranks - 1}")
    joined = _joined(rank, fabric)
    ports = [other for other in reversed(joined) if not other.startswith(DIE)]
    if card >= len(ports):
        links = ", ".join(f"{die(rank)} - {other}" for other in joined)
        raise InputError(f"fault '{fault}' strikes nobody: rank {rank} has {len(ports)} links to switches; its links "
                         f"are {links}")
    yield from (("link", die(rank), ports[card]), ("link", ports[card], die(rank)))


def over_time(faults: Sequence[Fault]) -> Schedule:
    """Of what these faults hold back."""
    held = [interval for fault in faults for interval in _intervals(fault)]
    times_s = sorted({time_s for from_s, to_s, _ in held for time_s in (from_s, to_s) if time_s < inf})
    begun = iter(sorted(held))
    coming = next(begun, None)
    at_work: list[tuple[float, float]] = []  # a heap of (share, to)
    found = []
    for at_s in times_s:
        while coming is not None and coming[0] <= at_s:
            heappush(at_work, (coming[2], coming[1]))
            coming = next(begun, None)
        while at_work and at_work[0][1] <= at_s:
            heappop(at_work)
        found.append((to_ps(at_s), at_work[0][0] if at_work else 1.0))
    return tuple(found)


def _intervals(fault: Fault) -> Iterator[tuple[float, float, float]]:
    """(from, to, share that is left)."""
    left = fault.value if fault.effect in SHARES else 0.0
    if fault.effect != "flaps":
        yield fault.at_s, fault.end_s, left
        return
    for number in range(int(fault.for_s / (2 * fault.value)) + 1):
        at_s = fault.at_s + 2 * number * fault.value
        if at_s < fault.end_s:
            yield at_s, min(at_s + fault.value, fault.end_s), left
