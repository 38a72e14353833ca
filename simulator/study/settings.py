"""Settings by dotted key: what a scenario's leaves are, and how text from a command line replaces them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from simulator.errors import InputError
from simulator.paths import did_you_mean
from simulator.spec.typed_toml import plain

Model = TypeVar("Model", bound=BaseModel)
MOST = 1e15
"""Size of a number of a setting; only infinity is beyond it."""


def leaves(model: BaseModel) -> dict[str, Any]:
    """Dotted key -> value of every leaf that may be set, in order."""
    return {key: value for key, _, value in _leaves(model)}


def meanings(model: BaseModel) -> dict[str, str]:
    """Dotted key -> what it may be, where it is one of a few, and what it means; "" where nothing is said."""
    found = {}
    for key, field, _ in _leaves(model):
        few = ", ".join(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ""
        found[key] = ": ".join(part for part in (few, field.description) if part)
    return found


def replaced(model: Model, changes: Mapping[str, str], elsewhere: Callable[[], Sequence[str]] = tuple) -> Model:
    """`model` with leaves replaced from text; InputError names every wrong key and value at once.

    elsewhere: keys that are set in another way, to be meant by a user who leaves out how they begin.
    """
    known, mistakes = leaves(model), []
    for key in changes:
        if key not in known:
            inside = [one for one in known if one.startswith(key.rpartition(".")[0] + ".")] or list(known)
            hint = _meant(key, list(known), elsewhere())
            mistakes.append(f"--set {key}: no such setting{hint}; there are {', '.join(inside)}")
    for key, text in changes.items():
        if key not in known:
            continue
        try:
            model = _with(model, key.split("."), text)
        except ValidationError as error:
            reasons = "; ".join(plain(one["msg"]) for one in error.errors(include_url=False))
            mistakes.append(f"--set {key}: got '{text}': {reasons} (now {shown(known[key])})")
        else:
            if _is_absurd(leaves(model)[key]):
                mistakes.append(f"--set {key}: got '{text}': numbers between -{MOST:g} and {MOST:g} are right (now "
                                f"{shown(known[key])})")
    if mistakes:
        raise InputError("\n".join(mistakes))
    return model


def shown(value: Any) -> str:
    """A setting's value as it can be given again."""
    if value is None or value == ():
        return "none"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _is_absurd(value: Any) -> bool:
    """Whether a number of it is finite and beyond MOST."""
    if isinstance(value, tuple | list):
        return any(map(_is_absurd, value))
    return isinstance(value, int | float) and MOST < abs(value) < inf


def _meant(key: str, own: Sequence[str], elsewhere: Sequence[str]) -> str:
    """What a wrong key may mean: the only one that ends so, or one that is close; "" if none is."""
    ending = [one for one in (*own, *elsewhere) if one.endswith(f".{key}")]
    if len(ending) == 1:
        return f" (did you mean '{ending[0]}'?)"
    part = key.partition(".")[0]
    of_a_part = any(one.startswith(f"{part}.") for one in own)
    return did_you_mean(key, own) or did_you_mean(key, () if of_a_part else elsewhere)


def _leaves(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
    """Dotted key, field and value of every leaf that may be set."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if field.exclude or name in ("name", "title"):
            continue
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, field, value


def _with(model: Model, path: list[str], text: str) -> Model:
    """A copy with one leaf replaced and validated."""
    fields = {name: getattr(model, name) for name in type(model).model_fields}
    name, *rest = path
    inner = fields[name]
    fields[name] = _with(inner, rest, text) if rest else _value(text, inner)
    return type(model).model_validate(fields)


def _value(text: str, old: Any) -> Any:
    """Text as the type that it will be checked as; lists may be written 1024,2048 or [1024, 2048]."""
    if isinstance(old, str):
        return text
    if isinstance(old, tuple | list) and text.lower() == "none":
        return []
    if isinstance(old, tuple | list) and not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return json.loads(text.lower() if text in ("True", "False", "None") else {"none": "null"}.get(text, text))
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, brackets without end
        return text
