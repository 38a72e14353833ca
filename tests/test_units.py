"""SI text and numbers, and what a Quantity refuses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simulator import units
from simulator.units import Quantity, dimension_of, format_si, parse, to_ps, to_si


def quantity(value: float = 1.0, unit: str = "1", **more: object) -> dict[str, object]:
    return {"value": value, "unit": unit, "kind": "published", "source": "a datasheet", **more}


def mistakes(wanted: object, given_: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(wanted).validate_python(given_)
    return [error["msg"] for error in caught.value.errors()]


@pytest.mark.parametrize(("seconds", "ps"), [
    (0.0, 0), (1e-12, 1), (3e-6, 3_000_000), (0.1 + 0.2, 300_000_000_000), (1.2e-12, 2), (1e-15, 0), (-1e-9, 0),
    (1.0, units.PS_PER_S), (0.7e-6, 700_000), (0.35e-6 + 0.7e-6 + 0.7e-6 + 0.35e-6, 2_100_000),
])
def test_durations_are_rounded_up_without_rounding_noise(seconds: float, ps: int) -> None:
    assert to_ps(seconds) == ps


@given(st.integers(min_value=0, max_value=10**12))
def test_whole_picoseconds_survive_the_way_through_seconds(ps: int) -> None:
    assert to_ps(ps / 1e12) == ps


@pytest.mark.parametrize(("text", "value", "unit", "si"), [
    ("3.2 TB/s", 3.2, "TB/s", 3.2e12), ("10us", 10, "us", 1e-5), (" 24 ", 24, "1", 24), ("1e-3 s", 1e-3, "s", 1e-3),
    ("64 GiB", 64, "GiB", 2**36), ("inf B/s", math.inf, "B/s", math.inf), ("200 Gb/s", 200, "Gb/s", 25e9),
    ("752 TOPS", 752, "TOPS", 752e12), (".5 ms", 0.5, "ms", 5e-4), ("1_000 B", 1000, "B", 1000),
    ("inf", math.inf, "1", math.inf),
])
def test_parse(text: str, value: float, unit: str, si: float) -> None:
    assert parse(text) == (value, unit)
    assert to_si(value, unit) == si


@pytest.mark.parametrize(("text", "says"), [
    ("", "write a number and a unit"), ("fast", "write a number and a unit"), ("nan B", "write a number and a unit"),
    ("5 parsec", "'parsec' is no unit; units are"), ("5 tb/s", "did you mean 'TB/s'?"),
    ("5 GBs", "did you mean 'GB/s'?"),
    ("1,6 TB/s", "is no unit"), ("--5 s", "write a number"),
])
def test_parse_says_what_is_right(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("?", r"\?")):
        parse(text)


@pytest.mark.parametrize(("value", "dimension", "text"), [
    (1.6e12, "B/s", "1.6 TB/s"), (1e-5, "s", "10 us"), (2**36, "B", "64 GiB"), (0.0, "s", "0 s"),
    (math.inf, "B/s", "inf B/s"), (999.999e9, "B/s", "1 TB/s"), (752e12, "FLOP/s", "752 TFLOPS"),
    (3.128, "s", "3.128 s"),
    (1500.0, "B", "1.465 KiB"), (0.0251, "1", "0.0251"), (129280.0, "1", "129280"), (1.85e9, "Hz", "1.85 GHz"),
    (1e-13, "s", "0.1 ps"), (-2e-3, "s", "-2 ms"), (110.0, "B/cycle", "110 B/cycle"),
])
def test_format_si(value: float, dimension: str, text: str) -> None:
    assert format_si(value, dimension) == text


def test_format_si_refuses_a_unit_for_a_dimension() -> None:
    with pytest.raises(ValueError, match="'GB' is no dimension"):
        format_si(1, "GB")


@given(st.floats(min_value=1e-11, max_value=1e5))
def test_what_is_shown_can_be_parsed_again(seconds: float) -> None:
    value, unit = parse(format_si(seconds, "s"))
    assert dimension_of(unit) == "s"
    assert to_si(value, unit) == pytest.approx(seconds, rel=6e-4)


def test_a_quantity_knows_its_number_in_si_and_its_text() -> None:
    rate = Quantity(value=1.6, unit="TB/s", kind="published", source="a datasheet", confidence="H")
    assert (rate.si, rate.dimension, str(rate)) == (1.6e12, "B/s", "1.6 TB/s")
    assert str(Quantity(value=24, unit="1", kind="published", source="x")) == "24"
    with pytest.raises(ValidationError):
        rate.value = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(("given_", "says"), [
    (24, 'a bare number is refused; write {value = 24, unit = "1", kind = "published", source = "..."}'),
    ("24", "a quantity is a table"),
    (True, "a quantity is a table"),
    (quantity(kind="derived"), 'a derived number needs `expression = "..."`'),
    (quantity(kind="fitted"), 'a fitted number needs `fitted_on = "..."`'),
    (quantity(kind="guessed"), "published"),
    (quantity(unit="parsec"), "'parsec' is no unit"),
    (quantity(value=math.nan), "must be a number"),
    (quantity(value="24"), "valid number"),
    (quantity(value=True), "valid number"),
    (quantity(source=""), "at least 1 character"),
    (quantity(confidence="high"), "'H', 'M' or 'L'"),
    (quantity(cofidence="H"), "Extra inputs"),
])
def test_what_a_quantity_refuses(given_: object, says: str) -> None:
    assert any(says in message for message in mistakes(Quantity, given_))


def test_a_quantity_without_a_source_is_refused() -> None:
    assert mistakes(Quantity, {"value": 1.0, "unit": "1", "kind": "published"}) == ["Field required"]


@pytest.mark.parametrize(("wanted", "good", "bad", "says"), [
    (units.Seconds, quantity(10, "us"), quantity(10, "B"), "an amount of bytes, wanted is a time: one of s, ms, us"),
    (units.Seconds, quantity(0, "s"), quantity(math.inf, "s"), "a finite time"),
    (units.Bytes, quantity(64, "GiB"), quantity(64, "GB/s"), "'GB/s' is a rate of bytes, wanted is an amount of bytes"),
    (units.Bytes, quantity(math.inf, "B"), quantity(-1, "B"), "0 or more"),
    (units.BytesPerSecond, quantity(math.inf, "B/s"), quantity(0, "B/s"), "more than 0"),
    (units.FlopsPerSecond, quantity(1, "TOPS"), quantity(1, "1"), "a plain number, wanted is a rate of operations"),
    (units.Hertz, quantity(1.85, "GHz"), quantity(0, "GHz"), "more than 0"),
    (units.Ratio, quantity(2.5), quantity(-0.1), "0 or more"),
    (units.Share, quantity(0.94), quantity(1.01), "between 0 and 1"),
    (units.Count, quantity(0), quantity(2.5), "a whole number, 0 or more"),
    (units.Count, quantity(3), quantity(math.inf), "a whole number"),
    (units.PositiveCount, quantity(1), quantity(0), "1 or more"),
])
def test_dimensions_and_ranges(wanted: object, good: object, bad: object, says: str) -> None:
    assert isinstance(TypeAdapter(wanted).validate_python(good), Quantity)
    assert any(says in message for message in mistakes(wanted, bad))


def test_a_bare_number_is_answered_with_a_unit_of_the_right_dimension() -> None:
    assert 'unit = "GB/s"' in mistakes(units.BytesPerSecond, 196)[0]
    assert 'unit = "us"' in mistakes(units.Seconds, 10)[0]
