"""Hostile variants of valid input: trees (TOML, JSON), texts and bytes that are a few changes away from a right one.

Everything is drawn from a `random.Random`: the same seed makes the same case.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

NUMBERS = (0, 1, -1, 2, 3, 7, 1 << 31, -(1 << 31), (1 << 53) + 1, 1 << 63, (1 << 63) - 1, -(1 << 63) - 1, 1 << 64,
           10**12, 10**18, 10**30, 10**400, 0.0, -0.0, 0.5, -0.5, 1e-300, 5e-324, 1e300, -1e300, 1.7e308, math.inf,
           -math.inf, math.nan, True, False)  # fmt: skip
TEXTS = ("", " ", "0", "-1", "1e999", "nan", "inf", "-inf", "NaN", "none", "null", "true", "1_000", "0x10", "1,2", "[",
         "[]", "{}", "a" * 300, "ü", "\u202e", "\ud7ff", "\U0001f600", "\x00", "\n", "'", '"', "\\", "%s", "{0}", "*",
         "..", "../../etc/passwd", "/dev/null", "~nobody/x", ".", "/", "<script>alert(1)</script>", "</script>",
         "1 GB", "1 GB/s", "-1 us", "inf B/s", "1e400 s", "1 parsec", "GB", "re:(a+)+$", "re:(", "٣", "１", "²",
         "1.2.3", "--help", "a.b.c", "a:b", "=", "1" * 5000, "A:x=1")  # fmt: skip
UNITS = ("1", "s", "ms", "us", "ns", "ps", "B", "GB", "GiB", "B/s", "GB/s", "Gb/s", "FLOPS", "TFLOPS", "Hz", "GHz", "W",
         "B/cycle", "gb", "", "parsec")  # fmt: skip
DEEP = 300
"""Levels of a table that is nested where none is."""


def scalar(rng: Random) -> Any:
    """A value that few keys want."""
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.choice(TEXTS)


def odd(rng: Random) -> Any:
    """Another kind of thing: a scalar, none, a list, a table, a quantity, a deep nest."""
    draw = rng.random()
    if draw < 0.6:
        return scalar(rng)
    if draw < 0.7:
        return [scalar(rng) for _ in range(rng.randrange(4))]
    if draw < 0.8:
        return {str(scalar(rng)): scalar(rng) for _ in range(rng.randrange(3))}
    if draw < 0.9:
        return {"value": scalar(rng), "unit": rng.choice(UNITS), "kind": "assumed", "source": "a fuzzer"}
    return None if draw < 0.95 else nested(rng.choice((3, 30, DEEP)), rng.random() < 0.5)


def nested(levels: int, lists: bool) -> Any:
    """A list in a list in a list, or a table in a table."""
    made: Any = 1
    for _ in range(levels):
        made = [made] if lists else {"a": made}
    return made


def tree(rng: Random, value: Any, most: int = 3) -> Any:
    """A tree with up to `most` changes; the one given stays as it was."""
    for _ in range(1 + rng.randrange(most)):
        value = _changed(rng, value)
    return value


def _changed(rng: Random, node: Any) -> Any:
    """The node with one change in it, mostly deep inside."""
    inside = isinstance(node, dict | list) and len(node) > 0
    if not inside or rng.random() < 0.03:
        return _other(rng, node)
    here: Any = dict(node) if isinstance(node, dict) else list(node)
    key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
    draw = rng.random()
    if draw < 0.6:
        here[key] = _changed(rng, here[key])
    elif draw < 0.75:
        del here[key]
    elif draw < 0.85:
        here[key] = odd(rng)
    elif isinstance(here, list):
        here.insert(rng.randrange(len(here) + 1), rng.choice((here[key], odd(rng))))
    elif draw < 0.92:
        here[str(scalar(rng))] = rng.choice((here[key], odd(rng)))
    else:  # what belongs to one key stands at another
        other = rng.choice(list(here))
        here[key], here[other] = here[other], here[key]
    return here


def _other(rng: Random, value: Any) -> Any:
    """A value in place of another, mostly of its kind."""
    if isinstance(value, bool) or value is None or rng.random() < 0.25:
        return odd(rng)
    if isinstance(value, int | float):
        near = float(value) if abs(value) < 1e300 else 1.5
        return rng.choice((rng.choice(NUMBERS), -value, value + 1, value - 1, str(value), near))
    if isinstance(value, str):
        return rng.choice((rng.choice(TEXTS), value[:-1], value + "x", value.upper(), rng.choice(UNITS), scalar(rng)))
    return odd(rng)


def raw(rng: Random, data: bytes, most: int = 3) -> bytes:
    """Bytes with up to `most` changes: cut, flipped, doubled, taken out, put in, overwritten."""
    for _ in range(1 + rng.randrange(most)):
        data = rng.choice(_RAW)(rng, data)
    return data


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flipped(rng: Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(min(len(found), rng.choice((1, 1, 4, 16)))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _without(rng: Random, data: bytes) -> bytes:
    begin = rng.randrange(len(data) + 1)
    return data[:begin] + data[begin + rng.choice((1, 8, 64, 512)) :]


def _doubled(rng: Random, data: bytes) -> bytes:
    begin = rng.randrange(len(data) + 1)
    end = begin + rng.choice((1, 8, 64, 512))
    return data[:end] + data[begin:end] + data[end:]


def _with(rng: Random, data: bytes) -> bytes:
    begin = rng.randrange(len(data) + 1)
    pieces = (str(scalar(rng)).encode("utf-8", "replace"), b"\xff\xfe", b"\x00" * 4, b"\xef\xbb\xbf", b"\x1f\x8b",
              b"[" * 2000, b'{"a":' * 2000, b"\xff" * 8, b"\n", b"\r")
    return data[:begin] + rng.choice(pieces) + data[begin:]


_RAW: tuple[Callable[[Random, bytes], bytes], ...] = (_cut, _flipped, _without, _doubled, _with)


def text(rng: Random, given: str) -> str:
    """A text with a few changes of its characters, or another one."""
    if rng.random() < 0.2:
        return str(scalar(rng))
    place = rng.randrange(len(given) + 1)
    piece = str(scalar(rng)) if rng.random() < 0.5 else rng.choice("0159-+.eE,:=/ \t\x00xé")
    return given[:place] + piece + given[place + rng.randrange(3) :]


def json_text(value: Any) -> str:
    """A tree as JSON, with NaN and infinities as Python writes them; what it cannot write as its text."""
    try:
        return json.dumps(value, default=str)
    except (RecursionError, ValueError):
        return "[" * 5000


def toml_text(given: Any) -> str:
    """Tables as TOML: the top by keys and headers, all else inline. What TOML does not have is left out."""
    tables: Mapping[str, Any] = given if isinstance(given, Mapping) else {"whole": given}
    lines = [f"{_key(name)} = {_inline(value)}" for name, value in tables.items() if not isinstance(value, Mapping)]
    for name, value in tables.items():
        if isinstance(value, Mapping):
            lines += [f"[{_key(name)}]", *(f"{_key(one)} = {_inline(inner)}" for one, inner in value.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    plain = name.replace("_", "a").replace("-", "a")
    return name if plain.isascii() and plain.isalnum() else json.dumps(name)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(name))} = {_inline(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else f"{'-' if value < 0 else ''}inf"
    return json.dumps(value) if isinstance(value, str | bool) else str(value) if value is not None else '""'
