"""Numbers read from the columns of a timeline: how long something took on an average rank, and hop by hop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator import np

PS_PER_US = 1e6
_PLACES = {"proxy": "proxy", "engine": "engine", "compute": "gpu"}
_GAPS = {("gpu", "proxy"): "flag_to_host", ("proxy", "engine"): "engine_queue", ("engine", "engine"): "posting",
         ("engine", "nic_out"): "nic_queue", ("nic_in", "engine"): "completion_queue",
         ("engine", "proxy"): "proxy_polls", ("engine", "gpu"): "flag_to_gpu"}


def span_us(columns: Mapping[str, Any], first: str, last: str) -> float:
    """From the start of task `first` to the end of task `last` of the same layer, mean over ranks and layers."""
    spans = _spans_us(columns, first, last)
    return float(spans.mean()) if len(spans) else 0.0


def least_span_us(columns: Mapping[str, Any], first: str, last: str) -> float:
    """The shortest of them."""
    spans = _spans_us(columns, first, last)
    return float(spans.min()) if len(spans) else 0.0


def _spans_us(columns: Mapping[str, Any], first: str, last: str) -> Any:
    """In us, rank by rank; each `last` belongs to the `first` before it."""

    def in_order(name: str, times: str) -> Any:
        rows = (columns["name"] == name).nonzero()[0]
        return columns[times][rows[np.lexsort((columns["task"][rows], columns["rank"][rows]))]]

    return (in_order(last, "end_ps") - in_order(first, "ready_ps")) / PS_PER_US


def between_us(columns: Mapping[str, Any], first: str, *last: str) -> float:
    """From the first start of `first` to the last end of any `last` of the same layer, mean over ranks and layers."""
    start, end = {}, {}  # type: dict[tuple[int, int], int], dict[tuple[int, int], int]
    ends = [(name, end, "end_ps", max) for name in last]
    for name, found, times, choose in ((first, start, "ready_ps", min), *ends):
        rows = columns["name"] == name
        fields = (columns[field][rows].tolist() for field in ("rank", "layer", times))
        for rank, layer, time in zip(*fields, strict=True):
            found[rank, layer] = choose(found.get((rank, layer), time), time)
    lasting = [end[key] - start[key] for key in start if key in end]
    return sum(lasting) / max(len(lasting), 1) / PS_PER_US


def stalled_ps(columns: Mapping[str, Any], stream: str, awaited: str, since_ps: int) -> int:
    """How long tasks of a stream that end after `since_ps` wait for tasks named `awaited` alone, on the first rank."""
    own = columns["rank"] == columns["rank"].min()
    fields = ("name", "stream", "task", "after", "issued_ps", "end_ps")
    rows = list(zip(*(columns[field][own].tolist() for field in fields), strict=True))
    ends = {task: end for name, _, task, _, _, end in rows if name == awaited}
    free = total = 0  # when the last task of the stream ended
    for _, here, _, after, issued, end in rows:
        if here != stream:
            continue
        waited = [ends[task] for task in after if task in ends]
        if waited and end > since_ps:
            total += max(max(waited) - max(free, issued), 0)
        free = end
    return total


def last_round_ps(columns: Mapping[str, Any], name: str, rounds: int) -> int:
    """How long the last of so many rounds of a rank takes, from the end of the last task of this name before it."""
    rows = columns["name"] == name
    ends = columns["end_ps"][rows][columns["rank"][rows] == columns["rank"][rows][0]].tolist()
    last = sorted(ends)
    return int(last[-1] - last[len(last) // rounds - 1])


def hops(columns: Mapping[str, Any], last: str) -> dict[str, float]:
    """Where the time went on the way to the last task of this name that ended: places and the gaps between them, in us,
    in the order of the way.

    The way leads back over what every row waited for last, or followed from, to where the first such chain of flags,
    posts, writes and completions began on a GPU.
    """
    rows = (columns["name"] == last).nonzero()[0]
    if not len(rows):
        return {}
    row = int(rows[columns["end_ps"][rows].argmax()])
    block = last.partition(".")[0]
    index = {key: place for place, key in enumerate(zip(columns["rank"].tolist(), columns["task"].tolist(),
                                                        strict=True))}
    times: dict[str, float] = {}
    while True:
        before = _before(columns, index, row)
        started = int(columns["start_ps"][row])
        if before is None or not _belongs(columns, before, block):
            _add(times, _place(columns, row), int(columns["end_ps"][row]) - started)
            return dict(reversed(times.items()))
        left = int(columns["end_ps"][before])
        here, there = _place(columns, row), _place(columns, before)
        if (there, here) == ("nic_out", "nic_in"):  # a write is received while it is still being sent
            _add(times, "wire_and_port", int(columns["end_ps"][row]) - left)
        else:
            _add(times, here, int(columns["end_ps"][row]) - max(started, left))
            _add(times, _GAPS.get((there, here), here), max(0, started - left))
        row = before


def _before(columns: Mapping[str, Any], index: Mapping[tuple[int, int], int], row: int) -> int | None:
    cause = int(columns["cause_rank"][row]), int(columns["cause_task"][row])
    if cause in index:
        return index[cause]
    rank = int(columns["rank"][row])
    awaited = [index[rank, task] for task in columns["after"][row] if (rank, task) in index]
    return max(awaited, key=lambda one: int(columns["end_ps"][one]), default=None)


def _belongs(columns: Mapping[str, Any], row: int, block: str) -> bool:
    return str(columns["name"][row]).startswith(block)


def _place(columns: Mapping[str, Any], row: int) -> str:
    stream = str(columns["stream"][row])
    if stream.startswith("nic"):
        return "nic_in" if stream.endswith("in") else "nic_out"
    return _PLACES.get(stream, stream)


def _add(times: dict[str, float], name: str, length_ps: int) -> None:
    if length_ps:
        times[name] = times.get(name, 0.0) + length_ps / PS_PER_US
