"""What Ascend's profilers write: the timeline trace_view.json (msprof_*.json) and the table kernel_details.csv.

The formats, from the user guide of the Ascend PyTorch Profiler and the readers of msprof-analyze (compare_tools:
npu_profiling_parser.py, trace_event_bean.py, kernel_details_bean.py): the timeline is an array of Chrome events, times
in us as decimal text. Which process an event belongs to is said by its "M" event process_name: "Ascend Hardware" has a
thread for each stream, whose tasks have a "Task Type"; "Communication" ("HCCL" in older versions) has collectives on
the threads whose name has "Communication" in it, and on others the tasks that they are made of. Arrows "s" to "f" of
the categories async_npu and HostToDevice lead from the call to the task. In the table a row is an operator; its columns
go by name, for their number and order depend on what was collected (op_summary_*.csv of msprof calls some otherwise).
The numbers behind the name of a collective, of its group and its call, are left out: hcom_allReduce__606_0_1.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from simulator.observe.measured.events import Event, args_of, said, time_ps
from simulator.observe.measured.names import COPY, KERNEL, Named, named
from simulator.observe.measured.table import Rows, microseconds

TIMELINE, TABLE = "Ascend timeline (trace_view.json)", "Ascend kernels (kernel_details.csv)"
HARDWARE, EXCHANGES = "Ascend Hardware", ("Communication", "HCCL")
# task types as trace_event_bean.py of msprof-analyze sorts them; what is in none of these waits, records or notifies
COMPUTE_TASKS = frozenset({"AI_CORE", "MIX_AIC", "MIX_AIV", "AI_CPU", "AI_VECTOR_CORE", "FFTS_PLUS"})
COPY_TASKS = frozenset({"SDMA_SQE", "PCIE_DMA_SQE", "MEMCPY_ASYNC"})
EXCHANGE_TASKS = frozenset({"COMMUNICATION", "HCCL"})
ARROWS = frozenset({"async_npu", "HostToDevice"})
# column -> what op_summary_*.csv calls it
COLUMNS = {"Name": "Op Name", "Type": "OP Type", "Accelerator Core": "Task Type",
           "Start Time(us)": "Task Start Time(us)", "Duration(us)": "Task Duration(us)"}
_NUMBERS = re.compile(r"(?:\d+_+)+")
NEEDED = ("Name", "Start Time(us)", "Duration(us)")


def is_msprof(events: Sequence[Event]) -> bool:
    """Whether some process is an Ascend device."""
    return any(event.get("name") == "process_name" and said(event) == HARDWARE for event in events)


def is_table(head: Sequence[str]) -> bool:
    """Whether these are column names of such a table."""
    there = {one.strip().lstrip("\ufeff") for one in head}
    return all(one in there or COLUMNS[one] in there for one in NEEDED)


def rows_of(events: Sequence[Event]) -> Rows:
    """Tasks of streams and collectives; ranks are devices. ValueError where an event lacks its times."""
    processes = {event["pid"]: event for event in events if event.get("name") == "process_name"}
    hardware = {pid for pid, event in processes.items() if said(event) == HARDWARE}
    exchanges = {pid for pid, event in processes.items() if said(event) in EXCHANGES}
    threads = {(event["pid"], event.get("tid")): said(event) for event in events
               if event.get("name") == "thread_name"}  # fmt: skip
    whole = {place for place, name in threads.items() if place[0] in exchanges and "Communication" in name}
    device, launched = _devices(events), _launches(events)
    rows, left_out = Rows(), Counter[str]()
    for event in events:
        pid, place = event.get("pid"), (event.get("pid"), event.get("tid"))
        if event.get("ph") != "X" or (pid not in hardware and place not in whole):
            continue
        name, task = _name(event.get("name", "")), str(args_of(event).get("Task Type", ""))
        kind = _kind_of_task(name, task) if pid in hardware else _exchange(name)
        if kind is None:
            left_out[task] += 1
            continue
        start = time_ps(event, "ts")
        stream = threads.get(place, str(place[1])).removeprefix("Stream ")
        rows.add(device.get(pid, 0), stream, name, *kind, start, start + time_ps(event, "dur"),
                 launched.get((*place, start)))
    if left_out:
        count, few = left_out.total(), ", ".join(task for task, _ in left_out.most_common(3))
        rows.notes.append(f"left out as no work: {count} task{'s' * (count != 1)} of {few}")
    return rows


def table_rows(lines: Sequence[str]) -> Rows:
    """Operators of the table; ranks are devices. ValueError names the line that is wrong."""
    reader = csv.DictReader(lines)
    reader.fieldnames = [one.strip().lstrip("\ufeff") for one in reader.fieldnames or ()]
    here = {one: one if one in reader.fieldnames else COLUMNS[one] for one in COLUMNS}
    rows = Rows(notes=["it does not say when kernels were launched"])
    if "Stream ID" not in reader.fieldnames:
        rows.notes.append("it does not say on which stream a kernel ran: collectives are on one, the rest on another")
    for row in reader:
        name, core = _name(row.get(here["Name"])), str(row.get(here["Accelerator Core"]) or "")
        kind = _kind_of_operator(name, str(row.get(here["Type"]) or ""), core)
        stream = str(row.get("Stream ID") or "N/A").strip()
        try:
            start = microseconds(row.get(here["Start Time(us)"]), here["Start Time(us)"])
            length = microseconds(row.get(here["Duration(us)"]), here["Duration(us)"])
            device = int(str(row.get("Device_id") or 0))
            rows.add(device, stream if stream != "N/A" else "communication" if kind.communication else "device", name,
                     *kind, start, start + length, None)
        except ValueError as error:
            raise ValueError(f"line {reader.line_num}: {error}") from None
    return rows


def _name(given: object) -> str:
    """Without the numbers behind the name of a collective."""
    text = str(given)
    numbers = _NUMBERS.match(text[::-1]) if text.startswith("hcom_") else None  # from the end: no name takes long
    return text[: -numbers.end()] if numbers else text


def _kind_of_task(name: str, task: str) -> Named | None:
    """What a task of a stream is; None where it is no work."""
    if task in COPY_TASKS:
        return Named(COPY, False)
    if task in EXCHANGE_TASKS:
        return _exchange(name)
    return named(name, "vector" if task == "AI_VECTOR_CORE" else KERNEL) if task in COMPUTE_TASKS or not task else None


def _kind_of_operator(name: str, operator: str, core: str) -> Named:
    """By its type, which says more than its name."""
    if core.upper() in EXCHANGE_TASKS:
        return _exchange(name)
    said = named(operator, "")
    return said if said.kind else named(name, "vector" if core == "AI_VECTOR_CORE" else KERNEL)


def _exchange(name: str) -> Named:
    return Named(named(name, "communication").kind, True)


def _devices(events: Sequence[Event]) -> dict[Any, int]:
    """The device of each process that says one, as in "NPU 3"."""
    found = ((event["pid"], re.search(r"NPU\s*(\d+)", str(args_of(event).get("labels", "")))) for event in events
             if event.get("name") == "process_labels")  # fmt: skip
    return {pid: int(label[1]) for pid, label in found if label}


def _launches(events: Sequence[Event]) -> dict[tuple[Any, Any, int], int]:
    """When the last call was made that an arrow leads from to a task: by process, thread and start of the task."""
    begins = {(event.get("cat"), event.get("id")): time_ps(event, "ts") for event in events
              if event.get("ph") == "s" and event.get("cat") in ARROWS}  # fmt: skip
    made: dict[tuple[Any, Any, int], int] = {}
    for event in events:
        since = begins.get((event.get("cat"), event.get("id"))) if event.get("ph") == "f" else None
        if since is not None:
            to = (event.get("pid"), event.get("tid"), time_ps(event, "ts"))
            made[to] = max(made.get(to, since), since)
    return made
