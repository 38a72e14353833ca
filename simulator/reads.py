"""Which settings a run reads: whoever sets one that nothing reads should be told that it changes nothing.

Only what was set from outside is watched: the parts that hold it are replaced by twins whose class notes each look at
those fields, and gives the same values. A run without such settings is not touched at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from simulator.machine.typed_toml import with_number
from simulator.model.shapes import FIELDS_OF

if TYPE_CHECKING:
    from simulator.machine.spec import MachineSpec
    from simulator.model.shapes import Shapes
    from simulator.units import Quantity

Part = TypeVar("Part", bound=BaseModel)
_NUMBER = ("si", "value", "count")  # how a Quantity is read
_WHOLE = ("model_dump", "__iter__")  # whoever asks for all fields reads each


class Reads:
    """Watches settings by their dotted keys; `unread` are those that nothing has looked at so far.

    Sizes and files as a whole (cards, machine, model, kernels) are always read.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = tuple(key for key in keys if "." in key)
        self._read: set[str] = set()

    def unread(self) -> list[str]:
        """In the order in which they were given."""
        return [key for key in self._keys if key not in self._read]

    def part(self, name: str, part: Part) -> Part:
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

    def shapes(self, shapes: Shapes) -> Shapes:
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
        """A class like `cls` whose objects note a look at the fields in `own`: field -> key."""
        noted = self._read

        def look(one: Any, name: str) -> Any:
            if name in own:
                noted.add(own[name])
            elif name in _WHOLE:
                noted.update(own.values())
            return cls.__getattribute__(one, name)

        def hashed(one: Any) -> int:  # to be a key of a cache is no look
            return hash(tuple(cls.__getattribute__(one, name) for name in cls.__slots__))

        body: dict[str, Any] = {"__getattribute__": look, "__module__": cls.__module__, "__doc__": cls.__doc__}
        if not issubclass(cls, BaseModel):
            body |= {"__slots__": (), "__hash__": hashed}
        return type(cls)(cls.__name__, (cls,), body)
