"""Floor 1, the three ways in which time passes: latency (clock), cores, and bytes (flows). No chip is known here."""

from __future__ import annotations

from simulator.physics.clock import NORMAL, SOLVE, Alarm, Call, Clock, call_later
from simulator.physics.cores import Cores
from simulator.physics.flows import Bound, Capacity, Countdown, Flow, Network, StalledFlowError, Stats
from simulator.physics.maxmin import LIMIT, Demand, max_min

__all__ = [
    "LIMIT", "NORMAL", "SOLVE", "Alarm", "Bound", "Call", "Capacity", "Clock", "Cores", "Countdown", "Demand", "Flow",
    "Network", "StalledFlowError", "Stats", "call_later", "max_min",
]  # fmt: skip
