"""The ledger of a rank's memory, and the refusal that shows it."""

import pytest

from simulator.die.memory import DoesNotFit, Ledger, LedgerItem
from simulator.errors import RunError
from simulator.spec.load import load_machine

GIB = 2**30


def ledger(*sizes: float) -> Ledger:
    made = Ledger("one rank of the test", capacity_bytes=10 * GIB, usable=0.9)
    for place, size in enumerate(sizes):
        made.add(f"weights {place}", "weights", size)
    return made


def test_the_sum_and_what_is_free() -> None:
    made = ledger(2 * GIB, 1 * GIB)
    made.add("cache", "KV", 4 * GIB)
    assert (made.used_bytes, made.usable_bytes, made.free_bytes, made.fits) == (7 * GIB, 9 * GIB, 2 * GIB, True)
    made.check()


def test_exactly_full_fits_and_one_byte_more_does_not() -> None:
    assert ledger(9 * GIB).fits
    assert not ledger(9 * GIB + 1).fits


def test_rows_are_by_category_with_the_largest_first() -> None:
    made = Ledger("a rank", 10 * GIB, 0.9)
    for name, category, size in (("x", "KV", 1.0), ("a", "weights", 1.0), ("b", "weights", 2.0)):
        made.add(name, category, size)  # type: ignore[arg-type]
    assert [row[1] for row in made.rows()] == ["b", "a", "x", "used", "usable, 90.0% of 10 GiB", "free"]


def test_all_rows_are_in_one_unit() -> None:
    made = Ledger("a rank", 80 * GIB)
    made.add("weights", "weights", 52.866 * GIB)
    made.add("buffers", "activations", 12.45 * 2**20)
    sizes = [line.split()[-2:] for line in str(made).splitlines()]
    assert sizes == [["52.866", "GiB"], ["0.012", "GiB"], ["52.878", "GiB"], ["80.000", "GiB"], ["27.122", "GiB"]]


def test_a_refusal_is_the_ledger() -> None:
    made = ledger(8 * GIB)
    made.add("communication buffers", "communication", 3 * GIB)
    with pytest.raises(DoesNotFit) as caught:
        made.check()
    assert str(caught.value).splitlines() == [
        "one rank of the test does not fit: 2 GiB too much",
        "  weights        weights 0                 8 GiB",
        "  communication  communication buffers     3 GiB",
        "                 used                     11 GiB",
        "                 usable, 90.0% of 10 GiB   9 GiB",
        "                 missing                   2 GiB",
    ]
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, RunError)
    assert caught.value.ledger is made


def test_wrong_items_are_refused() -> None:
    with pytest.raises(ValueError, match="category is 'weight': one of weights, KV"):
        LedgerItem("x", "weight", 1.0)  # type: ignore[arg-type]
    for size in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="0 or more"):
            LedgerItem("x", "weights", size)


def test_the_hbm_of_a_chip() -> None:
    made = Ledger.of("a die", load_machine("atlas_a3").chip.hbm)
    assert made.usable_bytes == pytest.approx(0.94 * 64 * GIB)
    assert "free" in str(made)
