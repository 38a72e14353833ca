"""Kineto JSON, the trace that torch.profiler writes; and those that Braid writes, which are like it.

The format, from libkineto (src/output_json.cpp, src/ActivityType.cpp, src/CuptiActivity.cpp): an object whose
`traceEvents` are Chrome events, times in us. Work of the device are the "X" events of the categories kernel, gpu_memcpy
and gpu_memset, with args device, stream and correlation; the call that launched it is the "X" event of cuda_runtime or
cuda_driver (privateuse1_runtime and privateuse1_driver on other devices) with the same correlation. Streams have their
names in "M" events thread_name. `distributedInfo` has the rank of a process of a distributed run. What Braid wrote has
its own names and kinds in args, and those of engines behind the name of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.observe.measured.events import Event, args_of, said, time_ps
from simulator.observe.measured.names import COPY, Named, named
from simulator.observe.measured.table import Rows

FORM = "Kineto JSON (torch.profiler)"
DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "privateuse1_runtime", "privateuse1_driver", "launch"})
STREAM = "stream "
STEP = "ProfilerStep#"  # torch.profiler's own annotation of a step
# of what Braid writes: kinds that are neither compute nor copies; a rank that posts or polls is in a transfer, too
COMMUNICATION_KINDS = frozenset({
    "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "broadcast", "put", "collect", "send", "receive",
    "post", "poll", "submit", "dequeue", "flag", "set_flag", "wait_flag", "write", "read"})  # fmt: skip


def is_kineto(events: Sequence[Event]) -> bool:
    """Whether some event is work of a device, as Kineto has it."""
    return any(str(event.get("cat", "")).lower() in DEVICE_WORK for event in events)


def rows_of(trace: Event, events: Sequence[Event]) -> Rows:
    """The work of the devices. Its ranks are the process's one, or the devices where they are several.

    Raises ValueError where an event lacks its times.
    """
    work, launched, streams, steps = _sorted_out(events)
    devices = sorted({_device(event) for event in work})
    own = (trace.get("distributedInfo") or {}).get("rank")
    rank_of = {devices[0]: int(own)} if len(devices) == 1 and own is not None else {one: one for one in devices}
    is_braid = any(_is_braid(args_of(event)) for event in work[:1])
    rows = Rows(says_rank=own is not None or is_braid)
    if is_braid:
        rows.notes.append("Braid wrote it: kinds are those of the simulation")
    for event in work:
        start, args = time_ps(event, "ts"), args_of(event)
        end = start + time_ps(event, "dur")
        stream = streams.get((event.get("pid"), event.get("tid")), str(args.get("stream", event.get("tid", 0))))
        issued = launched.get(args.get("correlation"))
        rows.add(rank_of[_device(event)], stream, *_what(event, args), start, end, issued)
        if is_braid:
            rows.layer.append(int(args.get("layer", -1)))
            rows.micro_batch.append(int(args.get("micro_batch", -1)))
            rows.multiplicity.append(int(args.get("multiplicity", 1)))
    if len(steps) > 1:
        rows.notes.append(f"it spans {len(steps)} steps of the profiler; times are of all of it")
    return rows


def _sorted_out(events: Sequence[Event]) -> tuple[list[Event], dict[Any, int], dict[tuple[Any, Any], str], set[str]]:
    """Work of devices, when the call of each correlation returned, names of streams, steps of the profiler."""
    work: list[Event] = []
    launched: dict[Any, int] = {}
    streams: dict[tuple[Any, Any], str] = {}
    steps: set[str] = set()
    for event in events:
        phase, category = event.get("ph"), str(event.get("cat", "")).lower()
        if phase == "M" and event.get("name") == "thread_name":
            stream = _stream(said(event))
            if stream:
                streams[event.get("pid"), event.get("tid")] = stream
        elif phase != "X":
            continue
        elif category in DEVICE_WORK:
            work.append(event)
        elif category in LAUNCHES and "correlation" in args_of(event):
            launched[event["args"]["correlation"]] = time_ps(event, "ts") + time_ps(event, "dur")
        elif str(event.get("name", "")).startswith(STEP):
            steps.add(str(event["name"]))
    return work, launched, streams, steps


def _stream(thread: str) -> str:
    """"stream 7 (compute)" -> "7"; "" for another thread."""
    if not thread.startswith(STREAM):
        return ""
    name = thread.removeprefix(STREAM)
    engines = name.find(" (", 1) if name.endswith(")") else -1
    return name[:engines] if engines > 0 else name


def _what(event: Event, args: Event) -> tuple[str, str, bool]:
    """Its name, its kind, and whether it is communication."""
    name = str(event.get("name", ""))
    if _is_braid(args):
        kind = str(args.get("braid_kind", args.get("kind", "")))
        communication = name.startswith("ncclDevKernel_") or kind in COMMUNICATION_KINDS
        return str(args.get("braid_name", args.get("name", name))), kind, communication
    return name, *(named(name) if str(event["cat"]).lower() == "kernel" else Named(COPY, False))


def _is_braid(args: Event) -> bool:
    return "braid_kind" in args or "bound_by" in args


def _device(event: Event) -> int:
    for value in (args_of(event).get("device"), event.get("pid")):
        if isinstance(value, int):
            return value
    raise ValueError(f"'{event.get('name')}' says no device: neither args.device nor pid is a number")
