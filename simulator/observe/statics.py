"""What is known of a rank's tasks before the run."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class StaticTasks:
    """What is known of a rank's tasks before the run: one entry per task, in issue order, in every list.

    Columns of the same name are documented in `columns.COLUMNS`. Ranks with the same program share one object.
    Raises ValueError if the lists differ in length.
    """

    name: list[str]
    stream: list[str]
    kind: list[str]
    engine: list[str]
    layer: list[int]
    micro_batch: list[int]
    flops: list[float]
    hbm_bytes: list[float]
    wire_bytes: list[float]
    after: list[tuple[int, ...]]
    host_after: list[int]
    communication: list[bool]

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"every list of StaticTasks needs one entry per task; lengths are {lengths}")

    def __len__(self) -> int:
        return len(self.name)

    def append(self, name: str, stream: str, kind: str, engine: str, layer: int, micro_batch: int,
               wire_bytes: float) -> int:
        """Adds a task that was not known before the run (a live process did it); returns its number."""
        row = {"name": name, "stream": stream, "kind": kind, "engine": engine, "layer": layer,
               "micro_batch": micro_batch, "flops": 0.0, "hbm_bytes": 0.0, "wire_bytes": wire_bytes, "after": (),
               "host_after": -1, "communication": True}
        for field, value in row.items():
            getattr(self, field).append(value)
        return len(self.name) - 1
