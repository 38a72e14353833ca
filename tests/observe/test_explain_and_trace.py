"""Twelve questions about six scenarios: what `explain` answers, SQL over the events of the trace answers too."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simulator.observe.counters import counters
from simulator.observe.explain import Explanation, Focus, explain
from simulator.observe.explain_text import explanation_object
from simulator.observe.shown import shown
from simulator.observe.trace import write_trace
from simulator.study.library import load_scenario
from simulator.study.recorded import recorded_of
from simulator.study.simulate import simulate
from tests.observe.perfetto_ui import opened

COLUMNS = ("name", "category", "start", "end", "pid", "tid", "rank", "layer", "micro_batch", "multiplicity", "who",
           "ended_by", "ended_by_rank", "task_name", "kind", "block")
OVERLAP = ("select c.block, c.micro_batch, sum(min(a.end, c.end) - max(a.start, c.start)) as beside from slice a "
           "join slice c on a.pid = c.pid and c.start < a.end and a.start < c.end "
           "where a.task_name = '{}' and a.micro_batch = {} and c.category = 'kernel' and c.kind not in "
           "('all_to_all', 'all_gather', 'reduce_scatter') group by 1, 2 order by 3 desc limit 1")
WAITED = ("select sum(w.end - w.start) from slice w where category = 'wait' and name = 'wait: {}' and who like '{}%' "
          "and micro_batch = {}")  # fmt: skip


class Question(NamedTuple):
    """What is asked of a scenario: the part in focus, SQL whose rows answer it, and how the explanation says the same.
    Times in ns."""

    asked: str
    scenario: str
    focus: Focus
    sql: str
    told: Callable[[Explanation], list[tuple[Any, ...]]]


def _under(found: Explanation) -> list[tuple[Any, ...]]:
    (block, batch), length = next(iter(found.communication[0].under_ps.items()))
    return [(block, batch, length / 1e3)]


def _waited(found: Explanation) -> list[tuple[Any, ...]]:
    return [(found.waits[0].total_ps / 1e3,)]


def _one_by_one(found: Explanation) -> list[tuple[Any, ...]]:
    return [(one.who[1], one.ended_by[0]) for one in found.single if one.why == "peers" and one.ended_by]


QUESTIONS = [
    Question("Where does combine of micro-batch B hide?", "a3_prefill:microbatch",
             Focus(micro_batch=1, name="combine"), OVERLAP.format("combine.tokens", 1), _under),
    Question("Where does dispatch of micro-batch A hide?", "a3_prefill:microbatch",
             Focus(micro_batch=0, name="dispatch.tokens"), OVERLAP.format("dispatch.tokens", 0), _under),
    Question("How long does combine of micro-batch A wait for its experts?", "a3_prefill:microbatch",
             Focus(micro_batch=0, name="combine"), WAITED.format("event", "combine.", 0), _waited),
    Question("How long is the run, as long as all of its critical path?", "a3_prefill:microbatch", Focus(),
             "select end from slice where name = 'iteration'",
             lambda found: [(sum(found.path.values()) / 1e3,)]),
    Question("Where does the AllGather hide?", "contention:staging", Focus(name="all_gather"),
             OVERLAP.format("all_gather", -1), _under),
    Question("For whom does rank 1 wait in layer 30?", "a3_prefill:dp_uneven", Focus(rank=1, layer=30),
             "select who, ended_by_rank from slice where name = 'wait: peers' and rank = 1 and layer = 30 "
             "order by start", _one_by_one),
    Question("Which rank is last in dispatch, how often?", "a3_prefill:dp_uneven", Focus(name="dispatch"),
             "select ended_by_rank, sum(w.multiplicity) / 32.0 from slice w where name = 'wait: peers' and "
             "who like 'dispatch.%' group by 1 order by 2 desc limit 1",
             lambda found: [next(iter(next(one for one in found.waits if one.why == "peers").late.items()))]),
    Question("For whom does rank 5 wait in layer 30?", "a2_decode:low", Focus(rank=5, layer=30),
             "select who, ended_by_rank from slice where name = 'wait: peers' and rank = 5 and layer = 30 "
             "order by start", _one_by_one),
    Question("What do the gate's streams wait for on rank 3, how long?", "a2_decode:low", Focus(rank=3, name="gate"),
             "select sum(w.end - w.start) from slice w where name = 'wait: event' and who like 'gate.%' and rank = 3 "
             "and ended_by like 'gate.%'",
             lambda found: [(sum(one.total_ps for one in found.waits if one.ended_by.startswith("gate.")) / 1e3,)]),
    Question("What ends the waits of rank 0's GPU for its proxy?", "pplx:efa_ep16_few", Focus(rank=0),
             "select who, ended_by from slice where name = 'wait: flag' and rank = 0 order by start",
             lambda found: [(one.who[1], one.ended_by[1]) for one in found.single
                            if one.why == "flag" and one.ended_by]),
    Question("How long do the streams lack a launch at first?", "pplx:efa_ep16_few", Focus(rank=0),
             "select sum(w.end - w.start) from slice w where name = 'wait: host' and rank = 0",
             lambda found: [(sum(one.total_ps for one in found.waits if one.why == "host") / 1e3,)]),
    Question("Where does dispatch of micro-batch A hide, two streams of one card?", "a2_prefill:micro_batch",
             Focus(micro_batch=0, name="dispatch.activations"), OVERLAP.format("dispatch.activations", 0), _under),
]


SCENARIOS = sorted({one.scenario for one in QUESTIONS})
ARGS = {"layer": "layer", "micro_batch": "micro_batch", "multiplicity": "multiplicity", "who": "who",
        "ended_by": "ended_by", "ended_by_rank": "ended_by_rank", "task_name": "name", "kind": "kind"}  # fmt: skip
TOLD = ("with told as (select s.name, s.category, s.ts as start, s.ts + s.dur as end, pid, tid, pid - 1000 as rank, "
        + ", ".join(f"coalesce(extract_arg(s.arg_set_id, 'args.{arg}'), -1) as {name}" for name, arg in ARGS.items())
        + ", substr(extract_arg(s.arg_set_id, 'args.name'), 1, instr(replace(extract_arg(s.arg_set_id, 'args.name'), "
        "' ', '.') || '.', '.') - 1) as block from slice s join thread_track t on s.track_id = t.id "
        "join thread using (utid) join process using (upid)) ")  # fmt: skip


@cache
def _explained(scenario: str) -> Any:
    """With 32 layers at most, which is enough to ask about one of them."""
    layers = {"model.shapes.layers": "32"} if scenario.startswith("a2_decode") else {}
    return recorded_of(simulate(load_scenario(scenario).replace(layers)))


def table(trace: Path) -> sqlite3.Connection:
    """The slices of a trace as a table of COLUMNS, times in ns."""
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    made = sqlite3.connect(":memory:")
    made.execute(f"create table slice ({', '.join(COLUMNS)})")
    for one in (each for each in events if each["ph"] == "X"):
        args = one["args"]
        rank = one["pid"] - 1000
        start, end = (round(at * 1000) for at in (one["ts"], one["ts"] + one["dur"]))
        name = args.get("name", "")
        row = (one["name"], one["cat"], start, end, one["pid"], one["tid"], rank, args.get("layer", -1),
               args.get("micro_batch", -1), args.get("multiplicity"), args.get("who"), args.get("ended_by"),
               args.get("ended_by_rank"), name, args.get("kind"), name.partition(".")[0].partition(" ")[0])
        made.execute(f"insert into slice values ({', '.join('?' * len(row))})", row)
    return made


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The trace of a scenario's first six ranks."""

    @cache
    def made(scenario: str) -> Path:
        run, path = _explained(scenario), tmp_path_factory.mktemp("trace") / "trace.json"
        write_trace(run.columns, path, [*shown(run.columns, ["all"])][:6], counters=counters(
            run.columns, [0], run.peaks, run.memory))  # fmt: skip
        return path

    return made


@pytest.fixture(scope="module")
def tables(trace: Callable[[str], Path]) -> Callable[[str], sqlite3.Connection]:
    return cache(lambda scenario: table(trace(scenario)))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.asked)
def test_explain_and_the_trace_agree(question: Question, tables: Callable[[str], sqlite3.Connection]) -> None:
    _check(tables(question.scenario).execute(question.sql).fetchall(), question)


@pytest.mark.slow
@pytest.mark.perfetto
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_perfetto_takes_the_trace_without_complaints_and_gives_the_same_answers(
        scenario: str, trace: Callable[[str], Path]) -> None:
    with opened(trace(scenario)) as perfetto:
        assert perfetto.complaints() == []
        for question in (one for one in QUESTIONS if one.scenario == scenario):
            _check(perfetto.query(TOLD + re.sub(r"\bslice\b", "told", question.sql)), question)


def _check(rows: list[Any], question: Question) -> None:
    told = question.told(explain(_explained(question.scenario), question.focus))
    assert told, "nothing was told"
    assert len(rows) == len(told)
    for row, said in zip(rows, told, strict=True):
        for one, other in zip(row, said, strict=True):
            assert one == (pytest.approx(other, rel=1e-4, abs=200) if isinstance(other, float) else other)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_parts_add_up(scenario: str) -> None:
    run = _explained(scenario)
    found = explain(run, Focus())
    assert sum(found.path.values()) == run.critical.makespan_ps == int(run.columns["end_ps"].max())
    for one in found.communication:
        assert one.hidden_ps + one.exposed_ps == pytest.approx(one.busy_ps, abs=1)
        assert sum(one.reasons_ps.values()) == pytest.approx(one.exposed_ps, abs=4), "parts below 0.5 ps are left out"
    names = {one.name for one in found.communication}
    for name in names:
        of_name = [one for one in found.communication if one.name == name]
        if len(of_name) == 1:
            times = run.measured.communication[name]
            assert of_name[0].exposed_ps == pytest.approx(times.exposed_ps, abs=1)
            assert of_name[0].waiting_ps == pytest.approx(times.waiting_ps, abs=1)
    json.dumps(explanation_object(found))
