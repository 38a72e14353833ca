"""A timeline as PyTorch's profiler (Kineto) writes one: a file per rank, for HolisticTraceAnalysis and its like.

What these tools know by name is named so: collectives `ncclDevKernel_AllGather`, copies and prefetches `Memcpy DtoD`,
launches `cudaLaunchKernel` or `cudaGraphLaunch`; Braid's own name is in the arguments. A collective lasts from when its
last peer came (NCCL's kernels begin to wait for it sooner): communication and overlap are those that Braid reports.
HolisticTraceAnalysis cuts edges to whole microseconds, unless HTA_DISABLE_NS_ROUNDING=1 is set. Facts: pytorch/kineto,
libkineto/src/output_json.cpp; HolisticTraceAnalysis 0.5, hta/utils/utils.py (names), hta/common/trace.py
(distributedInfo), hta/configs/env_options.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from json import dumps
from pathlib import Path
from typing import Any

from simulator import np
from simulator.observe.columns import Columns, select
from simulator.observe.events import PS_PER_NS, us, write_events
from simulator.observe.lanes import host_lane
from simulator.observe.metrics import AUXILIARY_KINDS
from simulator.observe.waiting import LIVE_ENGINES

NO_KERNELS = {"delay", "event", "device_read"}  # time passes, nothing runs


def write_kineto(columns: Columns, folder: Path, ranks: Sequence[int], about: Mapping[str, Any]) -> None:
    """Writes rank-N.json.gz for each of these ranks into a folder, which is made. about: as in a `Recorded`. OSError
    where a file cannot be written; none is left half written."""
    for rank in ranks:
        own = select(columns, columns["rank"] == rank)
        streams = {stream: number for number, stream in enumerate(dict.fromkeys(own["stream"].tolist()), 1)}
        distributed = {"backend": "nccl", "rank": rank, "world_size": int(about["ranks"])}
        write_events(chain(_names(rank, streams), _launches(own, rank), _kernels(own, rank, streams)),
                     folder / f"rank-{rank}.json.gz", distributedInfo=distributed,
                     deviceProperties=[{"id": rank, "name": about["machine"]}], braid=dict(about))  # fmt: skip


def _names(rank: int, streams: Mapping[str, int]) -> Iterator[str]:
    """Of the process and its threads: the host is thread 0."""
    for tid, name in ((0, "host"), *((number, f"stream {stream}") for stream, number in streams.items())):
        yield f'{{"ph":"M","name":"thread_name","pid":{rank},"tid":{tid},"args":{{"name":{dumps(name)}}}}}'
    yield f'{{"ph":"M","name":"process_name","pid":{rank},"tid":0,"args":{{"name":"rank {rank}"}}}}'


def kernel_name(name: str, kind: str, communication: bool) -> str:
    """As tools know it: collectives by their kind, copies, all else by Braid's name."""
    if communication:
        return "ncclDevKernel_" + "".join(part.capitalize() for part in kind.split("_"))
    return f"Memcpy DtoD ({name})" if kind in AUXILIARY_KINDS else name


def _launches(own: Columns, rank: int) -> Iterator[str]:
    """What the host launched; the number of a launch is that of its first task, plus one."""
    for one in host_lane(own):
        if one.tasks:
            begin, end = one.start_ps // PS_PER_NS, one.end_ps // PS_PER_NS
            call = "cudaLaunchKernel" if len(one.tasks) == 1 else "cudaGraphLaunch"
            yield (f'{{"ph":"X","cat":"cuda_runtime","name":"{call}","pid":{rank},"tid":0,"ts":{us(begin)},'
                   f'"dur":{us(end - begin)},"args":{{"correlation":{one.tasks[0] + 1},"tasks":{len(one.tasks)}}}}}')


def _kernels(own: Columns, rank: int, streams: Mapping[str, int]) -> Iterator[str]:
    """What ran on the device, each with a number: its launch has that of the first task that it launched."""
    runs = ~np.isin(own["engine"].astype(str), LIVE_ENGINES) & ~np.isin(own["kind"].astype(str), list(NO_KERNELS))
    for row in np.flatnonzero(runs & (own["end_ps"] > own["start_ps"])).tolist():
        name, kind, talks = str(own["name"][row]), str(own["kind"][row]), bool(own["communication"][row])
        begin, end = int(own["start_ps"][row]) // PS_PER_NS, int(own["end_ps"][row]) // PS_PER_NS
        stream = streams[own["stream"][row]]
        category = "gpu_memcpy" if kind in AUXILIARY_KINDS and not talks else "kernel"
        yield (f'{{"ph":"X","cat":"{category}","name":{dumps(kernel_name(name, kind, talks))},"pid":{rank},'
               f'"tid":{stream},"ts":{us(begin)},"dur":{us(end - begin)},"args":{{"device":{rank},"context":1,'
               f'"stream":{stream},"correlation":{row + 1},"braid_name":{dumps(name)},'
               f'"braid_kind":{dumps(kind)},"layer":{own["layer"][row]},"micro_batch":{own["micro_batch"][row]},'
               f'"multiplicity":{own["multiplicity"][row]}}}}}')
