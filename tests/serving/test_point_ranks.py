"""Orders of layouts, by rows made by hand: Spearman's correlation by its formula, ties, repeats, readings, others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.serving.point_errors import PointRow
from simulator.serving.point_ranks import Case, Layout, among_first, cases, correlation, kept, ranks

POINT: dict[str, Any] = {"family": "llama-70b", "gpu_key": "H100", "n_gpus": 8, "fw_key": "vllm",
                         "quantisation": "fp8", "isl": 1024, "osl": 512, "concurrency": 16}  # fmt: skip
WIDTHS = (1, 2, 4, 8)
NONE: dict[str, Any] = {}
READING = {"all": "layout, stack", "stack": "layout, one stack", "gpus": "layout, stack, as many GPUs"}


def point(name: str, tp: int, **changes: Any) -> dict[str, Any]:
    return POINT | {"id": name, "layout": {"tp": tp}} | changes


def row(name: str, measured: float, simulated: float | None, metric: str = "output_tok_s_per_gpu") -> PointRow:
    return PointRow(name, ("llama-70b", "H100", "vllm"), metric, measured, simulated)


def case(measured: list[float], simulated: list[float]) -> Case:
    return Case("x", "", [Layout("", one, {"braid": other}) for one, other in zip(measured, simulated, strict=True)])


# --- scores of a case -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=20, unique=True), st.randoms(use_true_random=False))
def test_without_ties_it_is_spearman_s_sum_of_squared_differences(values: list[int], random: Any) -> None:
    other = random.sample(values, len(values))
    place = [sorted(some).index(one) for some in (values, other) for one in some]
    squared = sum((a - b) ** 2 for a, b in zip(place[:len(values)], place[len(values):], strict=True))
    n = len(values)
    assert correlation(values, other) == pytest.approx(1 - 6 * squared / (n * (n * n - 1)), abs=1e-12)
    assert correlation(values, [one**3 for one in values]) == pytest.approx(1.0), "order alone counts"


def test_values_alike_have_the_mean_of_their_ranks() -> None:
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, squares 4.5 and 5
    assert correlation([1, 7, 7, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert correlation([3, 3, 3], [1, 2, 3]) == 0.0, "no order"


@pytest.mark.parametrize(("measured", "simulated", "found"), [
    ([100, 90, 80, 70], [5, 6, 4, 3], True),  # second
    ([100, 90, 80, 70], [5, 6, 7, 3], False),  # third
    ([100, 99.5, 80, 70], [5, 6, 7, 3], True),  # what is within 1% of the best is the best, too
    ([100, 98.5, 80, 70], [5, 6, 7, 3], False),
    ([100, 90, 80, 70], [5, 6, 4, 6], False),  # two are ahead of it
    ([100, 90, 80, 70], [5, 5, 5, 5], False),  # what says nothing finds nothing
    ([100, 90, 80, 70], [5, 5, 4, 4], True),
], ids=str)  # fmt: skip
def test_the_best_is_among_the_first_two(measured: list[float], simulated: list[float], found: bool) -> None:
    assert among_first(case(measured, simulated), "braid") == found


def test_what_the_first_keeps_of_the_best() -> None:
    assert kept(case([100, 90, 80], [1, 3, 2]), "braid") == pytest.approx(0.9)
    assert kept(case([100, 90, 80], [1, 3, 3]), "braid") == pytest.approx(0.8), "of two alike, the slower"


# --- what is a case ---------------------------------------------------------------------------------------------------


def test_four_layouts_under_one_load_are_a_case() -> None:
    points = [point(str(tp), tp) for tp in WIDTHS]
    rows = [row(str(tp), 100.0 * tp, 1000.0 / tp) for tp in WIDTHS]
    found = ranks(points, [*rows, *(row(str(tp), 9.0, 9.0, "tpot_ms") for tp in WIDTHS)], NONE)
    assert [(one.reading, one.group, one.cases, one.layouts) for one in found] == [
        (reading, group, 1, 4) for reading in READING.values() for group in ("all", "llama-70b H100")]
    assert all(one.scores["braid"] == (0.0, pytest.approx(-1.0), 0.125) for one in found)
    for changed in ({"concurrency": 32}, {"isl": 2048}, {"osl": 64}, {"gemm_quant": "fp6"}):
        assert not cases([*points[:3], points[3] | changed], rows, NONE), changed
    assert not cases(points, [*rows[:3], row("8", 800.0, None)], NONE), "one is not simulated"


def test_the_load_is_of_all_replicas() -> None:
    points = [point(str(tp), tp) for tp in WIDTHS[:3]]
    rows = [row(str(tp), tp, tp) for tp in WIDTHS]
    half = point("8", 8, n_gpus=16, concurrency=None, replica_concurrency=8)
    assert [len(one.layouts) for one in cases([*points, half], rows, NONE)] == [4]


def test_readings_tell_stacks_and_numbers_of_gpus_apart() -> None:
    stacks = [point(f"{name}{tp}", tp, fw_key=name) for name in ("vllm", "trtllm") for tp in (4, 8)]
    rows = [row(one["id"], 1.0 + number, 1.0 + number) for number, one in enumerate(stacks)]
    assert {one.reading for one in ranks(stacks, rows, NONE)} == {READING["all"], READING["gpus"]}
    numbers = [point(str(tp), tp, n_gpus=tp) for tp in WIDTHS]
    rows = [row(str(tp), tp, tp) for tp in WIDTHS]
    assert {one.reading for one in ranks(numbers, rows, NONE)} == {READING["all"], READING["stack"]}


def test_a_layout_that_was_measured_again_counts_once_by_its_median() -> None:
    points = [*(point(str(tp), tp) for tp in WIDTHS[:3]), *(point(name, 8, version=name) for name in "abc")]
    rows = [*(row(str(tp), tp, tp) for tp in WIDTHS[:3]), row("a", 6.0, 7.0), row("b", 90.0, 9.0), row("c", 8.0, 8.0)]
    assert not cases(points[1:], rows, NONE)
    [found] = cases(points, rows, NONE)
    assert [(one.measured, one.rates["braid"]) for one in found.layouts] == [(1, 1), (2, 2), (4, 4), (8.0, 8.0)]


def test_others_stand_beside_on_layouts_of_which_all_say_something() -> None:
    widths = (*WIDTHS, 16)
    points = [point(str(tp), tp, n_gpus=16) for tp in widths]
    rows = [row(str(tp), tp, tp) for tp in widths]
    others = {str(tp): {"formula": {"tok_s_gpu": 1.0 / tp}} for tp in WIDTHS}
    whole = next(one for one in ranks(points, rows, others) if one.group == "all")
    assert (whole.layouts, whole.scores["braid"], whole.scores["formula"]) == (
        4, (1.0, pytest.approx(1.0), 1.0), (0.0, pytest.approx(-1.0), 0.125))
    assert not ranks(points, rows, others | {"1": NONE}), "three are left"
