"""The table of exchanges by name."""

from __future__ import annotations

from collections.abc import Callable

from simulator.parallel.exchange.all_gather import AllGather
from simulator.parallel.exchange.all_reduce import AllReduce
from simulator.parallel.exchange.all_to_all import AllToAll
from simulator.parallel.exchange.put_collect import PutCollect
from simulator.parallel.exchange.sorted_rows import SortedRows
from simulator.parallel.exchange.task import Exchange, ExpertTask

EXCHANGES: dict[str, Callable[[ExpertTask], Exchange]] = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "all_to_all": AllToAll,
    "sorted_rows": SortedRows,
    "put_collect": PutCollect,
}
