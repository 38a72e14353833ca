"""What `tests.trust.load` measures at full size, bounded here by the bytes of a request, a step, a row and a layout."""

from __future__ import annotations

import importlib.util
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulator.observe.arrow import read_parquet
from simulator.observe.columns import select
from simulator.observe.timeline import Timeline
from simulator.search.deployment import Ask
from simulator.search.evolve import EXHAUSTIVE, Effort, Evolution, chosen
from simulator.search.space import Space, axes_of
from simulator.serving import over_time
from simulator.serving.files import write_files
from simulator.serving.loop import Loop
from simulator.serving.outcome import outcome
from simulator.serving.over_time import level
from simulator.serving.record import STEPS
from simulator.serving.stretches import Steps, Stretches
from simulator.serving.tokens import chunks_of
from simulator.serving.traces import LINES_TOLD, read_trace
from tests.observe.hand import static_of, task
from tests.serving.hand import request, served, step
from tests.serving.services import drawn, service, steps_by_formula
from tests.trust.load import cases, holds, kept_rows, run, text_of, write_requests


def peak_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """What is left of work that is done, and the most that there was meanwhile, both beside what was before."""
    tracemalloc.start()
    try:
        kept = work()
        left, peak = tracemalloc.get_traced_memory()
        assert kept is not None
    finally:
        tracemalloc.stop()
    return left, peak


def stretches(count: int, steps: int, first_ps: int = 0) -> Stretches:
    """So many, each of so many steps of 10 ps and as long idle."""
    made = Stretches()
    for number in range(count):
        made.add((first_ps + 20 * steps * number, steps, 4, 100, 0, 0, 7, 4, 2), np.full(steps, 10))
    return made


def test_columns_of_steps_are_made_and_not_kept() -> None:
    """A step is 8 bytes, of which nothing more is left when all columns were looked at; one of them takes less than a
    tenth of all."""
    steps = Steps([stretches(100, 1000)], [None])
    left, peak = peak_bytes(lambda: [len(steps[name]) for name in STEPS])
    assert left < 20_000
    assert peak < 50 * 100_000


def test_steps_of_several_engines_come_by_start() -> None:
    steps = Steps([stretches(2, 3), Stretches(), stretches(2, 3, first_ps=5)], [None, None, None])
    assert steps["engine"].tolist() == [0, 2, 0, 2, 0, 2] * 2
    assert steps["start_ps"].tolist() == [0, 5, 10, 15, 20, 25, 60, 65, 70, 75, 80, 85]
    assert steps["cached_tokens"].tolist() == [100, 100, 104, 104, 108, 108] * 2
    assert steps["used_blocks"].tolist() == [7, 7, 7, 7, 8, 8] * 2
    assert [*steps] == [*STEPS]
    with pytest.raises(KeyError):
        steps["balancedness"]


def test_a_step_leaves_few_numbers_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 requests more, which decode alone in fifty steps each: a few hundred bytes and those of their steps (an
    object for each stretch, and ten columns of steps, were 2,100, and 3,800 while they were made)."""
    steps_by_formula(monkeypatch)

    def bytes_of(count: int) -> np.ndarray:
        requests = drawn(count, 1, rate=20.0, outputs=(40, 60))
        return np.array(peak_bytes(lambda: Loop(service(), requests, steps="lattice").run()))

    bytes_of(20)  # what is made once
    left, peak = (bytes_of(300) - bytes_of(100)) / 200
    assert left < 1200
    assert peak < 2600


def test_means_over_time_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, with stays that begin and end at once and some that go on through many parts."""
    draw = np.random.default_rng(3)
    start = np.sort(draw.integers(0, 2000, 3000)) * 10**9
    end = start + draw.choice([0, 1, 3, 900], 3000) * 10**9
    value, edges = draw.random(3000), np.linspace(-5, 2500, 77) * 10**9
    whole = level(start, end, value)(edges)
    for part in (1, 7, 1000, 2999):
        monkeypatch.setattr(over_time, "PART", part)
        assert level(start, end, value)(edges).tolist() == whole.tolist()


def test_gaps_are_whole_picoseconds_after_many_hours() -> None:
    """Beyond 2^53 ps, two and a half hours, a float would round them."""
    late = 2**54 // 10**9
    found = served([request(late, tokens=(1, 4), routed=late, admitted=late, prefilled=late, joined=late,
                            last_token=late + 3)], [step(late + one, 1, 1) for one in range(3)])
    chunks = chunks_of(found)
    gaps = chunks.gaps_ps(chunks.first[0], chunks.stop[0])
    assert gaps.dtype == np.int64
    assert gaps.tolist() == [0, 10**9, 10**9]
    assert chunks.gaps_ps(1, 3).tolist() == [10**9, 10**9]


def wide(ranks: int, tasks: int) -> Timeline:
    """A timeline of so many rows."""
    made, static = Timeline("wide"), static_of([task("kernel", 0, 1)] * tasks)
    for rank in range(ranks):
        made.add_rank(rank, static)
        for number in range(tasks):
            made.record(rank, number, number, number, number, number + 1, 1, "HBM", 1)
    return made


def test_some_rows_are_made_without_all() -> None:
    """The columns of one rank of 40 take little beside those of all, which are a hundred bytes a row and more."""
    columns = wide(40, 1000).columns()
    rows = columns["rank"] == 3
    _, peak = peak_bytes(lambda: {name: len(column) for name, column in select(columns, rows).items()})
    assert peak < 20 * 40_000
    part, whole = select(columns, rows), {name: columns[name] for name in columns}
    for name, column in select(whole, rows).items():
        assert part[name].tolist() == column.tolist(), name


def test_a_row_that_is_read_takes_little_beside_its_columns(tmp_path: Path) -> None:
    wide(40, 1000).write_parquet(tmp_path / "timeline.parquet")
    read_parquet(tmp_path / "timeline.parquet")  # imports
    left, peak = peak_bytes(lambda: read_parquet(tmp_path / "timeline.parquet"))
    assert left < 250 * 40_000
    assert peak - left < 250 * 40_000


def test_a_space_that_is_too_large_is_not_laid_out() -> None:
    """What says so are EXHAUSTIVE layouts of it, not two and a half million."""
    if importlib.util.find_spec("optuna") is None:
        pytest.skip("needs optuna")
    ask = Ask("llama_3_1_70b", "dgx_h100", 8, 8, 4096, 1024)
    named = {"precision": ("", "kv=fp8"), **{f"engines.setting_{one}": tuple("abcd") for one in "qrstuv"}}
    axes = axes_of(ask, {}) | named
    found: list[Space | Evolution] = []

    def lay_out() -> object:
        found.append(chosen(ask, axes, named, Effort()))
        return found

    _, peak = peak_bytes(lay_out)
    assert isinstance(found[0], Evolution)
    assert found[0].layouts >= 10**5
    assert peak < 5000 * EXHAUSTIVE


def test_reading_and_writing_tell_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_requests(tmp_path / "trace.jsonl", 3 * LINES_TOLD)
    told: list[float] = []
    read_trace(tmp_path / "trace.jsonl", tell=told.append)
    assert len(told) == 3
    assert told == sorted(told)
    assert told[-1] == pytest.approx(2 / 3, abs=0.01)
    monkeypatch.setattr("simulator.serving.files.STEPS_PER_GROUP", 100)
    steps_by_formula(monkeypatch)
    told.clear()
    found = outcome(Loop(service(), drawn(40, 1)).run(), tell=told.append)
    assert told == sorted(told)
    told.clear()
    write_files(found, tmp_path, tell=told.append)
    assert len(told) > 2
    assert told[-1] == 1.0


def test_a_case_is_held_to_its_ceiling(tmp_path: Path) -> None:
    command = cases(0.001)[-1].commands[0]
    ran = run(command.words, tmp_path)
    assert (ran.code, (tmp_path / "rows" / "timeline.parquet").is_file()) == (0, True)
    ran = ran._replace(peak_mib=100.0)  # that of this process counts, too, from which it was forked
    assert holds(ran, command) == "yes"
    assert holds(ran._replace(wall_s=60.0, told=""), command) == "no: nothing told"
    assert holds(ran._replace(peak_mib=1e5), command) == "no: more memory"
    assert holds(ran._replace(code=1, error="full"), command) == "no: exit code 1, full"


def test_rows_of_other_cases_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[name, "`braid`", "1", "2", "yes", "3", "4", "-"] for name in ("service", "rows")]
    monkeypatch.setattr("tests.trust.load.TABLE", tmp_path / "load.md")
    assert kept_rows(set()) == []
    (tmp_path / "load.md").write_text(text_of(rows), encoding="utf-8")
    assert kept_rows({"rows"}) == rows[:1]
