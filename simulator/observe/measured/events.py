"""Chrome events of a JSON trace: how they are read, and what is asked of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from simulator.observe.measured.table import microseconds

Event: TypeAlias = Mapping[str, Any]


def parsed(text: bytes) -> tuple[Event, list[Event]]:
    """The object around the events, empty where they come as an array, and the events; numbers with a point stay text.

    ValueError: it is no JSON, or no trace.
    """
    try:
        found = json.loads(text, parse_float=str)
    except ValueError as error:
        raise ValueError(f"it is no whole JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is no trace: it is nested too deeply") from None
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise ValueError("it is JSON without traceEvents")
    return found if isinstance(found, dict) else {}, [one for one in events if isinstance(one, dict)]


def args_of(event: Event) -> Event:
    """Its arguments; empty where it has none."""
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def said(event: Event) -> str:
    """The name that an "M" event gives to a process or thread."""
    return str(args_of(event).get("name", ""))


def time_ps(event: Event, key: str) -> int:
    """Its `ts` or `dur`; ValueError where it has none."""
    return microseconds(event.get(key, "missing"), f"{key} of '{event.get('name')}'")
