"""Reads a TOML file into a pydantic model, and says everything that is wrong with it at once, to its author."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from simulator.errors import InputError
from simulator.paths import did_you_mean
from simulator.spec.kept import kept
from simulator.units import UNKNOWN, Quantity, parse

Model = TypeVar("Model", bound=BaseModel)
Spec = TypeVar("Spec")
_QUANTITY_LINE = '{value = ..., unit = "...", kind = "...", source = "..."}'


class TomlTable(BaseModel):
    """Base of every table of a typed file: unknown keys are refused, values cannot change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SpecError(InputError, ValueError):
    """Everything wrong with one file; `lines` has one "FILE: key.path: got VALUE: what is right" per mistake."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def line(label: str, key: str, got: Any, right: str) -> str:
    """One line of a SpecError. `got` is what was written, as Python holds it."""
    return f"{label}: {key}: got {_show(got)}: {right}"


def read(path: Path) -> dict[str, Any]:
    """The file's tables, never to be changed; SpecError where it cannot be read or is no TOML (with line, column)."""
    return kept("tables", path, lambda: [path], lambda: _parsed(path))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise SpecError([f"{path}: not valid TOML: {error}"]) from None
    except UnicodeDecodeError as error:
        raise SpecError([f"{path}: not valid TOML: not UTF-8 at byte {error.start}"]) from None
    except ValueError as error:  # a number of thousands of digits
        raise SpecError([f"{path}: not valid TOML: {error}"]) from None
    except RecursionError:
        raise SpecError([f"{path}: not valid TOML: its lists or tables are nested too deeply"]) from None
    except OSError as error:
        raise SpecError([f"{path}: cannot be read: {error.strerror}"]) from None


def validate(model: type[Model], tables: dict[str, Any], label: str,
             disagreements: Callable[[Model], Iterator[tuple[str, Any, str]]] = lambda spec: iter(())) -> Model:
    """`tables` as a `model`; SpecError with every mistake. `label` names the file in messages.

    disagreements: (key, what is there, what is right) wherever parts that are right by themselves do not fit together.
    """

    def contradictions(spec: Model) -> list[str]:
        return [line(label, key, got, right) for key, got, right in disagreements(spec)]

    try:
        spec = model.model_validate(tables)
        mistakes = contradictions(spec)
    except ValidationError as error:
        found = error.errors(include_url=False)
        mistakes = [_line_of(model, dict(each), label) for each in found]
        with suppress(ValueError, LookupError, TypeError):  # what is right may contradict itself all the same
            mistakes += contradictions(model.model_validate(_without(model, tables, [each["loc"] for each in found])))
    if mistakes:
        raise SpecError(mistakes)
    return spec


def _without(model: type[BaseModel], tables: dict[str, Any], wrong: Iterable[Sequence[int | str]]) -> dict[str, Any]:
    """The tables with an unknown number wherever one is wrong, and without keys that are no such thing."""
    mended = deepcopy(tables)
    for location in wrong:
        inside: Any = model
        node: Any = mended
        for place, step in enumerate(location):
            inside, is_tag = _step(inside, step)
            if _bare_type(inside) is Quantity:
                node[step] = UNKNOWN
                break
            if place == len(location) - 1:
                if isinstance(node, dict):
                    del node[step]
                else:
                    node[step] = None  # fits nowhere; without it the others of the list would have other places
            elif not is_tag:
                node = node[step]
    return mended


def overridden(spec: Model, changes: Mapping[str, str | Quantity],
               checked: Callable[[dict[str, Any], str], Model]) -> Model:
    """`spec` with the numbers at some keys of `quantities` replaced; `checked` makes it from tables and a label.

    Text ("3.2 TB/s") becomes a Quantity of kind "assumed" from the "command line". SpecError says for every wrong key
    which ones are right at that place, and for every wrong value what is wanted.
    """
    tables, label = spec.model_dump(), getattr(spec, "name", type(spec).__name__)
    mistakes: list[str] = []
    for key, given in changes.items():
        try:
            table, last, old = _slot(spec, tables, key)
            table[last] = given.model_dump() if isinstance(given, Quantity) else _Written(given, old)
        except ValueError as error:
            mistakes.append(line(label, key, given, str(error)))
    try:
        made = checked(tables, label)
    except SpecError as error:
        mistakes += error.lines
    if mistakes:
        raise SpecError(mistakes)
    return made


class _Written(dict[str, Any]):
    """The table of a number that was given as text, instead of `old`, or of none (None)."""

    def __init__(self, text: str, old: Quantity | None) -> None:
        given = dict(zip(("value", "unit"), parse(text), strict=True), note=f"instead of {old or 'none'}")
        super().__init__(**given, kind="assumed", source="command line")
        self.text = text


def quantities(spec: BaseModel) -> Iterator[tuple[str, Quantity]]:
    """Every number of a machine (or model) with its dotted key, in the order of the file's types.

    Levels of the fabric go by name: ("fabric.node.link_rate", Quantity(...)); other lists by position.
    """
    for key, child in _children(spec).items():
        if isinstance(child, Quantity):
            yield key, child
        else:
            yield from ((f"{key}.{inner}", quantity) for inner, quantity in quantities(child))


def with_number(node: Spec, key: str, change: Callable[[Quantity], Quantity]) -> Spec:
    """The same table with the number at a dotted key of `quantities` changed, nothing checked."""
    children, (step, _, rest) = _children(node), key.partition(".")
    step = _name(node, step, children)
    child = children[step]
    new = with_number(child, rest, change) if rest else change(child)
    if isinstance(node, BaseModel):
        fields = {name: getattr(node, name) for name in type(node).model_fields}
        return type(node).model_construct(**{**fields, step: new})
    if isinstance(node, dict):
        return {**node, step: new}  # type: ignore[return-value]
    return [new if name == step else one for name, one in children.items()]  # type: ignore[return-value]


def type_of(spec: BaseModel, key: str) -> Any:
    """What a number at a dotted key of `quantities` has to be: Seconds, Share, PositiveCount, ..."""
    node: Any = spec
    inside: Any = None
    for step in key.split("."):
        if isinstance(node, BaseModel):
            inside, node = type(node).model_fields[step].rebuild_annotation(), getattr(node, step)
        else:
            children = _children(node)
            inside, node = _step(inside, step)[0], children[_name(node, step, children)]
        members = [one for one in get_args(inside) if one is not type(None)]
        if get_origin(inside) is not Annotated and len(members) == 1 and get_origin(inside) not in (list, tuple):
            (inside,) = members  # of what may be left out
    return inside


def _name(node: Any, step: str, children: Mapping[str, Any]) -> str:
    """What a child is called: levels of the fabric have names, and may be given by position too."""
    return list(children)[int(step)] if isinstance(node, list) and step in map(str, range(len(node))) else step


def _slot(spec: Any, tables: Any, key: str) -> tuple[Any, Any, Quantity | None]:
    """Where a dotted key of `quantities` lies in `tables`, the dump of `spec`: (container, index, Quantity there now;
    None where it is left out). ValueError names the right keys at the first wrong step."""
    node, inside = spec, tables
    last: Any = None
    for place, step in enumerate(key.split(".")):
        if isinstance(node, Quantity):
            raise ValueError(f"'{'.'.join(key.split('.')[:place])}' is a number; write no '.{step}' behind it")
        children = _children(node)
        wanted = _name(node, step, children)
        if last is not None:
            inside = inside[last]
        if wanted not in children:
            if wanted in (absent := _left_out(node)) and place == key.count("."):
                return inside, wanted, None
            right = [*children, *absent]
            raise ValueError(f"no key '{step}'{did_you_mean(step, right)}; keys there are {', '.join(right)}")
        last = list(children).index(wanted) if isinstance(node, list) else wanted
        node = children[wanted]
    if not isinstance(node, Quantity):
        raise ValueError(f"this is a table of numbers, not one; keys in it are {', '.join(_children(node))}")
    return inside, last, node


def _left_out(node: Any) -> list[str]:
    """Numbers that a table may have and does not."""
    fields = type(node).model_fields.items() if isinstance(node, BaseModel) else ()
    return [name for name, field in fields if getattr(node, name) is None
            and any(_bare_type(one) is Quantity for one in get_args(field.annotation))]  # fmt: skip


def _line_of(model: type[BaseModel], error: dict[str, Any], label: str) -> str:
    """A pydantic error as one line."""
    key, inside = _place(model, error["loc"])
    kind, context, got = error["type"], error.get("ctx", {}), error["input"]
    right: list[str]
    if kind == "missing":
        what = f"write {_QUANTITY_LINE}" if _bare_type(inside) is Quantity else "this key is required"
        return f"{label}: {key}: is missing: {what}"
    if kind == "extra_forbidden":
        table, wrong = _bare_type(_place(model, error["loc"][:-1])[1]), str(error["loc"][-1])
        right = list(table.model_fields) if isinstance(table, type) and issubclass(table, BaseModel) else []
        return line(label, key, got, f"no such key{did_you_mean(wrong, right)}; keys are {', '.join(right)}")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = context["discriminator"].strip("'")
        right = [each for member in get_args(_bare_type(inside)) for each in _tags(member)]
        if kind == "union_tag_not_found":
            return f"{label}: {key}.{tag}: is missing: must be one of {', '.join(right)}"
        key, got = f"{key}.{tag}", got[tag]
    elif kind == "literal_error":
        right = [word.strip(" '") for word in context["expected"].replace(" or ", ", ").split(",")]
    else:
        return line(label, key, got, plain(error["msg"]))
    return line(label, key, got, f"must be one of {', '.join(right)}{did_you_mean(str(got), right)}")


def plain(message: str) -> str:
    """Pydantic's own messages in the tone of ours."""
    for start, ours in (("Value error, ", ""), ("Input should be ", "must be "), ("String should ", "text must "),
                        ("a valid dictionary or instance of ", "a table: "),
                        ("a valid tuple", "a list, as in 1024,2048")):
        message = message.replace(start, ours)
    return message


def _place(model: Any, location: Sequence[int | str]) -> tuple[str, Any]:
    """A pydantic location as the key an author would write, and the type that is wanted there.

    The tags of discriminated unions, which pydantic puts into locations, are left out.
    """
    key, inside = "", model
    for step in location:
        inside, is_tag = _step(inside, step)
        if not is_tag:
            key += f"[{step}]" if isinstance(step, int) else f".{step}" if key else str(step)
    return key or "the file", inside


def _step(inside: Any, step: int | str) -> tuple[Any, bool]:
    """One step of a location from a type: (type there, whether the step is a union's tag)."""
    inside = _bare_type(inside)
    if isinstance(inside, type) and issubclass(inside, BaseModel):
        field = inside.model_fields.get(str(step))
        return (field.rebuild_annotation() if field else None), False
    arguments = get_args(inside)
    if get_origin(inside) in (dict, list, tuple):
        return arguments[1 if get_origin(inside) is dict else 0], False
    for member in arguments:
        if isinstance(member, type) and issubclass(member, BaseModel) and step in _tags(member):
            return member, True
    members = [member for member in arguments if member is not type(None)]
    return _step(members[0], step) if len(members) == 1 else (None, False)


def _tags(member: type[BaseModel]) -> list[Any]:
    """The values of a union member's Literal fields."""
    fields = member.model_fields.values()
    return [tag for each in fields if get_origin(each.annotation) is Literal for tag in get_args(each.annotation)]


def _bare_type(inside: Any) -> Any:
    """A type without its Annotated."""
    while get_origin(inside) is Annotated:
        inside = get_args(inside)[0]
    return inside


def _show(got: Any) -> str:
    """What was written, short: a quantity as "5 GB", anything long cut."""
    if isinstance(got, _Written):
        return repr(got.text)
    if isinstance(got, Quantity):
        return str(got)
    if isinstance(got, dict):
        if "value" in got and "unit" in got:
            value = f"{got['value']:g}" if isinstance(got["value"], float) else _show(got["value"])
            return value if got["unit"] == "1" else f"{value} {got['unit']}"
        return "{" + ", ".join(got) + "}" if len(got) < 8 else f"a table of {len(got)} keys"
    if isinstance(got, list):
        return ", ".join(map(str, got)) if all(isinstance(each, Quantity) for each in got) else f"a list of {len(got)}"
    try:
        text = repr(got)
    except ValueError:  # written in hexadecimal: Python does not write thousands of decimal digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _children(node: Any) -> dict[str, Any]:
    """Tables, lists and quantities directly inside a table or a list, by key. Text and absent keys are left out."""
    if isinstance(node, BaseModel):
        pairs: Any = ((name, getattr(node, name)) for name in type(node).model_fields)
    elif isinstance(node, dict):
        pairs = node.items()
    else:
        pairs = ((getattr(child, "name", str(place)), child) for place, child in enumerate(node))
    return {key: child for key, child in pairs if isinstance(child, BaseModel | dict | list)}
