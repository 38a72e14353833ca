"""What-ifs against closed forms on a small machine, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.program.rank import Rank
from simulator.study import whatif, whatif_band
from simulator.study.scenario import LadderStep
from simulator.study.simulate import simulate
from simulator.study.whatif import AS_IS, Base, Outcome, answered, base_of, settings_of
from simulator.study.whatif_band import band_of, draw, drawn_of, even
from simulator.study.whatif_elasticity import elasticities, ends
from simulator.study.whatif_faster import FREE, RELIEVED, REORDERED, SLOWER, TWICE, FasterRow, faster_rows, fasters
from simulator.study.whatif_knobs import as_asked, fall_of, flips, waterfalls
from simulator.study.whatif_parts import PARTS, plan
from tests.replay.small import passes_mb
from tests.study.whatif_scenarios import US, contending, scenario, serial, switched

CHAIN, BESIDE, SWITCHED = scenario(serial, 2), scenario(contending), scenario(switched)


@cache
def as_it_is(name: str) -> Base:
    """The base of one of them, which costs more than a what-if."""
    return base_of({"chain": CHAIN, "beside": BESIDE, "switched": SWITCHED, "alone": scenario(alone)}[name])


def alone(npu: Rank, case: Any) -> None:
    """One kernel: 1 us, then 40 us through HBM."""
    npu.launch(passes_mb(4), "it")


def rows_of(base: Base, *hows: str) -> dict[str, FasterRow]:
    asked = list(fasters(base, hows))
    answers = answered(base, [one.settings for one in asked])
    return {row.what: row for row in faster_rows(base, asked, answers)}


@cache
def rows_of_chain() -> dict[str, FasterRow]:
    return rows_of(as_it_is("chain"), FREE, TWICE)


def saved_ps(base: Base, row: FasterRow) -> int:
    assert row.saved is not None
    return round(row.saved * base.result.makespan_ps)


# free and faster ------------------------------------------------------------------------------------------------------


def test_in_a_chain_a_free_block_saves_its_share_to_the_picosecond() -> None:
    base, rows = as_it_is("chain"), rows_of_chain()
    assert base.result.makespan_ps == 265 * US
    assert {what: saved_ps(base, rows[f"{what} free"]) // US for what in ("first", "second", "move")} == {
        "first": 132, "second": 21, "move": 112}
    for what in ("first", "second", "move"):
        row = rows[f"{what} free"]
        assert row.saved == pytest.approx(row.share, abs=1e-12)
        assert (row.promised, row.remark) == (row.share, "")


@pytest.mark.parametrize(("what", "us"), [
    ("HBM x2", 75.0), ("HBM free", 112.5), ("engine: dma x2", 55.5), ("kernel latency free", 3.0),
    ("link latency free", 1.0)])  # fmt: skip
def test_in_a_chain_what_the_path_promises_is_what_is_saved(what: str, us: float) -> None:
    """15 MB through HBM (10 us each, L2 2.5 us) after 1 us each; 100 kB on the wire after 11 us and 1 us across."""
    base, row = as_it_is("chain"), rows_of_chain()[what]
    assert saved_ps(base, row) == pytest.approx(us * US, abs=1000)
    assert row.promised == pytest.approx(row.saved, rel=1e-6)
    assert row.speed_up == pytest.approx(265 / (265 - us))


def test_what_is_freed_beside_the_path_saves_what_it_slowed_and_the_table_says_so() -> None:
    base = as_it_is("beside")
    row = rows_of(base, FREE)["short free"]
    assert (row.share, row.remark) == (0.0, RELIEVED)
    assert saved_ps(base, row) == 20 * US
    assert saved_ps(base, rows_of(base, FREE)["long free"]) == (61 - 21) * US


@pytest.mark.parametrize(("us", "remark"), [(61.0, ""), (60.9, RELIEVED), (41.0, RELIEVED), (40.9, REORDERED),
                                            (61.1, SLOWER)])  # fmt: skip
def test_more_than_the_share_and_the_slowing_of_others_is_another_order(us: float, remark: str) -> None:
    base = as_it_is("beside")
    short = next(one for one in fasters(base, [FREE]) if one.title == "short free")
    outcome = Outcome(round(us * US), {"latency_ms": us / 1e3})
    (row,) = faster_rows(base, [short], {short.settings: outcome})
    assert row.remark == remark


def test_what_is_free_already_stays_so_and_its_block_is_named_once_more() -> None:
    """Of a chain without one block the others still save their share."""
    base = base_of(scenario(serial, 2).replace({"free": "move"}))
    rows = rows_of(base, FREE)
    assert base.result.makespan_ps == (132 + 21) * US
    assert saved_ps(base, rows["second free"]) == 21 * US
    assert saved_ps(base, rows["move free"]) == 0


def test_nothing_of_a_run_that_takes_no_time() -> None:
    base = base_of(scenario(lambda npu, case: None))
    assert plan(base, PARTS, 2).found(answered(base, plan(base, PARTS, 2).asked())).as_object()["free"] == []


# what it is held against ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_every_number_of_the_machine_as_it_is_changes_nothing(seed: int) -> None:
    one = scenario(contending)
    base, plain = base_of(one, seed), simulate(one, seed=seed)
    assert base.result.makespan_ps == plain.makespan_ps
    assert base.result.metrics == plain.metrics
    assert "chip.hbm.peak" in base.read
    assert "host.launch_graph" not in base.read, "it is no captured graph"
    factor_1 = base.of_machine({key: one.value for key, one in base.numbers.items()})
    answers = answered(base, [factor_1, AS_IS])
    assert answers[factor_1].makespan_ps == answers[AS_IS].makespan_ps == plain.makespan_ps


def test_the_metric_is_the_first_that_is_measured_or_one_that_a_run_has() -> None:
    assert as_it_is("chain").metric == "latency_ms"
    assert base_of(CHAIN, metric="makespan_ms").value == 0.265
    assert base_of(CHAIN, metric="vector_ms").value == pytest.approx(0.153)
    with pytest.raises(InputError, match=r"has no metric nothing.*makespan_ms is the length of any run"):
        base_of(CHAIN, metric="nothing")


def test_a_metric_of_the_timeline_is_read_from_one() -> None:
    base = base_of(CHAIN, metric="vector_ms")
    free = settings_of({"free": "second"})
    assert answered(base, [free])[free].value("vector_ms") == pytest.approx(0.132)


# elasticities ---------------------------------------------------------------------------------------------------------


def test_elasticities_are_shares_of_time_where_one_thing_bounds_it() -> None:
    """4 MB through HBM in 40 us of 41: -40/41, and the floor of 1 us: 1/41."""
    base = as_it_is("alone")
    asked = [one for one in ends(base, every=True)
             if one.parameter in ("chip.hbm.peak", "kernels.round.vector.floor", "chip.l2.capacity")]
    rows = elasticities(base, asked, answered(base, [end for one in asked for end in (one.low, one.high)]))
    assert {row.parameter: row.elasticity for row in rows} == {
        "chip.hbm.peak": pytest.approx(-40 / 41, abs=1e-3),
        "kernels.round.vector.floor": pytest.approx(1 / 41, abs=1e-3), "chip.l2.capacity": 0.0}
    assert [row.parameter for row in rows][:1] == ["chip.hbm.peak"], "the largest comes first"


def test_whole_numbers_go_to_their_neighbours_and_shares_stop_at_one() -> None:
    base = base_of(scenario(serial, 2).replace({"machine.chip.hbm.efficiency": "1"}))
    values = {one.parameter: one.values for one in ends(base, every=True)}
    assert values["chip.cores.vector"] == (7.0, 9.0)
    assert values["chip.hbm.efficiency"] == (0.95, 1.0)
    assert values["collectives.dma.cores.sdma"] == (1.0, 2.0)
    assert values["chip.hbm.peak"] == pytest.approx((190.0, 210.0))


def test_only_what_bounds_the_path_unless_all_is_asked_for() -> None:
    base = as_it_is("chain")
    few, every = list(ends(base)), list(ends(base, every=True))
    assert {one.parameter for one in few} == {row["name"] for row in base.result.parameters}
    assert len(every) > 2 * len(few)


# knobs ----------------------------------------------------------------------------------------------------------------


def falls(base: Base) -> Any:
    there = waterfalls(base)
    answers = answered(base, [as_asked(base, settings) for fall in there for settings in fall.asked()])
    return [fall_of(base, fall, answers) for fall in there]


def test_two_knobs_that_hide_the_same_have_a_remainder() -> None:
    (fall,) = falls(as_it_is("switched"))
    assert (fall.start, fall.end) == (0.122, 0.101)
    ms = {step.switch: (step.alone, step.in_order, step.last, step.value) for step in fall.steps}
    assert ms == {"beside": pytest.approx((-0.021, -0.021, 0.0, 0.101)),
                  "left_out": pytest.approx((-0.021, 0.0, 0.0, 0.101))}
    assert (fall.alone, fall.remainder) == (pytest.approx(-0.042), pytest.approx(0.021))
    assert sum(step.in_order for step in fall.steps) == pytest.approx(fall.end - fall.start)


def test_a_ladder_goes_from_the_scenario_to_all_its_steps_and_a_refused_step_has_its_reason() -> None:
    steps = (LadderStep(title="more", changes={"knobs.slower": "true"}),
             LadderStep(title="refused", changes={"knobs.slower": "perhaps"}))
    _, fall = falls(base_of(scenario(switched, ladder=steps)))
    assert (fall.steps[0].alone, fall.steps[0].last) == (pytest.approx(0.031), None)
    assert (fall.steps[1].alone, fall.end, fall.remainder) == (None, None, None)
    assert "got 'perhaps'" in fall.steps[1].reason


def test_knobs_that_are_off_are_switched_on() -> None:
    base = as_it_is("switched")
    on = settings_of({"knobs.slower": "true"})
    (flip,) = flips(base, answered(base, [on]))
    assert (flip.knob, flip.change) == ("slower", pytest.approx(0.031))


# the band -------------------------------------------------------------------------------------------------------------


def band(base: Base, ranges: dict[str, float], draws: int = 8) -> Any:
    drawn = drawn_of(base, ranges)
    asked = [draw(base, drawn, number) for number in range(draws)]
    path = list(ends(base))
    answers = answered(base, [*asked, *(end for one in path for end in (one.low, one.high))])
    return band_of(base, drawn, asked, answers, elasticities(base, path, answers))


RANGES = {"H": 0.03, "M": 0.10, "L": 0.30}


def test_without_ranges_the_band_is_the_point() -> None:
    found = band(as_it_is("chain"), dict.fromkeys(RANGES, 0.0), draws=3)
    assert found.reasons == ()
    for one in found.metrics:
        assert one.p10 == one.p50 == one.p90 == one.point


def test_a_band_is_drawn_from_its_seed_and_more_draws_keep_the_first() -> None:
    base = as_it_is("chain")
    assert band(base, RANGES, 3) == band(base, RANGES, 3)
    drawn = drawn_of(base)
    assert draw(base, drawn, 0) != draw(base, drawn, 1)
    assert draw(base, drawn, 1) != draw(replace(base, seed=1), drawn, 1)
    assert set(draw(base, drawn[:3], 1)) < set(draw(base, drawn, 1))


def test_draws_are_even_within_their_ranges() -> None:
    places = sorted(even(0, number, "key") for number in range(400))
    assert -1.0 <= places[0] < -0.95 < 0.95 < places[-1] <= 1.0
    assert max(abs(place - (2 * (at + 0.5) / 400 - 1)) for at, place in enumerate(places)) < 0.12


def test_what_bounds_the_run_makes_its_band_wide() -> None:
    """One kernel of 40 us through HBM: peak and efficiency are off by 30%, half of the variance each."""
    base = as_it_is("alone")
    found = band(base, RANGES, draws=12)
    (spread,) = found.metrics
    assert spread.p10 < spread.p50 < spread.p90
    causes = {one.parameter: one for one in found.causes}
    assert set(causes) == {"chip.hbm.peak", "chip.hbm.efficiency"}
    for one in causes.values():
        assert (one.range, one.variance) == (0.3, pytest.approx(0.5, abs=0.01))
        assert one.rank is not None
        assert one.rank < -0.3


def test_ranks_count_what_is_less() -> None:
    values = [3.0, 1.0, 2.0, 1.0, 3.0]
    assert whatif_band._places(values) == [sum(other < value for other in values) for value in values]
    up = whatif_band._places([one / 7 for one in range(1000)])
    assert whatif_band._rank_correlation(up, whatif_band._places([2.0**one for one in range(1000)])) == 1.0
    assert whatif_band._rank_correlation(up, up[::-1]) == pytest.approx(-1.0)
    assert whatif_band._rank_correlation(up, [5] * 1000) is None
    assert whatif_band._rank_correlation([0, 1], [0, 1]) is None


def test_counts_are_rounded_and_shares_are_no_more_than_one() -> None:
    base = base_of(scenario(serial, 2).replace({"machine.chip.hbm.efficiency": "0.9"}))
    drawn = {one.parameter: one for one in drawn_of(base)}
    assert drawn["chip.cores.vector"].at(0.3) == 9.0
    assert drawn["collectives.dma.cores.sdma"].at(-1.0) == 1.0
    assert drawn["chip.hbm.efficiency"].at(1.0) == 1.0
    assert drawn["chip.hbm.peak"].at(-1.0) == pytest.approx(140.0)


def test_published_counts_and_numbers_that_are_known_are_not_drawn() -> None:
    number = as_it_is("chain").numbers["chip.hbm.peak"]
    known = number.model_copy(update={"kind": "fitted", "confidence": None})
    count = number.model_copy(update={"kind": "published", "confidence": "H", "unit": "1", "value": 24.0})
    sure = number.model_copy(update={"kind": "published", "confidence": "H"})
    assert [whatif_band._spread(one, RANGES) for one in (number, known, count, sure)] == [0.3, None, None, 0.03]


# what is kept ---------------------------------------------------------------------------------------------------------


class Told:
    """How many what-ifs were kept, and how many were left to run."""

    def __call__(self, known: int, left: int) -> None:
        self.counts = known, left


def test_a_study_that_was_cut_off_goes_on_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    base, told = as_it_is("switched"), Told()
    planned = plan(base, PARTS, 4)
    whole = planned.found(answered(base, planned.asked())).as_object()
    count = len({one for one in planned.asked() if one != AS_IS})

    def stop(share: float) -> None:
        if share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answered(base, planned.asked(), folder=tmp_path, tell=stop)
    (file,) = tmp_path.iterdir()
    with file.open("a") as torn:  # what a process that is killed leaves
        torn.write('\n{"settings": {"knobs.beside": "fal')
    resumed = planned.found(answered(base, planned.asked(), folder=tmp_path, report=told)).as_object()
    assert told.counts[0] >= int(0.4 * count) > 0
    assert sum(told.counts) == count
    assert resumed == whole
    answered(base, planned.asked(), folder=tmp_path, report=told)
    assert told.counts == (count, 0)
    answered(base, planned.asked(), folder=tmp_path, fresh=True, report=told)
    assert told.counts == (0, count)


@pytest.mark.parametrize("other", [
    lambda: base_of(scenario(switched), seed=1), lambda: base_of(scenario(switched, 2)),
    lambda: base_of(scenario(switched).replace({"machine.chip.hbm.peak": "100 GB/s"})),
    lambda: base_of(scenario(switched), metric="compute_ms")])  # fmt: skip
def test_what_is_kept_is_of_one_scenario_and_seed_and_has_the_metric(tmp_path: Path, other: Callable[[], Base]) -> None:
    free, told = settings_of({"free": "always"}), Told()
    answered(as_it_is("switched"), [free], folder=tmp_path)
    answered(other(), [free], folder=tmp_path, report=told)
    assert told.counts == (0, 1)


NO_NUMBER = '{"settings": {"free": "always"}, "makespan_ps": 1, "metrics": {"latency_ms": NaN}, "reason": ""}'


@pytest.mark.parametrize("line", ["[1]", "{}", '{"settings": {}}', "\x00", NO_NUMBER, "[" * 5000])
def test_a_broken_line_is_as_none(tmp_path: Path, line: str) -> None:
    base, free, told = as_it_is("switched"), settings_of({"free": "always"}), Told()
    answered(base, [settings_of({"knobs.beside": "false"})], folder=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(line)
    answered(base, [free], folder=tmp_path, report=told)
    assert told.counts == (0, 1)
    answered(base, [free], folder=tmp_path, report=told)
    assert told.counts == (1, 0)


def test_what_is_refused_or_cannot_be_computed_has_its_reason_and_the_others_run(tmp_path: Path) -> None:
    def divided(npu: Rank, case: Any) -> None:
        npu.launch(passes_mb(1), "it")
        _ = 1 / (not case.knobs.slower)

    base, told = base_of(scenario(divided)), Told()
    wrong, divides = settings_of({"machine.chip.hbm.peak": "0 GB/s"}), settings_of({"knobs.slower": "true"})
    unknown, right = settings_of({"free": "nothing"}), settings_of({"free": "it"})
    answers = answered(base, [wrong, divides, unknown, right], folder=tmp_path)
    assert "must be more than 0" in answers[wrong].reason
    assert "ZeroDivisionError" in answers[divides].reason
    assert "no block 'nothing'" in answers[unknown].reason
    assert answers[right] == Outcome(0, answers[right].metrics)
    assert answered(base, [wrong, divides, unknown, right], folder=tmp_path, report=told) == answers
    assert told.counts == (4, 0)


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    base, free, off = as_it_is("switched"), settings_of({"free": "always"}), settings_of({"knobs.slower": "true"})
    told: list[str] = []
    found = answered(base, [free, off], folder=tmp_path / "file", warn=told.append)
    assert (found[free].makespan_ps, found[off].makespan_ps) == (0, 132 * US)
    assert len(told) == 1
    assert told[0].startswith(f"what-ifs are not kept: cannot write '{tmp_path / 'file'}")


def test_one_run_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    base, runs = as_it_is("switched"), []
    real = whatif.simulate
    monkeypatch.setattr(whatif, "simulate", lambda *given, **how: runs.append(1) or real(*given, **how))  # type: ignore[func-returns-value]
    free = settings_of({"free": "always"})
    answered(base, [free, free, AS_IS])
    assert runs == [1]
