"""SI text <-> numbers, and Quantity: a number that knows its unit, how it is known, and from where.

Inside Braid everything is SI (s, B, B/s, FLOP/s, Hz, W); the clock counts integer picoseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from simulator.paths import did_you_mean

PS_PER_S = 10**12

Kind: TypeAlias = Literal["published", "derived", "fitted", "assumed"]

# unit -> (dimension, numerator, denominator); two whole numbers keep 10 us == 1e-05 exactly
_UNITS: dict[str, tuple[str, int, int]] = {
    "1": ("1", 1, 1), "B/cycle": ("B/cycle", 1, 1),
    "s": ("s", 1, 1), "ms": ("s", 1, 10**3), "us": ("s", 1, 10**6), "ns": ("s", 1, 10**9), "ps": ("s", 1, 10**12),
    "B": ("B", 1, 1), "kB": ("B", 10**3, 1), "MB": ("B", 10**6, 1), "GB": ("B", 10**9, 1), "TB": ("B", 10**12, 1),
    "KiB": ("B", 2**10, 1), "MiB": ("B", 2**20, 1), "GiB": ("B", 2**30, 1), "TiB": ("B", 2**40, 1),
    "B/s": ("B/s", 1, 1), "kB/s": ("B/s", 10**3, 1), "MB/s": ("B/s", 10**6, 1), "GB/s": ("B/s", 10**9, 1),
    "TB/s": ("B/s", 10**12, 1), "GiB/s": ("B/s", 2**30, 1), "TiB/s": ("B/s", 2**40, 1),
    "Mb/s": ("B/s", 10**6, 8), "Gb/s": ("B/s", 10**9, 8), "Tb/s": ("B/s", 10**12, 8),
    "FLOPS": ("FLOP/s", 1, 1), "FLOP/s": ("FLOP/s", 1, 1), "GFLOPS": ("FLOP/s", 10**9, 1),
    "TFLOPS": ("FLOP/s", 10**12, 1), "PFLOPS": ("FLOP/s", 10**15, 1),
    "GOPS": ("FLOP/s", 10**9, 1), "TOPS": ("FLOP/s", 10**12, 1), "POPS": ("FLOP/s", 10**15, 1),
    "Hz": ("Hz", 1, 1), "kHz": ("Hz", 10**3, 1), "MHz": ("Hz", 10**6, 1), "GHz": ("Hz", 10**9, 1),
    "W": ("W", 1, 1), "kW": ("W", 10**3, 1), "MW": ("W", 10**6, 1),
}
_SHOWN = {"s": ("s", "ms", "us", "ns", "ps"), "B": ("TiB", "GiB", "MiB", "KiB", "B"),
          "B/s": ("TB/s", "GB/s", "MB/s", "kB/s", "B/s"), "FLOP/s": ("PFLOPS", "TFLOPS", "GFLOPS", "FLOPS"),
          "Hz": ("GHz", "MHz", "kHz", "Hz"), "W": ("MW", "kW", "W"), "1": ("1",), "B/cycle": ("B/cycle",)}
_DIMENSIONS = {"s": "a time", "B": "an amount of bytes", "B/s": "a rate of bytes", "FLOP/s": "a rate of operations",
               "Hz": "a frequency", "W": "a power", "1": "a plain number", "B/cycle": "bytes per clock cycle"}
_NUMBER = re.compile(r"\s*([+-]?(?:inf|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))\s*(.*?)\s*")


MOST_SIGNS = 400
"""Of a quantity as text."""


def to_ps(seconds: float) -> int:
    """A duration on the clock: integer picoseconds, rounded up, never negative; for finite seconds only.

    The 2**-7 ps forgives rounding noise: 3e-6 s is 3,000,000 ps although 3e-6 * 1e12 may be a hair more.
    """
    return max(0, math.ceil(seconds * 1e12 - 2**-7))


def units_of(dimension: str) -> list[str]:
    """Every unit of a dimension ("s", "B", "B/s", "FLOP/s", "Hz", "W", "1", "B/cycle")."""
    return [unit for unit, (its, _, _) in _UNITS.items() if its == dimension]


def dimension_of(unit: str) -> str:
    """The dimension of a unit ("GB/s" -> "B/s"); ValueError with the closest unit and all units."""
    if unit not in _UNITS:
        by_case = next((right for right in _UNITS if right.lower() == unit.lower()), None)
        hint = f" (did you mean '{by_case}'?)" if by_case else did_you_mean(unit, _UNITS)
        raise ValueError(f"'{unit}' is no unit{hint}; units are {', '.join(_UNITS)}")
    return _UNITS[unit][0]


def to_si(value: float, unit: str) -> float:
    """A number in SI: to_si(10, "us") == 1e-05. ValueError for an unknown unit."""
    dimension_of(unit)
    _, numerator, denominator = _UNITS[unit]
    return value * numerator / denominator


def parse(text: str) -> tuple[float, str]:
    """"3.2 TB/s" -> (3.2, "TB/s"), "24" -> (24.0, "1"), "inf B/s" -> (inf, "B/s"); ValueError says what is right."""
    match = _NUMBER.fullmatch(text) if len(text) <= MOST_SIGNS else None
    if match is None:
        right = '"3.2 TB/s", "10 us", "24" or "inf B/s"'
        shown = text if len(text) <= MOST_SIGNS else f"{text[:MOST_SIGNS]}..."
        raise ValueError(f"'{shown}' is no quantity: write a number and a unit, as in {right}")
    unit = match[2] or "1"
    dimension_of(unit)
    return float(match[1]), unit


def format_si(value: float, dimension: str) -> str:
    """A number in SI for people, four digits: (1.6e12, "B/s") -> "1.6 TB/s", (1e-5, "s") -> "10 us".

    Bytes get binary prefixes (GiB), rates decimal ones. ValueError for an unknown dimension.
    """
    if dimension not in _SHOWN:
        raise ValueError(f"'{dimension}' is no dimension; dimensions are {', '.join(_SHOWN)}")
    if dimension == "1":
        return f"{value:.4g}" if abs(value) < 1e4 or value != round(value) else f"{value:.0f}"
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {dimension}"
    for unit in _SHOWN[dimension]:
        _, numerator, denominator = _UNITS[unit]
        scaled = value * denominator / numerator
        if abs(scaled) >= 0.99995 or unit == _SHOWN[dimension][-1]:
            break
    return f"{scaled:.4g} {unit}"


def alike(values: Sequence[float | None]) -> list[str]:
    """Numbers of one quantity with as many decimals each: four digits of the largest, two of the smallest as far as
    three decimals give them; none where all are whole. "-" for None."""
    largest = max((abs(value) for value in values if value and math.isfinite(value)), default=0.0)
    values = [0.0 if value is not None and abs(value) < 1e-9 * largest else value for value in values]
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    if all(math.isclose(size, round(size), rel_tol=1e-9) for size in sizes):
        decimals = 0
    else:
        high, low = (math.floor(math.log10(size)) for size in (max(sizes), min(sizes)))
        decimals = max(3 - high, min(1 - low, 3), 0)
    return ["-" if value is None else f"{round(value, decimals) + 0.0:,.{decimals}f}" for value in values]


class Quantity(BaseModel):
    """A number of a machine or a model, with its unit, how it is known (`kind`) and from where (`source`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(strict=True, description="in `unit`; may be inf where a limit is lifted")
    unit: str = Field(description='"us", "GB/s", "TFLOPS", ...; "1" for counts and ratios')
    kind: Kind = Field(description="published | derived (with its expression) | fitted (with what on) | assumed")
    source: str = Field(min_length=1, description="what to open in order to check it")
    confidence: Literal["H", "M", "L"] | None = Field(
        default=None, description="H: two independent sources, M: one direct source, L: inference")
    expression: str | None = Field(default=None, min_length=1, description="of a derived number")
    fitted_on: str | None = Field(default=None, min_length=1, description="of a fitted number")
    note: str | None = None

    @field_validator("value")
    @classmethod
    def _is_a_number(cls, value: float) -> float:
        if math.isnan(value):
            raise PydanticCustomError("not_a_number", "must be a number")
        return value

    @field_validator("unit")
    @classmethod
    def _is_a_unit(cls, unit: str) -> str:
        try:
            dimension_of(unit)
        except ValueError as error:
            raise PydanticCustomError("unit", "{text}", {"text": str(error)}) from None
        return unit

    @model_validator(mode="before")
    @classmethod
    def _is_a_table(cls, given: Any) -> Any:
        return _refuse_bare(given, "1")

    @model_validator(mode="wrap")
    @classmethod
    def _says_how_it_is_known(cls, given: Any, handler: Callable[[Any], Any]) -> Any:
        return _all_mistakes(given, handler, _unproven)

    @property
    def dimension(self) -> str:
        """"s", "B", "B/s", "FLOP/s", "Hz", "W", "1" or "B/cycle"."""
        return _UNITS[self.unit][0]

    @cached_property
    def si(self) -> float:
        """The number in SI: s, B, B/s, FLOP/s, Hz, W, 1."""
        return to_si(self.value, self.unit)

    @property
    def count(self) -> int:
        """The number of a Count as an int."""
        return int(self.value)

    def __str__(self) -> str:
        """As written: "1.6 TB/s"; a plain number without its unit."""
        number = f"{self.value:.10g}"
        return number if self.unit == "1" else f"{number} {self.unit}"


UNKNOWN = Quantity.model_construct(value=math.nan, unit="1", kind="assumed", source="not known")
"""Stands where any number is wanted and none can be had: it fits everywhere, and no comparison with it holds."""


def _refuse_bare(given: Any, unit: str) -> Any:
    """Lets tables and Quantities through; a bare number or text is refused with the line to write instead."""
    if isinstance(given, dict | Quantity):
        return given
    shown = given if _as_float(given) is not None and not isinstance(given, bool) else "..."
    what = "a bare number is refused" if shown != "..." else "a quantity is a table"
    raise PydanticCustomError("bare_number", "{text}", {
        "text": f'{what}; write {{value = {shown}, unit = "{unit}", kind = "published", source = "..."}}'})


def _all_mistakes(given: Any, handler: Callable[[Any], Any], more: Callable[[Any], Iterator[tuple[str, str]]]) -> Any:
    """What the handler makes of a value; its mistakes and `more` of them, as (type, text), are raised together."""
    made, found = given, []
    try:
        made = handler(given)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            kind = PydanticCustomError(one["type"], "{text}", {**one.get("ctx", {}), "text": one["msg"]})
            found.append(InitErrorDetails(type=kind, loc=one["loc"], input=one["input"]))
    if isinstance(made, dict | Quantity):
        for name, text in more(made):
            kind = PydanticCustomError(name, "{text}", {"text": text})
            found.append(InitErrorDetails(type=kind, loc=(), input=given))
    if found:
        raise ValidationError.from_exception_data("Quantity", found)
    return made


def _field(quantity: dict[str, Any] | Quantity, name: str) -> Any:
    """A field of a quantity, or of a table that is none yet."""
    return quantity.get(name) if isinstance(quantity, dict) else getattr(quantity, name)


def _unproven(quantity: Any) -> Iterator[tuple[str, str]]:
    """What its kind needs beside the source."""
    for kind, needed in (("derived", "expression"), ("fitted", "fitted_on")):
        if _field(quantity, "kind") == kind and _field(quantity, needed) is None:
            yield needed, f'a {kind} number needs `{needed} = "..."`'


def _bare(unit: str) -> BeforeValidator:
    return BeforeValidator(lambda given: _refuse_bare(given, unit))


def _check(dimension: str, rule: Callable[[float], bool], right: str) -> WrapValidator:
    """Validator of a Quantity's dimension and range; `right` says the range in words."""

    def misfits(quantity: Any) -> Iterator[tuple[str, str]]:
        unit, value = _field(quantity, "unit"), _field(quantity, "value")
        if quantity is UNKNOWN or not isinstance(unit, str) or unit not in _UNITS:
            return
        its = _UNITS[unit][0]
        if its != dimension:
            what = _DIMENSIONS[its] if unit == "1" else f"'{unit}' is {_DIMENSIONS[its]}"
            units = units_of(dimension)
            these = f": one of {', '.join(units)}" if len(units) > 1 else f', unit "{dimension}"'
            yield "dimension", f"{what}, wanted is {_DIMENSIONS[dimension]}{these}"
        elif (number := _as_float(value)) is not None and not math.isnan(number) and not rule(to_si(number, unit)):
            yield "range", f"must be {right}"

    return WrapValidator(lambda given, handler: _all_mistakes(given, handler, misfits))


def _as_float(value: Any) -> float | None:
    """A number as a float; None for what is none, or has too many digits for one."""
    try:
        return float(value) if isinstance(value, float | int) else None
    except OverflowError:
        return None


def _finite(value: float) -> bool:
    return 0 <= value < math.inf


def _whole(value: float) -> bool:
    return _finite(value) and value == int(value)


_RATE = "more than 0"
Seconds: TypeAlias = Annotated[Quantity, _bare("us"), _check("s", _finite, "a finite time, 0 or more")]
Bytes: TypeAlias = Annotated[Quantity, _bare("GiB"), _check("B", lambda v: v >= 0, "0 or more")]
BytesPerSecond: TypeAlias = Annotated[Quantity, _bare("GB/s"), _check("B/s", lambda v: v > 0, _RATE)]
FlopsPerSecond: TypeAlias = Annotated[Quantity, _bare("TFLOPS"), _check("FLOP/s", lambda v: v > 0, _RATE)]
Hertz: TypeAlias = Annotated[Quantity, _bare("GHz"), _check("Hz", lambda v: 0 < v < math.inf, "finite and more than 0")]
Watts: TypeAlias = Annotated[Quantity, _bare("W"), _check("W", lambda v: 0 < v < math.inf, "finite and more than 0")]
Ratio: TypeAlias = Annotated[Quantity, _bare("1"), _check("1", _finite, "finite and 0 or more")]
Share: TypeAlias = Annotated[Quantity, _bare("1"), _check("1", lambda v: 0 <= v <= 1, "between 0 and 1")]
PositiveShare: TypeAlias = Annotated[Quantity, _bare("1"), _check("1", lambda v: 0 < v <= 1, "above 0, at most 1")]
Count: TypeAlias = Annotated[Quantity, _bare("1"), _check("1", _whole, "a whole number, 0 or more")]
PositiveCount: TypeAlias = Annotated[
    Quantity, _bare("1"), _check("1", lambda v: _whole(v) and v >= 1, "a whole number, 1 or more")]
