"""Floor 1, the three ways in which time passes: latency (clock), cores, and bytes (flows). No chip is known here."""

from __future__ import annotations

from simulator.physics.clock import NORMAL, SOLVE, Call, Timer, call_later, run
from simulator.physics.cores import Cores
from simulator.physics.flows import Bound, Capacity, Flow, Network, StalledFlowError, Stats
from simulator.physics.maxmin import LIMIT, Demand, max_min

__all__ = [
    "LIMIT", "NORMAL", "SOLVE", "Bound", "Call", "Capacity", "Cores", "Demand", "Flow", "Network", "StalledFlowError",
    "Stats", "Timer", "call_later", "max_min", "run",
]  # fmt: skip
