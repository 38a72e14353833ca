"""One measured rank in every format that is read: the same four kernels on two streams, written as the profilers do.

us from the first: a matrix product 0 to 10 and attention 20 to 30 on stream 7, a copy there 30 to 35, an all-reduce on
stream 20 from 5 to 20. So of 15 us communication 5 are hidden; attention was launched at 19, 9 after the product ended.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

BASE_NS = 1704161511420306491  # in us a float cannot tell it to the nanosecond


class Kernel(NamedTuple):
    """A kernel of the trace; launched: when the call returned, us."""

    name: str
    stream: int
    start: int
    end: int
    launched: float


GPU = (Kernel("nvjet_tst_128x64_64x5", 7, 0, 10, -8),
       Kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", 20, 5, 20, -6),
       Kernel("void flash::flash_fwd_kernel<T, 128>(Params)", 7, 20, 30, 19),
       Kernel("Memcpy DtoD (Device -> Device)", 7, 30, 35, 21))  # fmt: skip
NPU = tuple(one._replace(name=name) for one, name in zip(
    GPU, ("aclnnMatmul_MatMulV3", "hcom_allReduce__606_0_1", "FusedInferAttentionScore", "MEMCPY_ASYNC"), strict=True))


def at(us: float) -> str:
    """A time of the trace as the text that a profiler writes: exact."""
    ns = BASE_NS + round(us * 1000)
    return f"{ns // 1000}.{ns % 1000:03}"


def json_of(events: list[dict[str, Any]], **around: Any) -> str:
    """A trace as JSON whose times are numbers to the nanosecond."""
    text = json.dumps({**around, "traceEvents": events})
    for event in events:
        if "ts" in event:
            text = text.replace(f'"ts": "{event["ts"]}"', f'"ts": {event["ts"]}', 1)
    return text


def kineto(path: Path, rank: int | None = 3, kernels: tuple[Kernel, ...] = GPU) -> Path:
    """As torch.profiler."""
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "ts": at(0), "pid": 0, "tid": stream, "args": {"name": f"stream {stream}"}}
        for stream in (7, 20)]
    events += [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 99, "tid": 1,
                "ts": at(since), "dur": 25} for step, since in ((4, -9), (5, 16))]
    for number, one in enumerate(kernels):
        is_copy = one.name.startswith("Memcpy")
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 99, "tid": 1,
             "ts": at(one.launched - 2), "dur": 2.0, "args": {"cbid": 211, "correlation": number}},
            {"ph": "X", "cat": "gpu_memcpy" if is_copy else "kernel", "name": one.name, "pid": 0, "tid": one.stream,
             "ts": at(one.start), "dur": float(one.end - one.start),
             "args": {"device": 0, "stream": one.stream, "correlation": number}}]
    distributed = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}}
    path.write_text(json_of(events, schemaVersion=1, **distributed))
    return path


def ascend_timeline(path: Path) -> Path:
    """As the Ascend PyTorch Profiler: an array, times as text, collectives in a process of their own."""
    npu, exchange = 100, 200
    meta = [("process_name", npu, 0, "Ascend Hardware"), ("process_name", exchange, 0, "Communication"),
            ("thread_name", npu, 7, "Stream 7"), ("thread_name", exchange, 20, "Group 0 Communication"),
            ("thread_name", exchange, 21, "Plane 0")]  # fmt: skip
    events: list[dict[str, Any]] = [{"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": said}}
                                    for name, pid, tid, said in meta]  # fmt: skip
    tasks = dict(zip((one.name for one in NPU), ("AI_CORE", "", "MIX_AIC", "MEMCPY_ASYNC"), strict=True))
    for number, one in enumerate(NPU):
        pid = exchange if one.name.startswith("hcom_") else npu
        place = {"pid": pid, "tid": one.stream, "ts": at(one.start)}
        args = {"Task Type": tasks[one.name], "Stream Id": one.stream} if pid == npu else {}
        events += [{"ph": "X", "name": one.name, "dur": one.end - one.start, "args": args, **place},
                   {"ph": "s", "cat": "async_npu", "id": number, "name": "async_npu", "pid": 1, "tid": 1,
                    "ts": at(one.launched)},
                   {"ph": "f", "cat": "async_npu", "id": number, "name": "async_npu", "bp": "e", **place}]
    events += [{"ph": "X", "name": "EVENT_WAIT", "pid": npu, "tid": 7, "ts": at(10), "dur": 10,
                "args": {"Task Type": "EVENT_WAIT_SQE"}},
               {"ph": "X", "name": "Notify_Wait", "pid": exchange, "tid": 21, "ts": at(5), "dur": 3, "args": {}}]
    path.write_text(json.dumps(events))
    return path


def ascend_table(path: Path) -> Path:
    """As the Ascend PyTorch Profiler: what belongs to no stream has N/A there, and times end in a tab."""
    types = dict(zip((one.name for one in NPU), (("MatMulV3", "AI_CORE"), ("hcom_allReduce_", "COMMUNICATION"),
                                                 ("FusedInferAttentionScore", "MIX_AIC"), ("Memcpy", "SDMA")),
                     strict=True))  # fmt: skip
    lines = ["Step Id,Device_id,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us)"]
    for one in NPU:
        stream = "N/A" if one.name.startswith("hcom_") else one.stream
        lines.append(f"1,0,{stream},{one.name},{','.join(types[one.name])},{at(one.start)}\t,{one.end - one.start}.0,0")
    path.write_text("\n".join(lines) + "\n")
    return path


def nsight(path: Path, processes: tuple[int, ...] = (5,)) -> Path:
    """As `nsys export`: one device for each process, which all have its number 0."""
    with sqlite3.connect(path) as database:
        database.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT, streamId INT,
                correlationId INT, globalPid INT, demangledName INT, shortName INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, contextId INT, streamId INT,
                correlationId INT, globalPid INT, bytes INT, copyKind INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
            """)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(one.name for one in GPU)))
        for process in processes:
            for number, one in enumerate(GPU):
                start, end, called = (BASE_NS + round(us * 1000) for us in (one.start, one.end, one.launched))
                where = (start, end, 0, 1, one.stream, number, process << 24)
                table, more = ("MEMCPY", (64, 8)) if one.name.startswith("Memcpy") else ("KERNEL", (number, number))
                database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES (?,?,?,?,?,?,?,?,?)", (*where, *more))
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)",
                                 (called - 2000, called, (process << 24) + 7, number, 0))
    database.close()
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "kineto.json": kineto, "trace_view.json": ascend_timeline, "kernel_details.csv": ascend_table,
    "nsight.sqlite": nsight}
