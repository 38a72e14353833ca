"""Faults in the middle of a dispatch and combine over EFA, EP16: what they cost, or the error that names them."""

from __future__ import annotations

from simulator.spec.faults import faults_of
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from workloads.moe_exchange import Knobs


def slow_card() -> Scenario:
    """One card of rank 0 has a tenth of its goodput from 50 us on: every peer waits for its share."""
    return _struck("a slow card", "50 us: link rank0.nic0 rate 0.1")


def proxy_away() -> Scenario:
    """The proxy thread of rank 0 is descheduled for 100 us while routes are exchanged."""
    return _struck("a proxy descheduled for 100 us", "6 us: proxy 0 paused for 100 us")


def host_away() -> Scenario:
    """As `proxy_away`, with the worker of the transfer engine."""
    return _struck("a host descheduled for 100 us", "6 us: host 0 paused for 100 us")


def flapping_card() -> Scenario:
    """One card of rank 0 is dead for 20 us and alive for 20 us in turns: what is lost is sent again by the card."""
    return _struck("a card that flaps", "50 us: link rank0.nic0 flaps 20 us for 200 us")


def dead_card() -> Scenario:
    """One card of rank 0 dies at 50 us: the run ends with an error that names the writes that never complete."""
    return _struck("a dead card", "50 us: link rank0.nic0 cut")


def dead_card_failover() -> Scenario:
    """As `dead_card`, with an engine that posts on the other card what this one has given up."""
    return _struck("a dead card, with failover", "50 us: link rank0.nic0 cut").variant(knobs=Knobs(failover=True))


def lost_host() -> Scenario:
    """The host of rank 0 is lost at 50 us: the run ends with an error that names who waits for what."""
    return _struck("a lost host", "50 us: rank 0 lost")


def _struck(title: str, *faults: str) -> Scenario:
    parent = load_scenario("pplx:efa_ep16")
    return parent.variant(title=f"{parent.title}, {title}", faults=faults_of(faults), expected=(), studies=())
