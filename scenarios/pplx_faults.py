"""Faults in the middle of a dispatch and combine over EFA, EP16: what they cost, or the error that names them."""

from __future__ import annotations

from simulator.live.faults import Fault
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from workloads.moe_exchange import Knobs


def slow_card() -> Scenario:
    """One card of rank 0 has a tenth of its goodput from 50 us on: every peer waits for its share."""
    return _struck("a slow card", Fault(kind="card_slows"))


def proxy_away() -> Scenario:
    """The proxy thread of rank 0 is descheduled for 100 us while routes are exchanged."""
    return _struck("a proxy descheduled for 100 us", Fault(kind="thread_descheduled", at_us=6.0))


def dead_card() -> Scenario:
    """One card of rank 0 dies at 50 us: the run ends with an error that names the writes that never complete."""
    return _struck("a dead card", Fault(kind="card_dies"))


def lost_host() -> Scenario:
    """The host of rank 0 is lost at 50 us: the run ends with an error that names who waits for what."""
    return _struck("a lost host", Fault(kind="host_lost"))


def _struck(title: str, fault: Fault) -> Scenario:
    parent = load_scenario("pplx:efa_ep16")
    return parent.variant(title=f"{parent.title}, {title}", knobs=Knobs(fault=fault), expected=(), studies=())
