"""Faults in the middle of a run: a card dies or slows down, a host is lost, a proxy thread is descheduled."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simulator.errors import InputError
from simulator.live.host import Host
from simulator.live.thread import HostProcess


class Fault(BaseModel):
    """What strikes one rank, and when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none", "card_dies", "card_slows", "host_lost", "thread_descheduled"] = "none"
    at_us: float = Field(50.0, ge=0)
    rank: int = Field(0, ge=0)
    card: int = Field(0, ge=0)
    speed: float = Field(0.1, gt=0, le=1, description="share of its goodput that a slow card is left with")
    away_us: float = Field(100.0, ge=0, description="for how long the thread does not run")


def strike(host: Host, fault: Fault, ranks: int) -> None:
    """Let the fault happen if it concerns this one of so many hosts; InputError: no rank or card has its number."""
    if fault.kind == "none":
        return
    cards = len(host.engine.nics)
    for name, value, count in (("rank", fault.rank, ranks), ("card", fault.card, cards)):
        if value >= count:
            raise InputError(f"knobs.fault.{name} is {value}: it strikes nobody; {name}s are 0 to {count - 1}")
    if fault.rank == host.rank:
        host.env.process(_strike(host, fault))


def _strike(host: Host, fault: Fault) -> HostProcess:
    yield host.env.timeout(int(fault.at_us * 1e6))
    card = host.engine.nics[fault.card]
    if fault.kind == "card_dies":
        card.die()
    elif fault.kind == "card_slows":
        card.slow(fault.speed)
    elif fault.kind == "host_lost":
        host.lose()
    else:
        host.proxy.deschedule(fault.away_us / 1e6)
