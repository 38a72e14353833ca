"""The compiled solver of coupled flows (`ranked.c`), where there is one: bound by ctypes, loaded when first needed.

Without it, or with the environment variable BRAID_PLAIN set, `sharing.py` answers: the same, and more slowly.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).with_name("libranked.so")

_NUMBERS, _LONGS = POINTER(c_double), POINTER(c_int64)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "net_new": (c_void_p, (c_int64,)),
    "net_free": (None, (c_void_p,)),
    "net_capacity": (c_int32, (c_void_p, c_double, c_int64)),
    "net_counter": (c_int32, (c_void_p,)),
    "net_flows": (None, (c_void_p, c_int64, c_int32, c_void_p, c_void_p, c_void_p)),
    "net_rate": (None, (c_void_p, c_int64, c_int32, c_double)),
    "net_limit": (None, (c_void_p, c_int64, c_int32, c_double)),
    "net_advance": (None, (c_void_p, c_int64)),
    "net_next": (c_int64, (c_void_p,)),
    "net_run": (_LONGS, (c_void_p, c_int64)),
    "net_state": (c_double, (c_void_p, c_int32, _LONGS, _NUMBERS, POINTER(_LONGS))),
}  # fmt: skip


@cache
def library() -> Any:
    """The library, or None where it was not built or is not wanted."""
    if os.environ.get("BRAID_PLAIN") or not LIBRARY.exists():
        return None
    found = ctypes.CDLL(str(LIBRARY))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found
