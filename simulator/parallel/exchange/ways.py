"""The table of exchanges by name, and of what hosts do in those that a host or a card takes part in."""

from __future__ import annotations

from collections.abc import Callable, Collection

from simulator import paths
from simulator.errors import InputError
from simulator.live.gpu_initiated import gpu_initiated
from simulator.live.host import Host
from simulator.live.thread import HostProcess
from simulator.model.transformer import Experts
from simulator.parallel.exchange.all_gather import AllGather
from simulator.parallel.exchange.all_reduce import AllReduce
from simulator.parallel.exchange.all_to_all import AllToAll
from simulator.parallel.exchange.copies import even_copies
from simulator.parallel.exchange.deepep_ll import LowLatency
from simulator.parallel.exchange.deepep_normal import Normal, NormalSettings
from simulator.parallel.exchange.generic_proxy import GenericProxy, generic_proxies
from simulator.parallel.exchange.proxy import Proxy, ProxySettings, proxy
from simulator.parallel.exchange.put_collect import PutCollect
from simulator.parallel.exchange.rows import DispatchDtype, RowKernels, RowSettings, buffers
from simulator.parallel.exchange.sorted_rows import SortedRows
from simulator.parallel.exchange.task import Exchange, ExpertTask
from simulator.parallel.ledger import Item
from simulator.spec.load import load_machine

ROWS: dict[str, type[RowKernels]] = {"proxy": Proxy, "generic_proxy": GenericProxy, "deepep_ll": LowLatency}
FUSED = ("fused_both", "fused_push", "fused_pull")  # by preference: writes and reads at once are as published
EXCHANGES: dict[str, Callable[[ExpertTask], Exchange]] = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "all_to_all": AllToAll,
    "sorted_rows": SortedRows,
    "put_collect": PutCollect,
    **ROWS,
    "deepep_normal": Normal,
}


def exchange_of(task: ExpertTask) -> Exchange:
    """The way that its settings name; InputError: experts are on ranks of their own, and this way cannot go there."""
    name, apart = task.settings.name, task.mesh.apart
    if apart and not getattr(EXCHANGES[name], "apart", False):
        there = ", ".join(name for name, way in EXCHANGES.items() if getattr(way, "apart", False))
        raise InputError(f"exchange {name}: apart={apart}: ranks of experts have no tokens of their own, and the "
                         f"others no experts; {there} bring rows from one to the other and back")
    return EXCHANGES[name](task)


def check_there(name: str, machine: str, engines: Collection[str], cores: Collection[str]) -> None:
    """InputError: a machine with these engines and pools of cores has no kernels for a way; it names the machines of
    the library that have, and the ways that this one has."""
    if _is_there(name, engines, cores):
        return
    library = {one: load_machine(one) for one in paths.names("topologies")}
    others = ", ".join(one for one, spec in library.items() if _is_there(name, spec.collectives, spec.chip.cores))
    lacks = f"no engine '{name}'" if name.startswith("deepep") else "no SMs, which its kernels are for"
    here = ", ".join(way for way in EXCHANGES if _is_there(way, engines, cores))
    raise InputError(f"knobs.exchange={name}: {machine} has {lacks}; machines that have: {others}; {here} run here")


def _is_there(name: str, engines: Collection[str], cores: Collection[str]) -> bool:
    """Ways of DeepEP have engines of their own, others with hosts or cards kernels of GPUs."""
    return name in engines if name.startswith("deepep") else name not in HOSTS or "sm" in cores


def driven_by(name: str, chosen: str, there: Collection[str]) -> tuple[str, str]:
    """What drives dispatch, and combine, on a machine with these engines: `chosen`, or of put_collect the kernels that
    write rows of themselves where there are such; combine has an engine of its own beside some. Empty: as others."""
    engine = chosen
    if not engine and name == "put_collect":
        engine = next((one for one in FUSED if one in there), "")
    combine = f"{engine}_combine"
    return engine, combine if combine in there else ""


def settings_of(name: str, dispatch_dtype: DispatchDtype, sms: int | None) -> RowSettings | NormalSettings | None:
    """A way's own settings, of which these differ from its defaults; InputError where it has no such setting."""
    if sms is not None and name != "deepep_normal":
        raise InputError(f"exchange_sms={sms}: exchange {name} takes no number of SMs; deepep_normal does")
    if name not in HOSTS:
        if dispatch_dtype:
            ways = ", ".join(HOSTS)
            raise InputError(f"dispatch_dtype={dispatch_dtype}: exchange {name} has none of its own; {ways} have")
        return None
    if name == "deepep_normal":
        given = {} if sms is None else {"sms": sms}
        return NormalSettings.model_validate({"dispatch_dtype": dispatch_dtype, **given})
    return ROWS[name].settings(dispatch_dtype=dispatch_dtype)


def buffers_of(name: str, experts: Experts, hidden: int, places: int, node: int, tokens: int) -> list[Item]:
    """What a way with hosts or cards keeps in memory for so many tokens of each of the ranks of one block."""
    if name not in HOSTS:
        return []
    if name != "deepep_normal":
        return buffers(experts, hidden, places, tokens, ProxySettings().private_tokens if name == "proxy" else 0)
    found = even_copies(experts, tokens, places, min(node, places), 0, 1, 0)
    return [("send buffer", "communication", 2 * hidden * found.returning),
            ("receive buffer", "communication", 2 * hidden * found.inside.leaving)]


HOSTS: dict[str, Callable[[Host], HostProcess]] = {
    "proxy": proxy,
    "generic_proxy": generic_proxies,
    "deepep_ll": gpu_initiated,
    "deepep_normal": gpu_initiated,
}
