"""Recorded traces of requests and tables of lengths, read line by line into columns.

The format is told from the keys of the first line, not from the file's name. A broken line is an error, or left out and
counted. A line whose time is before that of the line above is broken too: sorting would hide which of them is wrong.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from simulator import np
from simulator.errors import InputError
from simulator.serving.chains import chained
from simulator.serving.formats import KNOWN, Format, check_keys, priority_of, row_of, short, time_ns, tokens_of, told
from simulator.serving.requests import Requests

FIRST_LINES = 20  # that may be broken before one tells the format
LINES_TOLD = 1024  # from one share to the next
SHOWN_SKIPPED = 5
"""Line numbers of broken lines that are kept."""


def read_trace(path: str | Path, skip_bad: bool = False, limit: int | None = None,
               tell: Callable[[float], None] | None = None) -> Requests:  # fmt: skip
    """The requests of a file, the first `limit` of them: Mooncake, Qwen-Bailian (JSON lines), Azure, BurstGPT (CSV), or
    a table of lengths (JSON lines or CSV), whose requests all arrive at 0.

    Later turns of a chat (Qwen-Bailian) are sent at their time, but not before the turn before has ended. Where a line
    has `priority`, a whole number, 0 is the first. skip_bad: broken lines are left out and counted, as long as they are
    not the larger part. tell: told now and then the share that is read.
    Raises InputError naming file, line, key and value.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be at least 1 request")
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as lines:
            told = lines if tell is None else _told(lines, os.fstat(lines.fileno()).st_size, limit, tell)
            return _read(str(path), enumerate(told, 1), skip_bad, limit)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; it must be a file: {KNOWN}") from error


@dataclass
class _Columns:
    """What was read so far. Numbers of 8 bytes each: a request of a trace takes no object of its own."""

    time_ns: array[int] = field(default_factory=lambda: array("q"))
    input_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    hashes: array[int] = field(default_factory=lambda: array("q"))
    hash_start: array[int] = field(default_factory=lambda: array("q", [0]))
    after: array[int] = field(default_factory=lambda: array("q"))
    priority: array[int] = field(default_factory=lambda: array("q"))
    chats: dict[int, int] = field(default_factory=dict)
    last_line: int = 0
    skipped: int = 0
    skipped_lines: tuple[int, ...] = ()
    reason: str = ""

    def add(self, row: Mapping[str, Any], form: Format, line: int) -> None:
        """One request more; InputError, and nothing is added, if the row is broken."""
        check_keys(row, form)
        input_tokens, output_tokens = tokens_of(row, form.input), tokens_of(row, form.output)
        priority = priority_of(row)
        now = time_ns(row, form) if form.time else 0
        if self.time_ns and now < self.time_ns[-1]:
            raise InputError(f"{form.time} is {short(row[form.time])}, before that of line {self.last_line}; times "
                             "must not run backwards (sort the lines if all times are right)")  # fmt: skip
        after = self._turn_before(row) if form.chats else -1
        if form.hash_tokens:
            self._add_hashes(row, -(-input_tokens // form.hash_tokens))
        if form.chats:
            self.chats[row["chat_id"]] = len(self.after)
        for column, value in ((self.time_ns, now), (self.input_tokens, input_tokens), (self.after, after),
                              (self.output_tokens, output_tokens), (self.priority, priority),
                              (self.hash_start, len(self.hashes))):  # fmt: skip
            column.append(value)
        self.last_line = line

    def skip(self, line: int, reason: str) -> None:
        """A broken line that is left out."""
        self.reason = self.reason or reason
        self.skipped += 1
        self.skipped_lines += (line,) * (self.skipped <= SHOWN_SKIPPED)

    def _turn_before(self, row: Mapping[str, Any]) -> int:
        """The request of the parent, -1 where it has none, or had it before the trace began."""
        chat, parent = row["chat_id"], row.get("parent_chat_id", -1)
        if type(chat) is not int or type(parent) is not int:
            raise InputError(f"chat_id is {short(chat)} and parent_chat_id {short(parent)}; both must be whole numbers")
        if chat in self.chats:
            raise InputError(f"chat_id is {short(chat)}, which an earlier line has; every request must have its own")
        return self.chats.get(parent, -1)

    def _add_hashes(self, row: Mapping[str, Any], blocks: int) -> None:
        hashes, have = row["hash_ids"], len(self.hashes)
        if not isinstance(hashes, list) or len(hashes) > blocks:
            raise InputError(f"hash_ids is {short(hashes)}; it must be a list of at most {blocks} numbers, one a block")
        try:
            self.hashes.extend(hashes)
        except (TypeError, OverflowError) as error:
            del self.hashes[have:]
            raise InputError(f"hash_ids is {short(hashes)}; it must be a list of whole numbers of 64 bits") from error

    def requests(self, form: Format) -> Requests:
        """What was read, the first request at 0."""
        count, start = len(self.after), np.array(self.hash_start)
        time_s = (np.array(self.time_ns) - self.time_ns[0]) / 1e9
        none = np.zeros(count)
        hashes = chained(np.array(self.hashes), start)
        input_tokens, output_tokens, after = map(np.array, (self.input_tokens, self.output_tokens, self.after))
        return Requests(time_s, input_tokens, output_tokens, hashes, start, form.hash_tokens, after, none,
                        np.array(self.priority), self.skipped, self.skipped_lines)  # fmt: skip


def _told(lines: Iterable[str], size_bytes: int, limit: int | None, tell: Callable[[float], None]) -> Iterator[str]:
    """The same lines; told of the share of the file, taken as one byte a character, or of the limit."""
    read = 0
    for number, line in enumerate(lines):
        read += len(line)
        if number % LINES_TOLD == 0:
            tell(min(max(read / max(size_bytes, 1), number / limit if limit else 0.0), 1.0))
        yield line


def _read(path: str, lines: Iterator[tuple[int, str]], skip_bad: bool, limit: int | None) -> Requests:
    head = list(islice(lines, FIRST_LINES))
    try:
        form, header_line = told(head)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    columns = _Columns()
    for number, line in chain(head, lines):
        if len(columns.after) == limit:
            break
        if number == header_line or line.isspace():
            continue
        try:
            columns.add(row_of(line, form.header), form, number)
        except InputError as error:
            if not skip_bad:
                raise InputError(f"{path}, line {number}: {error} (--skip-bad leaves broken lines out)") from error
            columns.skip(number, str(error))
    _check_enough(path, columns)
    return columns.requests(form)


def _check_enough(path: str, columns: _Columns) -> None:
    read, skipped = len(columns.after), columns.skipped
    if skipped > read:
        raise InputError(f"{path}: {skipped} of {skipped + read} lines are broken, too many to leave out; the first is "
                         f"line {columns.skipped_lines[0]}: {columns.reason}")  # fmt: skip
    if not read:
        raise InputError(f"{path}: there is no request below its header; there must be at least 1")
