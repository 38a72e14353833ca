"""Formats of traces: which keys say when a request arrives, how long it is, what it shares; and their values."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, lru_cache
from typing import Any

from simulator.errors import InputError


@dataclass(frozen=True)
class Format:
    """Keys of a line of a trace; `header`: those of a CSV in order, none for JSON lines."""

    name: str
    input: str
    output: str
    time: str = ""
    unit_ns: int = 0
    """Nanoseconds of a unit of time; 0: times are dates."""
    hash_tokens: int = 0
    """Tokens of a block of `hash_ids`; 0: there are none."""
    chats: bool = False
    """`chat_id` and `parent_chat_id` say which request continues which."""
    csv: bool = False
    header: tuple[str, ...] = ()

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys that every line must have."""
        return frozenset({self.input, self.output, self.time, *self._sharing()} - {""})

    @cached_property
    def refuses(self) -> frozenset[str]:
        """Keys that mean another format."""
        return frozenset({"hash_ids", "chat_id"}.difference(self._sharing()))

    def _sharing(self) -> list[str]:
        return ["hash_ids"] * bool(self.hash_tokens) + ["chat_id"] * self.chats


# The formats as their authors publish them: github.com/alibaba-edu/qwen-bailian-usagetraces-anon, kvcache-ai/Mooncake
# (FAST25-release), Azure/AzurePublicDataset (LLM inference 2023 and 2024), HPMLL/BurstGPT. Hashes may be left out of a
# whole file. A format that has all keys of another stands before it.
FORMATS = (
    Format("Qwen-Bailian JSON lines", "input_length", "output_length", "timestamp", 10**9, hash_tokens=16, chats=True),
    Format("Qwen-Bailian JSON lines", "input_length", "output_length", "timestamp", 10**9, chats=True),
    Format("Mooncake JSON lines", "input_length", "output_length", "timestamp", 10**6, hash_tokens=512),
    Format("Mooncake JSON lines", "input_length", "output_length", "timestamp", 10**6),
    Format("Azure CSV", "ContextTokens", "GeneratedTokens", "TIMESTAMP", csv=True),
    Format("BurstGPT CSV", "Request tokens", "Response tokens", "Timestamp", 10**9, csv=True),
)
TABLE_INPUTS = ("input_length", "input_tokens", "input_len", "prompt_length", "prompt_tokens", "prompt_len", "isl")
TABLE_OUTPUTS = ("output_length", "output_tokens", "output_len", "completion_tokens", "response_tokens", "osl")
TABLE_REFUSES = re.compile("time|arriv|hash_id|chat_id")  # what a table would leave out, or means in a way not known
KNOWN = (
    "Mooncake JSON lines (timestamp, input_length, output_length, hash_ids), Qwen-Bailian JSON lines (chat_id, "
    "parent_chat_id and those), an Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens), a BurstGPT CSV (Timestamp,"
    f"Model,Request tokens,Response tokens,...), or a table of lengths without times (CSV or JSON lines with one of "
    f"{', '.join(TABLE_INPUTS)} and one of {', '.join(TABLE_OUTPUTS)}); each may "
    "have a priority beside it"
)
MAX_TOKENS = MAX_PRIORITY = 2**31
DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?")


def told(lines: Iterable[tuple[int, str]]) -> tuple[Format, int]:
    """The format that the first lines (numbered) tell by their keys, and the line that is a header (0: none)."""
    first = ""
    for number, line in lines:
        first = first or line.strip()
        is_json = line.lstrip().startswith("{")
        try:
            keys = row_of(line).keys() if is_json else [cell.strip() for cell in _cells(line)]
        except InputError:
            continue  # a broken line; one after it tells
        form = next((form for form in FORMATS if form.csv != is_json and form.keys <= set(keys)), None) or _table(keys)
        if form:
            return (form, 0) if is_json else (replace(form, header=tuple(keys)), number)
    raise InputError(f"it begins with {short(first)} and is no trace; it must be {KNOWN}" if first else
                     f"it is empty; it must be {KNOWN}")  # fmt: skip


def row_of(line: str, header: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """The values of a line by their keys: of a CSV with this header, or of a JSON object."""
    if header:
        cells = _cells(line)
        if len(cells) != len(header):
            right = f"it must have {len(header)}: {','.join(header)}"
            raise InputError(f"{short(line.strip())} has {len(cells)} columns; {right}")
        return dict(zip(header, cells, strict=True))
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{short(line.strip())} is not JSON ({error}); it must be one object") from error
    if not isinstance(row, dict):
        raise InputError(f"{short(line.strip())} is no object; it must be one as {{\"input_length\": ...}}")
    return row


def check_keys(row: Mapping[str, Any], form: Format) -> None:
    """InputError if a key is missing, or there that the first line, which told the format, did not have."""
    if missing := form.keys - row.keys():
        right = f"a line must have {', '.join(sorted(form.keys))} ({form.name})"
        raise InputError(f"{', '.join(sorted(missing))} is missing; {right}")
    if more := form.refuses & row.keys():
        raise InputError(f"{', '.join(sorted(more))} is there, but not in the first line; it must be in all or none")


def tokens_of(row: Mapping[str, Any], key: str) -> int:
    """A length: a whole number of tokens, at least 1."""
    value = row[key]
    number = int(value) if isinstance(value, str) and len(value) < 20 and value.strip().isdecimal() else value
    if type(number) is int and 1 <= number <= MAX_TOKENS:
        return number
    raise InputError(f"{key} is {short(value)}; it must be a whole number of tokens, from 1 to 2^31")


def priority_of(row: Mapping[str, Any]) -> int:
    """Any format may have it: a whole number, 0 the first; 0 where it is not there."""
    value = row.get("priority", 0)
    number = int(value) if isinstance(value, str) and len(value) < 20 and value.strip().isdecimal() else value
    if type(number) is int and 0 <= number <= MAX_PRIORITY:
        return number
    raise InputError(f"priority is {short(value)}; it must be a whole number from 0 (the first) to 2^31")


def time_ns(row: Mapping[str, Any], form: Format) -> int:
    """The time of arrival in whole nanoseconds, from whatever moment the trace counts."""
    value = row[form.time]
    found = _number_ns(value, form.unit_ns) if form.unit_ns else _date_ns(str(value))
    if found is not None and 0 <= found < 2**63:
        return found
    unit = {10**6: "a number of milliseconds", 10**9: "a number of seconds"}.get(form.unit_ns, "a date and time (UTC)")
    right = f"{unit}, at least 0" if form.unit_ns else f"{unit} as 2023-11-16 18:17:03.9799600"
    raise InputError(f"{form.time} is {short(value)}; it must be {right}")


def short(value: object) -> str:
    """A value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _table(keys: Iterable[str]) -> Format | None:
    """A table of lengths, if there is one column of each kind and none of times."""
    plain = {key.strip().casefold().replace(" ", "_"): key for key in keys}
    inputs, outputs = ([plain[name] for name in names if name in plain] for names in (TABLE_INPUTS, TABLE_OUTPUTS))
    if any(TABLE_REFUSES.search(key) for key in plain) or len(inputs) != 1 or len(outputs) != 1:
        return None
    return Format("table of lengths", inputs[0], outputs[0])


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise InputError(f"{short(line.strip())} is not CSV ({error})") from error


def _number_ns(value: Any, unit_ns: int) -> int | None:
    if type(value) is int:
        return value * unit_ns
    try:
        number = float(value) if type(value) in (float, str) else math.nan
    except ValueError:
        return None
    return round(number * unit_ns) if math.isfinite(number * unit_ns) else None


def _date_ns(text: str) -> int | None:
    parts = DATE.fullmatch(text.strip())
    if not parts:
        return None
    day, hour, minute, second, fraction = parts.groups(default="0")
    days = _days(day)
    if days is None:
        return None
    return (((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)) * 10**9 + int(fraction.ljust(9, "0"))


@lru_cache(maxsize=16)
def _days(day: str) -> int | None:
    """Days since 1970; None if there is no such day."""
    try:
        return date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None
