"""What faults do to hosts: cards slow, dead and back, threads paused, ranks and nodes lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf

from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.live.host import Host
from simulator.live.nic import Nic
from simulator.replay.faults import card_of, over_time, ranks_of
from simulator.spec.faults import Fault
from simulator.units import to_ps

Strike = tuple[int, Callable[[], object]]
"""(time in ps, what happens)."""


def strike(hosts: Mapping[int, Host], faults: Iterable[Fault], fabric: Fabric,
           change_at: Callable[[int, Callable[[object], None]], None]) -> None:
    """Let faults happen to the hosts that are simulated. change_at: of a run, as `Replay.change_at`.

    Effects on clocks, memories, launches and links of the fabric are no business of hosts. What lasts no time does
    nothing. InputError: a rank, node or card that is not there.
    """
    cards: dict[tuple[int, int], list[Fault]] = defaultdict(list)
    for fault in faults:
        card = card_of(fault)
        if card is not None:
            cards[card].append(fault)
        for at_ps, act in _acts(hosts, fault, fabric):
            change_at(at_ps, partial(_call, act))
    for (rank, number), those in cards.items():
        nic = _card(hosts, rank, number, those[0], fabric)
        if nic is not None:
            for at_ps, share in over_time([fault for fault in those if fault.for_s]):
                change_at(at_ps, partial(_call, partial(nic.struck, "faults", share)))


def _call(act: Callable[[], object], _: object) -> None:
    act()


def _acts(hosts: Mapping[int, Host], fault: Fault, fabric: Fabric) -> Iterator[Strike]:
    """What a fault does to threads and whole hosts, and when."""
    if not fault.for_s or (fault.effect not in ("paused", "lost")) or fault.what == "engine":
        return
    if fault.effect == "lost" and fault.for_s < inf:
        raise InputError(f"fault '{fault}': a lost {fault.what} does not come back in a run; leave out 'for'")
    for rank in ranks_of(fault, fabric):
        host = hosts.get(rank)
        if host is None:
            continue
        if fault.effect == "lost":
            yield to_ps(fault.at_s), host.lose
            continue
        for thread in (host.proxy,) if fault.what == "proxy" else (host.proxy, host.engine.worker):
            yield to_ps(fault.at_s), partial(thread.deschedule, fault.for_s)


def _card(hosts: Mapping[int, Host], rank: int, number: int, fault: Fault, fabric: Fabric) -> Nic | None:
    if rank >= fabric.ranks:
        raise InputError(f"fault '{fault}' strikes nobody: ranks are 0 to {fabric.ranks - 1}")
    count = len(next(iter(hosts.values())).engine.nics)
    if number >= count:
        raise InputError(f"fault '{fault}' strikes nobody: cards are 0 to {count - 1}")
    return hosts[rank].engine.nics[number] if rank in hosts else None
