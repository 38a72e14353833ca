"""Which settings a run reads: a user who sets one that nothing reads is told that it changes nothing.

Only what was set from outside is watched: the parts that hold it are replaced by twins whose class notes each look at
those fields, and gives the same values. A run without such settings is not touched at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from inspect import getattr_static
from typing import Any, TypeVar

from pydantic import BaseModel

from simulator.model.transformer import Model
from simulator.spec.levels import LINK_SETTINGS
from simulator.spec.machine import MachineSpec
from simulator.spec.model import FIELDS_OF, ModelShapes
from simulator.spec.typed_toml import with_number
from simulator.units import Quantity

PartT = TypeVar("PartT", bound=BaseModel)
_NUMBER = ("si", "value", "count")  # how a Quantity is read
_WHOLE = ("model_dump", "__iter__")  # code that asks for all fields reads each


class Reads:
    """Watches settings by their dotted keys; `unread` are those that nothing has looked at so far.

    Sizes and files as a whole (cards, machine, model, kernels) are always read, and so are links that are cut or slow.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        always = {f"machine.{key}" for key in LINK_SETTINGS}
        self._keys = tuple(key for key in keys if "." in key and key not in always)
        self._read: set[str] = set()

    def unread(self) -> list[str]:
        """In the order in which they were given."""
        return [key for key in self._keys if key not in self._read]

    def part(self, name: str, part: PartT) -> PartT:
        """A part of a scenario ("knobs"), and what is inside it."""
        keys = [key for key in self._keys if key.startswith(f"{name}.")]
        if not keys:
            return part
        fields = {field: getattr(part, field) for field in type(part).model_fields}
        own = {key.rpartition(".")[2]: key for key in keys if key.count(".") == name.count(".") + 1}
        inner = {field: self.part(f"{name}.{field}", value) if isinstance(value, BaseModel) else value
                 for field, value in fields.items()}
        return self._twin(type(part), own).model_construct(**inner)

    def machine(self, spec: MachineSpec) -> MachineSpec:
        """The machine's numbers."""
        for key in self._keys:
            if key.startswith("machine."):
                spec = with_number(spec, key.partition(".")[2], partial(self._number, key))
        return spec

    def model(self, model: Model) -> Model:
        """The model's layers, which follow from all its numbers."""
        self._read.update(key for key in self._keys if key.startswith("model."))
        return model

    def shapes(self, shapes: ModelShapes) -> ModelShapes:
        """The model's numbers."""
        own = {field: key for key in self._keys if key.startswith("model.")
               for field in FIELDS_OF.get(key.rpartition(".")[2], (key.rpartition(".")[2],))}
        if not own:
            return shapes
        names = type(shapes).__slots__
        return self._twin(type(shapes), own)(**{name: getattr(shapes, name) for name in names})

    def _number(self, key: str, quantity: Quantity) -> Any:
        return self._twin(type(quantity), dict.fromkeys(_NUMBER, key)).model_construct(**dict(quantity))

    def _twin(self, cls: Any, own: Mapping[str, str]) -> Any:
        """A class like `cls` whose objects note looks at the fields in `own`: field -> key; being hashed is no look."""
        body: dict[str, Any] = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        if issubclass(cls, BaseModel):
            body |= {name: self._noting_all(getattr(cls, name), own) for name in _WHOLE}
        else:
            slots = [getattr_static(cls, name) for name in cls.__slots__]
            body |= {"__slots__": (), "__hash__": lambda one: hash(tuple(slot.__get__(one) for slot in slots))}
        twin = type(cls)(cls.__name__, (cls,), body)
        for name, key in own.items():
            setattr(twin, name, self._noting(getattr_static(cls, name, None), name, key))
        return twin

    def _noting(self, original: Any, name: str, key: str) -> property:
        """In place of a slot or property of a class, or of a field that lies in the object (None)."""

        def look(one: Any) -> Any:
            self._read.add(key)
            return one.__dict__[name] if original is None else original.__get__(one, type(one))

        return property(look, getattr(original, "__set__", None))

    def _noting_all(self, original: Any, own: Mapping[str, str]) -> Any:
        """In place of a method that reads every field."""

        def look(one: Any, *args: Any, **named: Any) -> Any:
            self._read.update(own.values())
            return original(one, *args, **named)

        return look
