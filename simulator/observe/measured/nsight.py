"""Nsight Systems SQLite, as `nsys export --type sqlite` writes it.

The tables, from NVIDIA's "SQLite Export Schema Reference" (Nsight Systems, nsys-exporter/exported_data): kernels are in
CUPTI_ACTIVITY_KIND_KERNEL, copies in CUPTI_ACTIVITY_KIND_MEMCPY and _MEMSET, calls in CUPTI_ACTIVITY_KIND_RUNTIME,
which have the same correlationId within a process; names are numbers of StringIds; times are ns. A globalTid has the
process in all bits but the lowest 24, globalPid has it alone. Tables are made where there is something to say, and
columns come with versions. A CUDA graph is one row of CUPTI_ACTIVITY_KIND_GRAPH_TRACE unless its nodes were traced.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from simulator.observe.measured.names import COPY, named
from simulator.observe.measured.table import Rows

FORM = "Nsight Systems SQLite"
MAGIC = b"SQLite format 3\x00"
PS_PER_NS = 1_000
KERNELS, GRAPHS, CALLS = (f"CUPTI_ACTIVITY_KIND_{one}" for one in ("KERNEL", "GRAPH_TRACE", "RUNTIME"))
COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "Memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "Memset"}
DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}  # of CUpti_ActivityMemcpyKind
NEEDED = ("start", "end", "deviceId", "streamId")


def rows_of(path: Path) -> Rows:
    """Kernels and copies; ranks are devices, or processes where they are several. ValueError: it is no such file."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)) as database:
            return _rows(database)
    except sqlite3.Error as error:
        raise ValueError(f"it cannot be read as SQLite: {error}") from None


def _rows(database: sqlite3.Connection) -> Rows:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    rows = Rows()
    if GRAPHS in tables:
        (count,) = database.execute(f"SELECT count(*) FROM {GRAPHS}").fetchone()
        rows.notes.append(f"{count} CUDA graphs were traced whole, without their kernels: "
                          "`nsys profile --cuda-graph-trace=node` traces them")
    if KERNELS not in tables:
        why = f": {rows.notes[0]}" if rows.notes else "; an export of a CUDA trace has it, with StringIds"
        raise ValueError(f"it has no table {KERNELS}{why}")
    if "StringIds" not in tables:
        raise ValueError("it has no table StringIds, which has the names of kernels")
    work = [*_kernels(database), *(one for name in COPIES if name in tables for one in _copies(database, name))]
    launched = _launches(database) if CALLS in tables else {}
    places = sorted({(process, device) for process, device, *_ in work})
    alone = len({process for process, _ in places}) <= 1
    rank_of = {place: place[1] if alone else number for number, place in enumerate(places)}
    if not alone:
        rows.notes.append("ranks are its processes, in order of their numbers")
    for process, device, stream, name, is_copy, start, end, correlation in work:
        kind, communication = (COPY, False) if is_copy else named(name)
        rows.add(rank_of[process, device], str(stream), name, kind, communication, start * PS_PER_NS, end * PS_PER_NS,
                 launched.get((process, correlation)))
    return rows


# process, device, stream, name, whether it is a copy, start and end in ns, correlation
_Work = tuple[int, int, int, str, bool, int, int, int]


def _kernels(database: sqlite3.Connection) -> Iterator[_Work]:
    has = _columns(database, KERNELS, NEEDED)
    name = next((one for one in ("demangledName", "shortName", "mangledName") if one in has), None)
    if name is None:
        raise ValueError(f"its {KERNELS} has no column demangledName or shortName")
    query = (f"SELECT {has.get('globalPid', '0')}, deviceId, streamId, StringIds.value, start, \"end\", "
             f"{has.get('correlationId', '-1')} FROM {KERNELS} LEFT JOIN StringIds ON StringIds.id = {name}")
    for process, device, stream, said, start, end, correlation in database.execute(query):
        if end is not None:
            yield process or 0, device, stream, said or "?", False, start, end, correlation


def _copies(database: sqlite3.Connection, table: str) -> Iterator[_Work]:
    has = _columns(database, table, NEEDED)
    query = (f"SELECT {has.get('globalPid', '0')}, deviceId, streamId, {has.get('copyKind', '0')}, start, \"end\", "
             f"{has.get('correlationId', '-1')} FROM {table}")
    for process, device, stream, direction, start, end, correlation in database.execute(query):
        if end is not None:
            name = f"{COPIES[table]} {DIRECTIONS.get(direction, '')}".strip()
            yield process or 0, device, stream, name, True, start, end, correlation


def _launches(database: sqlite3.Connection) -> dict[tuple[int, int], int]:
    """When the call of each (process, correlation) had returned, ps."""
    has = _columns(database, CALLS, ("end", "correlationId"))
    one_process = "globalPid" not in _columns(database, KERNELS, ())
    query = f"SELECT {has.get('globalTid', '0')}, correlationId, \"end\" FROM {CALLS}"
    return {(0 if one_process else thread >> 24 << 24, correlation): end * PS_PER_NS
            for thread, correlation, end in database.execute(query) if end is not None}  # fmt: skip


def _columns(database: sqlite3.Connection, table: str, needed: tuple[str, ...]) -> Mapping[str, str]:
    """The columns of a table; ValueError where it lacks a needed one."""
    has = {name: name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")}
    lacking = [one for one in needed if one not in has]
    if lacking:
        raise ValueError(f"its {table} has no column {', '.join(lacking)}")
    return has
