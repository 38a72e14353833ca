"""The budget of one layer on one rank: what each block of it works, waits, and runs beside.

A block is the first word of a task's name ("attention" of "attention.q_a"). Its work is *beside others* while another
stream of the rank works too, on whatever layer, and *alone* while nothing else does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from simulator import np
from simulator.observe.columns import Array, Columns, Intervals, block_of, layer_of, union


@dataclass(frozen=True)
class BlockBudget:
    """Times of one block in one layer (ps). beside: by block of other streams that ran meanwhile, longest first.

    waiting: for peers or cores (ready..start). bound_by: what limited most of its work.
    """

    block: str
    tasks: int
    work_ps: int
    alone_ps: int
    waiting_ps: int
    beside_ps: dict[str, int]
    bound_by: str

    @property
    def accompanied_ps(self) -> int:
        """Work beside that of other streams."""
        return self.work_ps - self.alone_ps


@dataclass(frozen=True)
class LayerBudget:
    """A layer of a rank. span_ps: from its first start to its last end; step_ps: to the start of the next layer."""

    rank: int
    layer: int
    span_ps: int
    step_ps: int | None
    blocks: list[BlockBudget]


def layer_budget(columns: Columns, rank: int, layer: int | None = None) -> LayerBudget | None:
    """The budget of a layer, of the middle one where none is given; None where the rank has no tasks in layers."""
    mine, layer, here, step = layer_of(columns, rank, layer)
    if layer < 0 or not here.any():
        return None
    names = np.array([block_of(name) for name in mine["name"].tolist()], dtype=object)
    blocks = [_budget(mine, names, here, block) for block in dict.fromkeys(names[here].tolist())]
    span = int(mine["end_ps"][here].max() - mine["start_ps"][here].min())
    return LayerBudget(rank, layer, span, step, blocks)


def _budget(mine: Columns, names: Array, here: Array, block: str) -> BlockBudget:
    rows = here & (names == block)
    work = union(mine["start_ps"][rows], mine["end_ps"][rows])
    waits = union(mine["ready_ps"][rows], mine["start_ps"][rows])
    streams = mine["stream"][rows]
    elsewhere = mine["stream"] != streams[0] if len(set(streams.tolist())) == 1 else ~rows
    others = union(mine["start_ps"][elsewhere], mine["end_ps"][elsewhere])
    lasts: Counter[str] = Counter()
    for bound, start, end in zip(*(mine[name][rows].tolist() for name in ("bound_by", "start_ps", "end_ps")),
                                 strict=True):
        lasts[bound] += end - start
    total = int(work.lengths().sum())
    return BlockBudget(block, int(rows.sum()), total, total - _common(work, others), int(waits.lengths().sum()),
                       _beside(mine, names, elsewhere, work), lasts.most_common(1)[0][0])


def _beside(mine: Columns, names: Array, elsewhere: Array, work: Intervals) -> dict[str, int]:
    times = {}
    for other in dict.fromkeys(names[elsewhere].tolist()):
        rows = elsewhere & (names == other)
        common = _common(work, union(mine["start_ps"][rows], mine["end_ps"][rows]))
        if common:
            times[other] = common
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _common(one: Intervals, other: Intervals) -> int:
    return int(other.covered(one.start, one.end).sum()) if len(one.start) and len(other.start) else 0
