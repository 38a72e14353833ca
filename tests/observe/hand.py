"""Small timelines written by hand: rows of text fields and picoseconds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from simulator.observe.timeline import StaticTasks, Timeline

_NONE: dict[str, Any] = {
    "stream": "main", "kind": "gemm", "engine": "cube", "layer": -1, "micro_batch": -1, "flops": 0.0,
    "l2_bytes": 0.0, "unit_cores": (), "units": 1,
    "hbm_bytes": 0.0, "wire_bytes": 0.0, "host_after": -1, "communication": False,
}


def task(name: str, start: int, end: int, **given: Any) -> dict[str, Any]:
    """One task; `ready` = start, `issued` = 0, `solo` = end - start unless given. `after` is written out; so is
    `late`, the rank and the task that came last to an exchange."""
    base = {"name": name, "issued": 0, "ready": start, "start": start, "end": end, "solo": end - start,
            "bound_by": "compute", "after": ()}
    return {**_NONE, **base, **given}


def comm(name: str, start: int, end: int, **given: Any) -> dict[str, Any]:
    """A collective on the stream "comm", driven by SDMA."""
    base = {"stream": "comm", "kind": "all_to_all", "engine": "sdma", "communication": True, "bound_by": "link"}
    return task(name, start, end, **{**base, **given})


def static_of(tasks: list[dict[str, Any]]) -> StaticTasks:
    """The static part of a rank's tasks."""
    return StaticTasks(**{field.name: [one[field.name] for one in tasks] for field in fields(StaticTasks)})


def timeline(*ranks: list[dict[str, Any]], multiplicity: tuple[int, ...] = (), run: str = "hand") -> Timeline:
    """A timeline with one list of tasks per rank, numbered from 0."""
    made = Timeline(run)
    for rank, tasks in enumerate(ranks):
        made.add_rank(rank, static_of(tasks), multiplicity[rank] if multiplicity else 1)
        for number, one in enumerate(tasks):
            made.record(rank, number, one["issued"], one["ready"], one["start"], one["end"], one["solo"],
                        one["bound_by"], one["units"])
            if "late" in one:
                made.late(rank, number, *one["late"])
    return made
