"""`braid run --fault`: what it cost, when it was felt and noticed, when all was as before; and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

Braid = Callable[..., Outcome]

SMALL = ("run", "a3_prefill:dp", "--set", "model.shapes.layers=4")


def test_a_straggler_costs_what_others_wait_for_it(braid: Braid) -> None:
    said = braid(*SMALL, "--fault", "0 s: rank 7 clock 0.8", "--json").json
    (one,) = said["faults"]
    assert one["cost_ms"] == pytest.approx(said["metrics"]["latency_ms"] - said["without_faults"]["latency_ms"])
    assert one["cost_ms"] > 0
    assert one["felt_by_rank"] == 7
    assert one["noticed_by_rank"] != 7
    assert one["felt_ms"] < one["noticed_ms"] < one["as_before_ms"]
    assert said["changes"]["faults"] == "0 s: rank 7 clock 0.8"
    assert all(row["error"] is None for row in said["expected"])


def test_faults_from_a_file_and_drawn_ones_are_told_one_by_one(braid: Braid, tmp_path: Path) -> None:
    listed = tmp_path / "faults.toml"
    listed.write_text('faults = ["0 s: rank 7 clock 0.8", "about every 80 ms: host * paused for 1 ms"]')
    first, again, other = (braid(*SMALL, "--fault", listed, "--seed", seed).out for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert "0 s: rank 7 clock 0.8" in first
    assert "all " in first


def test_the_trace_shows_faults_on_the_ranks_that_they_strike(braid: Braid, tmp_path: Path) -> None:
    fault = "10 ms: rank 7 clock 0.8 for 40 ms"
    assert braid(*SMALL, "--fault", fault, "--out", tmp_path / "run", "--trace-ranks", "7").code == 0
    with gzip.open(tmp_path / "run" / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    begin, end = (one["ts"] for one in events if one["name"] == f"fault: {fault}")
    assert (begin, end) == (10_000.0, 50_000.0)


@pytest.mark.parametrize(("fault", "says"), [
    ("9 s: rank 7 clock 0.8", "strikes nobody: without it the run ends after 194.3 ms"),
    ("0 s: rank 99 clock 0.8", "strikes nobody: ranks are 0 to 31"),
    ("0 s: link rank3.nic9 cut", "strikes nobody: rank 3 has"),
    ("0 s: proxy 3 paused for 1 ms", "strikes nobody: no proxy thread"),
    ("about every 1000 s: host * paused for 1 ms", "take a shorter mean time"),
    ("190 ms: host 7 paused for 1 ms", "host 7 has launched everything after"),
    ("now: rank 7 lost", "fault 'now: rank 7 lost'"),
])
def test_a_fault_that_strikes_nobody_is_refused(braid: Braid, fault: str, says: str) -> None:
    done = braid(*SMALL, "--fault", fault)
    assert done.code == 2
    assert says in " ".join(done.err.split())


def test_a_run_that_can_no_longer_end_says_who_waits_for_whom(braid: Braid) -> None:
    done = braid(*SMALL, "--fault", "20 ms: rank 5 lost")
    assert done.code == 1
    said = " ".join(done.err.split())
    assert "with 20 ms: rank 5 lost: it never ends" in said
    assert "lost: rank 5" in said
    assert "is on its way; given up at 1836 s ('machine.collectives.sdma.timeout')" in said
