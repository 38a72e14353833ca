"""The table of exchanges by name, and of what hosts do in those that a host or a card takes part in."""

from __future__ import annotations

from collections.abc import Callable

from simulator.live.gpu_initiated import gpu_initiated
from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.parallel.exchange.all_gather import AllGather
from simulator.parallel.exchange.all_reduce import AllReduce
from simulator.parallel.exchange.all_to_all import AllToAll
from simulator.parallel.exchange.deepep_ll import LowLatency
from simulator.parallel.exchange.deepep_normal import Normal
from simulator.parallel.exchange.generic_proxy import GenericProxy, generic_proxies
from simulator.parallel.exchange.proxy import Proxy, proxy
from simulator.parallel.exchange.put_collect import PutCollect
from simulator.parallel.exchange.sorted_rows import SortedRows
from simulator.parallel.exchange.task import Exchange, ExpertTask

EXCHANGES: dict[str, Callable[[ExpertTask], Exchange]] = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "all_to_all": AllToAll,
    "sorted_rows": SortedRows,
    "put_collect": PutCollect,
    "proxy": Proxy,
    "generic_proxy": GenericProxy,
    "deepep_ll": LowLatency,
    "deepep_normal": Normal,
}

HOSTS: dict[str, Callable[[Host], HostProcess]] = {
    "proxy": proxy,
    "generic_proxy": generic_proxies,
    "deepep_ll": gpu_initiated,
    "deepep_normal": gpu_initiated,
}
