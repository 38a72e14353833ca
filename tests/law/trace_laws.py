"""What holds for every Chrome trace that is to be shown whole: call `check_trace` on a file."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

Track = tuple[int, int]


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a .json or .json.gz trace, times as exact decimals of a microsecond."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    whole = json.loads(text, parse_float=Decimal)
    assert "displayTimeUnit" not in whole
    return whole["traceEvents"]


def check_trace(path: Path) -> list[dict[str, Any]]:
    """Asserts that nothing in a trace is dropped or dangles; returns its events."""
    events = read_events(path)
    slices = _slices(events)
    _check_arrows(events, slices)
    named = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name"}
    assert set(slices) <= named, f"tracks without a name: {sorted(set(slices) - named)}"
    _check_nesting(events)
    for one in events:
        for key in ("ts", "dur"):
            if key in one:
                assert one[key] >= 0
                assert one[key] * 1000 == int(one[key] * 1000), f"{key} {one[key]} us is no whole number of nanoseconds"
    return events


def _check_nesting(events: list[dict[str, Any]]) -> None:
    """Each id has one slice, and others only inside it: what begins ends, the last begun first, and never before."""
    opened: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    whole = set()
    for one in events:
        if one["ph"] not in "be":
            continue
        key = one["pid"], one["cat"], one["id2"]["local"]
        assert key not in whole, f"async id {key} has a second slice"
        if one["ph"] == "b":
            assert not opened[key] or opened[key][-1]["ts"] <= one["ts"], f"async id {key} goes back in time"
            opened[key].append(one)
            continue
        assert opened[key], f"async id {key} ends what did not begin"
        begun = opened[key].pop()
        assert (begun["name"], begun["ts"] <= one["ts"]) == (one["name"], True), f"async id {key} does not nest"
        if not opened[key]:
            whole.add(key)
    assert not any(opened.values()), "async events need an e for each b"


def _slices(events: list[dict[str, Any]]) -> dict[Track, list[tuple[Decimal, Decimal]]]:
    """(start, end) of the X slices of each track, in order; asserts that they do not overlap."""
    slices: dict[Track, list[tuple[Decimal, Decimal]]] = defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            slices[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    for track, some in slices.items():
        some.sort()
        for (_, end), (start, _) in pairwise(some):
            assert start >= end, f"slices overlap on process {track[0]}, thread {track[1]} at {start} us"
    return slices


def _check_arrows(events: list[dict[str, Any]], slices: dict[Track, list[tuple[Decimal, Decimal]]]) -> None:
    """Each id has one start and one finish, start first, both inside a slice of their track."""
    arrows: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for one in events:
        if one["ph"] in "sf":
            assert one["ph"] not in arrows[one["id"]], f"arrow {one['id']} has two events {one['ph']}"
            arrows[one["id"]][one["ph"]] = one
            some = slices[one["pid"], one["tid"]]
            place = bisect_right(some, (one["ts"], Decimal("Infinity"))) - 1
            assert place >= 0, f"arrow {one['id']} binds to no slice"
            assert any(start <= one["ts"] < end for start, end in some[max(0, place - 8):place + 1]), (
                f"arrow {one['id']} binds to no slice at {one['ts']} us")
    for number, ends in arrows.items():
        assert set(ends) == {"s", "f"}, f"arrow {number} lacks an end"
        assert ends["s"]["ts"] <= ends["f"]["ts"], f"arrow {number} points back in time"
        assert ends["f"].get("bp") == "e"
