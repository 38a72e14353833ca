"""Collectives of NCCL through PyTorch: a process for each GPU, several collectives in a captured graph."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

from simulator.probe.device import Exchange, Unmeasurable

WARM_UPS, IN_GRAPH, LARGE_BYTES, LARGE_IN_GRAPH = 3, 20, 2**24, 4
ELEMENT_BYTES = 2


def exchanges_s(exchanges: Sequence[Exchange], repeats: int) -> list[list[float]]:
    """Seconds of each, of as many GPUs as the first one says. Unmeasurable if a process fails."""
    ranks = exchanges[0].ranks
    with tempfile.TemporaryDirectory(prefix="braid-probe-") as folder:
        path = Path(folder) / "times.json"
        try:
            multiprocessing.spawn(_run, (ranks, _free_port(), list(exchanges), repeats, str(path)), nprocs=ranks)
        except (RuntimeError, multiprocessing.ProcessRaisedException, multiprocessing.ProcessExitedException) as error:
            raise Unmeasurable(str(error).strip().rpartition("\n")[2]) from error
        times: list[list[float]] = json.loads(path.read_text(encoding="utf-8"))
        return times


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _run(rank: int, ranks: int, port: int, exchanges: list[Exchange], repeats: int, path: str) -> None:
    """What one process does; the first one writes the times."""
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    try:
        times = [_measured(Exchange(*one), repeats) for one in exchanges]
    finally:
        distributed.destroy_process_group()
    if rank == 0:
        Path(path).write_text(json.dumps(times), encoding="utf-8")


def _measured(one: Exchange, repeats: int) -> list[float]:
    call = _call(one)
    for _ in range(WARM_UPS):
        call()
    count = LARGE_IN_GRAPH if one.size_bytes >= LARGE_BYTES else IN_GRAPH
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(count):
            call()
    graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        distributed.barrier()
        torch.cuda.synchronize()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / count)
    return times


def _call(one: Exchange) -> Callable[[], Any]:
    """What launches it. Buffers of BF16, as whole parts for all ranks."""
    part = max(one.size_bytes // ELEMENT_BYTES // one.ranks, 1)
    whole = torch.randn(part * one.ranks, device="cuda", dtype=torch.bfloat16)
    if one.kind == "all_reduce":
        return lambda: distributed.all_reduce(whole)
    if one.kind == "all_to_all":
        received = torch.empty_like(whole)
        return lambda: distributed.all_to_all_single(received, whole)
    own = torch.randn(part, device="cuda", dtype=torch.bfloat16)
    if one.kind == "all_gather":
        return lambda: distributed.all_gather_into_tensor(whole, own)
    return lambda: distributed.reduce_scatter_tensor(own, whole)
