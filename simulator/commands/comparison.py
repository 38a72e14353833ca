"""What two runs or traces have different, as JSON has it, and as the tables of `braid compare` are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import groupby
from typing import Any

from simulator import np
from simulator.commands.sides import Side
from simulator.observe.align import Alignment, Step, Tasks, align, waterfall
from simulator.observe.columns import Columns, rank_weights
from simulator.observe.kernel_times import kernel_times
from simulator.observe.measured.table import Measured
from simulator.observe.metrics import CommunicationTimes, Metrics, busy_by_block, busy_by_layer, measure
from simulator.observe.recorded import Recorded
from simulator.observe.side_by_side import Order, kind_use, orders, stream_use
from simulator.study.expected import plain

Pair = tuple[Mapping[str, float], Mapping[str, float]]


class Runs:
    """Two simulated runs, task by task."""

    def __init__(self, a: Recorded, b: Recorded) -> None:
        self.a, self.b = a, b

    @cached_property
    def aligned(self) -> Alignment:
        """Their tasks beside each other."""
        return align(self.a.columns, self.b.columns, (self.a.leaders, self.b.leaders))

    @cached_property
    def steps(self) -> list[Step]:
        """What the difference of their makespans is made of, the greatest first; what is the same in both is not."""
        return [one for one in waterfall(self.a.critical, self.b.critical) if one.difference_ps]

    @property
    def makespans_ps(self) -> tuple[int, int]:
        """How long each takes."""
        return self.a.measured.makespan_ps, self.b.measured.makespan_ps

    @cached_property
    def times(self) -> dict[str, Pair]:
        """Times on an average rank (ps) by what they are of: tables of the time at work and of communication."""
        one, other = self.a.measured, self.b.measured
        return {"where the time went": (one.account_ps, other.account_ps),
                "time by kind": (one.kind_ps, other.kind_ps),
                "time by block": (busy_by_block(self.a.columns), busy_by_block(self.b.columns)),
                "time by layer": _layers(self.a.columns, self.b.columns),
                "hidden communication": (_of_communication(one, "hidden_ps"), _of_communication(other, "hidden_ps")),
                "exposed communication": (_of_communication(one, "exposed_ps"),
                                          _of_communication(other, "exposed_ps"))}  # fmt: skip

    def as_object(self) -> dict[str, Any]:
        """All of it; empty lists and no differences where nothing moved."""
        tasks, (a_ps, b_ps) = self.aligned, self.makespans_ps
        return plain({
            "moved": tasks.moved,
            "makespan_ps": {"A": a_ps, "B": b_ps, "difference": b_ps - a_ps},
            "tasks": {"aligned": tasks.aligned, "same": tasks.same, "shifted": tasks.shifted, "changed": tasks.changed},
            "metrics": _differing("", (self.a.metrics, self.b.metrics)),
            **{title.replace(" ", "_"): _differing("_ps", pair) for title, pair in self.times.items()},
            "layers": _differing("_ps", (_named(busy_by_layer(self.a.columns)), _named(busy_by_layer(self.b.columns)))),
            "changes": [_tasks(one) for one in tasks.changes], "unpaired": [_tasks(one) for one in tasks.unpaired],
            "waterfall": [{**one._asdict(), "difference_ps": one.difference_ps} for one in self.steps]})


class Traces:
    """Two timelines of which one at least was measured, side by side."""

    def __init__(self, a: Recorded | Measured, b: Recorded | Measured) -> None:
        self.sides = {"A": a, "B": b}

    @property
    def moved(self) -> bool:
        """Whether they are not the same trace."""
        a, b = (side.columns for side in self.sides.values())
        return any(len(a[name]) != len(b[name]) or bool((a[name] != b[name]).any())
                   for name in ("rank", "stream", "name", "start_ps", "end_ps"))

    @cached_property
    def order(self) -> list[Order]:
        """The order of kinds on streams."""
        return orders(*(side.columns for side in self.sides.values()))

    @property
    def cannot(self) -> list[str]:
        """What cannot be compared, in sentences."""
        ranks = {letter: int(rank_weights(side.columns)[1].sum()) for letter, side in self.sides.items()}
        blind = [letter for letter, side in self.sides.items() if isinstance(side, Measured) and not side.launches]
        said = ["Tasks one by one, layers, micro-batches and blocks: a profiler knows kernels by names of their own.",
                "What bounds a kernel, the critical path and bytes: a profiler does not say them.",
                "Waiting: a profiler does not say since when a kernel could have run, and what a collective waits for "
                "its peers counts as its work; of a simulated run it is added where it says so."]
        if blind:
            said.append(f"The host: {' and '.join(blind)} {'has' if len(blind) == 1 else 'have'} no launches.")
        if ranks["A"] != ranks["B"]:
            said.append(f"Whole systems: A has {ranks['A']} and B {ranks['B']} ranks; times are of an average rank.")
        said.append("Lengths, unless A and B span the same work: compare shares.")
        return said

    def as_object(self) -> dict[str, Any]:
        """All of it."""
        return plain({
            "moved": self.moved,
            "overlap": {letter: overlap(side) for letter, side in self.sides.items()},
            "streams": {letter: [one._asdict() for one in stream_use(side.columns)]
                        for letter, side in self.sides.items()},
            "kinds": {letter: [one._asdict() for one in kind_use(side.columns)] for letter, side in self.sides.items()},
            "order": [{"streams": {"A": one.streams[0], "B": one.streams[1]},
                       "runs": {"A": one.runs[0], "B": one.runs[1]}, "alike": one.alike,
                       "departures": [{"A": there.a, "B": there.b, "times": there.times} for there in one.departures]}
                      for one in self.order],
            "kernels": {letter: [{"name": one.name, "kind": one.kind, "per_rank": one.per_rank,
                                  "mean_us": one.work.mean / 1e6} for one in kernel_times(side.columns)]
                        for letter, side in self.sides.items()},
            "not_comparable": self.cannot})  # fmt: skip


def compared(a: Side, b: Side) -> Runs | Traces:
    """Two sides beside each other, as closely as what is known of them allows."""
    if isinstance(a.seen, Recorded) and isinstance(b.seen, Recorded):
        return Runs(a.seen, b.seen)
    return Traces(a.seen, b.seen)


def overlap(side: Recorded | Measured) -> dict[str, float]:
    """Compute and communication of an average rank, ps; exposed_waiting: exposed where what a collective waits for its
    peers counts as its work, as a profiler sees it."""
    times, communication = side.measured, side.measured.all_communication
    seen = communication if isinstance(side, Measured) else _as_profiled(side.columns)
    return {"length_ps": times.makespan_ps, "compute_ps": times.compute_ps, "communication_ps": communication.busy_ps,
            "hidden_ps": communication.hidden_ps, "exposed_ps": communication.exposed_ps,
            "exposed_waiting_ps": seen.exposed_ps}  # fmt: skip


def _as_profiled(columns: Columns) -> CommunicationTimes:
    """Communication that begins when it is ready: its kernel runs while it waits for peers."""
    start = np.where(columns["communication"], columns["ready_ps"], columns["start_ps"])
    return measure({**columns, "start_ps": start}).all_communication


def _of_communication(times: Metrics, what: str) -> dict[str, float]:
    return {name: getattr(one, what) for name, one in times.communication.items()}


def _layers(a: Columns, b: Columns) -> Pair:
    """The time of layers, those behind each other that have the same tasks as one row: of each on average."""
    times = busy_by_layer(a), busy_by_layer(b)
    names = [_names_by_layer(columns) for columns in (a, b)]
    every = sorted({*times[0], *times[1]})
    made: tuple[dict[str, float], dict[str, float]] = {}, {}
    for _, some in groupby(every, key=lambda layer: tuple(one.get(layer) for one in names)):
        group = [*some]
        title = f"layer {group[0]}" if len(group) == 1 else f"layers {group[0]} to {group[-1]}, each"
        for side, its in zip(made, times, strict=True):
            if group[0] in its:
                side[title] = sum(its[layer] for layer in group) / len(group)
    return made


def _names_by_layer(columns: Columns) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = {}
    for layer, name in set(zip(columns["layer"].tolist(), columns["name"].tolist(), strict=True)):
        found.setdefault(layer, set()).add(name)
    return {layer: frozenset(names) for layer, names in found.items()}


def _named(layers: Mapping[int, float]) -> dict[str, float]:
    return {str(layer): time for layer, time in layers.items()}


def _differing(unit: str, pair: Pair) -> list[dict[str, Any]]:
    """Names whose values differ, with both and the difference; null where one side has none."""
    a, b = pair
    return [{"name": name, f"A{unit}": a.get(name), f"B{unit}": b.get(name),
             f"difference{unit}": b[name] - a[name] if name in a and name in b else None}
            for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)]


def _tasks(one: Tasks) -> dict[str, Any]:
    return {"name": one.name, "kind": one.kind, "difference_ps": one.difference_ps,
            **{f"{letter}_{what}": pair[side] for side, letter in enumerate("AB")
               for what, pair in (("tasks", one.tasks), ("work_ps", one.work_ps), ("waiting_ps", one.waiting_ps))}}
