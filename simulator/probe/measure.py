"""Runs a plan on a device: what a record has already is skipped, and what is measured is kept whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from simulator.errors import InputError, Interrupted
from simulator.paths import installed_version
from simulator.probe import record as records
from simulator.probe.device import Device, Unmeasurable
from simulator.probe.plan import Measurement
from simulator.probe.record import Record

SAVED_EVERY_S = 5.0
Tell = Callable[[float, str], None]


def record_of(path: Path, device: Device, date: str) -> Record:
    """The record to go on with, or a new one; InputError where the file is of another device or software."""
    about = device.about()
    if not path.exists():
        return Record(braid=installed_version(), date=date, about=about)
    record = records.read(path)
    if record.about != about:
        here, there = about.model_dump(), record.about.model_dump()
        differing = ", ".join(f"{name} {there[name]} there, {here[name]} here" for name in here
                              if here[name] != there[name])  # fmt: skip
        raise InputError(f"{path} has measurements of another device or software ({differing}): "
                         "choose another --out, or move that file away")  # fmt: skip
    record.rows = [row for row in record.rows if "left_out" not in row]  # they are tried again
    return record


def measure(device: Device, plan: Sequence[Measurement], record: Record, path: Path,
            tell: Tell = lambda share, what: None) -> Record:
    """The record with all that the plan asks for, written to `path` again and again.

    tell: told the share done and what comes next. Interrupted, at Ctrl-C, says what was kept and where.
    """
    left = [one for one in plan if one.key not in record.keys]
    saved_s = monotonic()
    done = len(plan) - len(left)
    try:
        for one in left:
            tell(done / len(plan), one.key)
            record.rows.append(_taken(one, device))
            done += 1
            if monotonic() - saved_s > SAVED_EVERY_S:
                records.write(record, path)
                saved_s = monotonic()
        tell(1.0, "")
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {done} of {len(plan)} measurements are kept in {path}; "
                          "the same command goes on from there") from None  # fmt: skip
    finally:
        if left:
            records.write(record, path)
    return record


def _taken(one: Measurement, device: Device) -> records.Row:
    try:
        found = one.take(device)
    except Unmeasurable as error:
        found = {"left_out": str(error)}
    return {"section": one.section, "key": one.key, **found}
