"""One-sided exchanges: every rank writes into its peers' memory when it is ready, and later collects what was written.

A `put` starts when its rank is ready and ends when its own bytes have left; nobody is waited for. A `collect` ends when
the puts of all members have landed and this rank's own arriving bytes have drained through its port and memory: a rank
with more to do before its put makes the others wait there, and nowhere else. Puts and collects of a group meet by their
place in the program: the third collect collects the third put.

Bytes spread evenly over the other members. A put loads the sender's memory and its own ports; what arrives loads the
receiver's. The switches between must be non-blocking, so they never bind; where they are not, such an exchange is
refused. The engine moves at its rate times the share of its cores that the stream's partition leaves it.

Worked example: 4 ranks put 3 MB each at 1 GB/s, start-up 4 us, 1 us across. Rank 3 starts 10 ms late: the puts take
3.004 ms, and all four collect at 13.005 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from simulator.collective.transfer import Key, Phase, Transfer, memory_per_byte
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.collective.messages import Call
    from simulator.fabric.graph import Fabric
    from simulator.spec.machine import CollectiveSpec, LevelSpec

PUT, COLLECT = "put", "collect"
ONE_SIDED = (PUT, COLLECT)
OUT, IN = 0, 1  # the two sides of a put at a die
Keys = tuple[tuple[Key, int], ...]  # capacities, and the peers behind each of them
Port = tuple[tuple[str, str], tuple[str, str], int]  # edge out, edge in, peers behind it
P = ParamSpec("P")
R = TypeVar("R")
Asked = Callable[Concatenate["Fabric", P], R]


def _once(most: int) -> Callable[[Asked[P, R]], Asked[P, R]]:
    """A fabric answers once what it was asked lately, `most` times; its answers go with it."""

    def once(function: Asked[P, R]) -> Asked[P, R]:
        @wraps(function)
        def of(fabric: Fabric, *args: P.args, **named: P.kwargs) -> R:
            answers = fabric.answers.get(function)
            if answers is None:
                answers = fabric.answers[function] = lru_cache(maxsize=most)(partial(function, fabric))
            return answers(*args, **named)  # type: ignore[arg-type]

        return of

    return once


def collect(call: Call) -> tuple[Phase, ...]:
    """The latency of the last message."""
    return (Phase(latency_s(call.messages.fabric, call.members), ()),)


def put(call: Call) -> tuple[Phase, ...]:
    """What leaves every member, then what arrives at it."""
    fabric, engine, collective, members = call.messages.fabric, call.engine, call.collective, call.members
    costs = costs_of(engine)
    sizes = {OUT: collective.sent_bytes, IN: collective.received_bytes}
    leaving, arriving = (
        tuple(
            one
            for rank in members
            if (one := own_transfer(keys_of(fabric, members, rank)[side], costs, len(members) - 1, rank, size))
        )
        for side, size in sizes.items()
    )
    return Phase(startup_s(engine, len(members)), leaving), Phase(0.0, arriving)


def costs_of(engine: CollectiveSpec) -> tuple[float, float]:
    """Bytes through memory at each end per byte moved, and the weight of the flow."""
    return memory_per_byte(engine), engine.weight.si


def own_transfer(keys: Keys, costs: tuple[float, float], peers: int, rank: int, size: int) -> Transfer | None:
    """What leaves a member or arrives at it, on nothing but its own memory and ports: `keys`, from `keys_of`."""
    if not size or not keys:
        return None
    memory, weight = costs
    moved = round(size * memory)
    loads = [(key, moved if key[0] != "link" else size * count // peers) for key, count in keys]
    return Transfer(size, tuple(one for one in loads if one[1]), (rank,), weight)


@_once(4096)
def keys_of(fabric: Fabric, members: tuple[int, ...], rank: int) -> tuple[Keys, Keys]:
    """The capacities of a rank that its outgoing and its arriving bytes cross, with the peers behind every port."""
    memory: list[tuple[Key, int]] = [(("hbm", rank), 0), (("l2", rank), 0)]
    ports = ports_of(fabric, members, rank)
    if not ports:
        return (), ()
    out = [(("link", *port[0]), port[2]) for port in ports]
    into = [(("link", *port[1]), port[2]) for port in ports]
    return tuple(memory + out), tuple(memory + into)


@_once(4096)
def ports_of(fabric: Fabric, members: tuple[int, ...], rank: int) -> tuple[Port, ...]:
    """The edges at a die through which it reaches the others, and how many of them each one leads to.

    Raises:
        InputError: switches further out are narrower than the ports below them, or a link is missing.
    """
    if not fabric.whole:
        raise InputError("one-sided exchanges need every link of the fabric; use an All2All, which goes around")
    ports: list[Port] = []
    levels, here = fabric.spec.fabric, f"die {rank}"
    inside, dies, ported = {rank}, 1, 0
    for place, level in enumerate(levels):
        dies *= level.size.count
        around = _together(fabric, members, level.name)[fabric.instance(rank, level.name)]
        new = sorted(around - inside)
        inside |= around
        own_port = level.kind == "switch" and (level.ports == "die" or not _switches(levels[:place]))
        ported = place if own_port else ported
        if level.kind == "mesh":
            ports += [((here, f"die {peer}"), (f"die {peer}", here), 1) for peer in new]
        elif new:
            port = levels[ported]
            if not own_port and level.link_rate.si < dies // level.size.count * port.link_rate.si * (1 - 1e-9):
                raise InputError(
                    f"level '{level.name}' is narrower than the ports below it: one-sided exchanges across it are "
                    "not modelled; use an All2All"
                )
            switch = f"{port.name} {fabric.instance(rank, port.name)}"
            ports.append(((here, switch), (switch, here), len(new)))
    return tuple(ports)


@_once(64)
def _together(fabric: Fabric, members: tuple[int, ...], level: str) -> dict[int, set[int]]:
    """The members in each instance of a level."""
    found: dict[int, set[int]] = {}
    for member in members:
        found.setdefault(fabric.instance(member, level), set()).add(member)
    return found


def _switches(levels: Sequence[LevelSpec]) -> bool:
    return any(level.kind == "switch" for level in levels)


@_once(4096)
def latency_s(fabric: Fabric, members: tuple[int, ...]) -> float:
    """How long the last byte travels: the latency of the innermost level that joins all members."""
    for level in fabric.spec.fabric:
        if len({fabric.instance(rank, level.name) for rank in members}) == 1:
            return level.latency.si if len(members) > 1 else 0.0
    return fabric.spec.fabric[-1].latency.si


def startup_s(engine: CollectiveSpec, members: int) -> float:
    """From the launch of a put to its first byte."""
    return engine.startup.si + engine.startup_per_peer.si * (members - 1)
