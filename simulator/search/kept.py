"""Results of a search in a folder, by name: what is put there is there, whatever becomes of the process.

A result is a line of a journal as soon as it is put. At the opening and at the end the journal becomes part of a
Parquet file: that is written under another name and renamed, and only then the journal is emptied, so that a process
that is killed in between leaves a result in both, which is one. One search has the folder at a time.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from simulator.errors import InputError, reason_of
from simulator.observe.files import whole_file
from simulator.observe.temporary import lock_of, settle
from simulator.search.kept_table import HASH, read_rows, write_rows

TABLE, JOURNAL, LOCK = "layouts.parquet", "layouts.journal", "layouts.lock"
FILES = "layouts.*"  # what a folder has since a search began there

Row = dict[str, Any]


class Kept:
    """Rows by their names, a hash each. folder: None keeps them no longer than this object, and so does one that cannot
    be written to, from the first write that fails. warn: told of that, and of what was there and cannot be read, in one
    line each. InputError: another search has the folder."""

    def __init__(self, folder: Path | None, warn: Callable[[str], None]) -> None:
        self._folder, self._warn = folder, warn
        self._rows: dict[str, Row] = {}
        self._lock = self._journal = -1
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._take(folder)
        except OSError as error:
            self._keep_no_more(error, folder)
        self._read(folder)

    def get(self, name: str) -> Row | None:
        """The row of this name, if it is known. A value that it was put without may be None."""
        return self._rows.get(name)

    def put(self, name: str, row: Mapping[str, Any]) -> None:
        """Keep a row, flat and as JSON has it; it is in the folder when this returns. A name has one row, the last."""
        if HASH in row:
            raise ValueError(f"a row has no '{HASH}' of its own")
        self._rows[name] = dict(row)
        if self._journal < 0 or self._folder is None:
            return
        try:
            _append(self._journal, _line(name, row))
        except OSError as error:
            self._keep_no_more(error, self._folder / JOURNAL)

    def close(self) -> None:
        """Make the journal part of the table, and leave the folder to others."""
        if self._folder is not None and self._journal >= 0:
            try:
                self._fold(self._folder)
            except OSError as error:
                self._keep_no_more(error, self._folder / TABLE)
        self._leave()

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _take(self, folder: Path) -> None:
        """The folder for this process alone, as long as it lives, and its journal to write to."""
        try:
            self._lock, why = lock_of(folder / LOCK)
        except BlockingIOError as error:
            raise InputError(f"another search keeps its results in '{folder}': {error.strerror}; wait for it, or name"
                             " another folder") from None
        if why:
            self._warn(f"'{folder}' cannot be locked here ({why}): no other search may use it meanwhile")
        self._journal = os.open(folder / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)

    def _read(self, folder: Path) -> None:
        """All that is there; the journal becomes part of the table."""
        try:
            self._rows = self._of_table(folder / TABLE)
        except OSError as error:
            self._keep_no_more(error, folder / TABLE)
        lines, broken = _read_journal(folder / JOURNAL)
        self._rows |= lines
        if broken:
            self._warn(f"'{folder / JOURNAL}': {broken} of {broken + len(lines)} rows are broken and computed anew")
        if self._journal < 0:
            return
        try:
            settle(folder)
            self._fold(folder)
        except OSError as error:
            self._keep_no_more(error, folder / TABLE)

    def _of_table(self, path: Path) -> dict[str, Row]:
        """The rows of the table; it gets another name if it is broken."""
        try:
            return read_rows(path) if path.exists() else {}
        except Exception as error:  # Arrow has many for a broken file
            reason = reason_of(error).splitlines()[0][:120].rstrip(".")
        if self._journal < 0:  # nothing can be written there, which was told
            self._warn(f"'{path}' is broken and all of its rows are computed anew: {reason}")
            return {}
        aside = next(one for number in range(1, 1 << 30)
                     if not (one := path.with_name(f"{path.stem}.broken-{number}{path.suffix}")).exists())
        path.rename(aside)
        self._warn(f"'{path}' is broken, is '{aside.name}' now, and all of its rows are computed anew: {reason}")
        return {}

    def _fold(self, folder: Path) -> None:
        if os.fstat(self._journal).st_size == 0:
            return
        if self._rows:
            with whole_file(folder / TABLE) as part:
                write_rows(part, self._rows)
        os.ftruncate(self._journal, 0)

    def _keep_no_more(self, error: OSError, path: Path) -> None:
        self._warn(f"results are not kept from here on: cannot write '{path}': {error.strerror or error}")
        self._leave()

    def _leave(self) -> None:
        for file in (self._journal, self._lock):
            if file >= 0:
                os.close(file)
        self._journal = self._lock = -1


def _append(file: int, line: bytes) -> None:
    """One write, all of it or an OSError."""
    written = os.write(file, b"\n" + line + b"\n")  # begins a line, whatever a process that was killed has left
    if written != len(line) + 2:
        os.ftruncate(file, os.fstat(file).st_size - written)
        raise OSError("there is room for a part of a row alone")


def _line(name: str, row: Mapping[str, Any]) -> bytes:
    text = json.dumps([name, dict(row)])
    return f"{zlib.crc32(text.encode()):08x} {text}".encode()


def _read_journal(path: Path) -> tuple[dict[str, Row], int]:
    """The rows that are whole, by name, and how many are not."""
    rows: dict[str, Row] = {}
    broken = 0
    try:
        lines = path.read_bytes().splitlines()
    except OSError:  # it was told if there is one
        return {}, 0
    for line in filter(None, lines):
        total, _, text = line.partition(b" ")
        try:
            if int(total, 16) != zlib.crc32(text):
                raise ValueError("another row was written")
            name, rows[name] = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            broken += 1
    return rows, broken
