"""Two hosts and nothing else: single writes one after the other, then paged writes, size by size.

These are the measurements from which a card's latency, goodput and posting costs are derived, run through the whole
path: proxy thread, command queue, worker, cards, wire, completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PositiveInt

from simulator.errors import InputError
from simulator.live.host import Host
from simulator.live.thread import HostProcess, Label
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload

FEWEST = 500  # pages, at which the rate is within 3% of that of many


class Sizes(Part):
    """KiB of the single writes and of the pages, and how many pages: their rate is that of a full queue, which fewer
    would leave before it has filled."""

    single_kib: tuple[PositiveInt, ...] = (64, 256, 1024, 32768)
    page_kib: tuple[PositiveInt, ...] = (1, 8, 16, 64)
    pages: int = Field(2000, ge=FEWEST)


class Knobs(Part):
    """None."""


Case = scenario.Case[Sizes, scenario.Layout, Knobs]


def sender(host: Host, case: Case) -> HostProcess:
    """Rank 0 writes to rank 1, and waits for each transfer to be acknowledged."""
    if host.rank:
        return
    for layer, kib in enumerate(case.batch.single_kib):
        done = yield from host.engine.write(host.proxy, Label(f"single_{kib}KiB", layer), 1, kib * 1024)
        yield from host.until(done, "the write")
    for layer, kib in enumerate(case.batch.page_kib, len(case.batch.single_kib)):
        label = Label(f"paged_{kib}KiB", layer)
        done = yield from host.engine.paged(host.proxy, label, 1, case.batch.pages, kib * 1024)
        yield from host.until(done, "all pages")


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """Gb/s of every size, single writes from submission to completion, pages from the first to the last that leaves."""
    sizes = [("single", kib, 1) for kib in case.batch.single_kib]
    sizes += [("paged", kib, case.batch.pages) for kib in case.batch.page_kib]
    found = {}
    for layer, (kind, kib, count) in enumerate(sizes):
        rows = columns["layer"] == layer
        if kind == "paged":
            rows &= columns["kind"] == "send"  # the rate while many are in flight
        length_s = float(columns["end_ps"][rows].max() - columns["start_ps"][rows].min()) / 1e12
        found[f"{kind}_{kib}KiB_gbit_s"] = 8e-9 * count * kib * 1024 / length_s
    return found


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Nobody meets."""
    if case.ranks != 2:
        right = max(2 * case.cards // case.ranks, 1)
        raise InputError(f"cards is {case.cards}, but one rank writes to one other: set cards to {right}")
    return {}


def memory(case: Case) -> list[MemoryItem]:
    """The largest buffer."""
    pages = max(case.batch.page_kib) * case.batch.pages
    return [("buffer", "communication", 1024.0 * max(*case.batch.single_kib, pages))]


POINT_TO_POINT = Workload(groups=groups, memory=memory, live=sender, readings=readings)
