"""How long an engine is away that is started again: its process, its weights, its graphs.

Every rank loads its own weights, from a disk or the page cache of its host, all at the same time: those of the fullest
one count.
"""

from __future__ import annotations

from typing import Any

from simulator.model.micro_batch import MicroBatch
from simulator.serving.settings import Instances
from simulator.study.simulate import ledger_of


def restart_s(settings: Instances) -> float:
    """From the start of the process to the first request."""
    restart = settings.restart
    return restart.start_s + weights_bytes(settings) / (restart.load_gb_s * 1e9) + restart.capture_s


def weights_bytes(settings: Instances) -> float:
    """On the fullest rank."""
    scenario = settings.step
    batch: Any = scenario.batch
    served = scenario.variant(batch=batch.working_on([MicroBatch(0, ((1, 1),))] * scenario.data_parallel))
    machine = served.machine_spec()
    return sum(item.size_bytes for item in ledger_of(served, served.case(machine, 0), machine).items
               if item.category == "weights")  # fmt: skip
