"""`braid serve` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

Braid = Callable[..., Outcome]

ENGINE = ("serve", "--model", "llama_3_1_8b", "--machine", "dgx_h100")
FEW = ("--requests", "8", "--isl", "64", "--osl", "8", "--steps", "lattice", "--concurrency", "4")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Eight requests in Azure's format, of which the third has no length."""
    lines = [f"2023-11-16 18:17:0{number}.9799600,{100 + number},{5 + number}" for number in range(8)]
    lines[2] = "2023-11-16 18:17:02.9799600,none,7"
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_it_prints_latencies_waits_and_how_steps_were_found(braid: Braid) -> None:
    done = braid(*ENGINE, *FEW)
    assert done.code == 0, done.err
    for text in ("8 requests: 8 done", "time_to_first_token, ms", "TPOT", "queue", "steps: "):
        assert text in done.out


def test_json_is_the_profile_export_and_the_same_in_two_runs(braid: Braid) -> None:
    first, second = (braid(*ENGINE, *FEW, "--json") for _ in range(2))
    assert first.code == 0, first.err
    assert first.out == second.out
    assert {"avg", "p50", "p99", "unit"} <= set(first.json["time_to_first_token"])


def test_a_sweep_has_a_row_for_each_value_and_more_in_flight_are_served_faster(braid: Braid) -> None:
    rows = braid(*ENGINE, *FEW[:-2], "--json", "--sweep", "concurrency", "1", "4").json
    assert [row["concurrency"] for row in rows] == ["1", "4"]
    assert rows[1]["tok/s"] > rows[0]["tok/s"]
    assert rows[1]["ITL ms"] >= rows[0]["ITL ms"]


def test_a_broken_line_of_a_trace_is_named_and_left_out_where_that_is_asked_for(braid: Braid, trace: Path) -> None:
    refused = braid(*ENGINE, "--trace", str(trace), "--steps", "lattice")
    assert refused.code == 2
    assert "line 4" in refused.err
    assert "ContextTokens" in refused.err
    done = braid(*ENGINE, "--trace", str(trace), "--steps", "lattice", "--skip-bad")
    assert done.code == 0, done.err
    assert "7 requests: 7 done" in done.out


def test_a_folder_has_a_table_of_requests_one_of_steps_a_profile_and_a_trace(braid: Braid, tmp_path: Path) -> None:
    done = braid(*ENGINE, *FEW, "--out", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert {one.name for one in (tmp_path / "out").iterdir()} >= {
        "profile_export_aiperf.json", "requests.parquet", "steps.parquet", "trace.json.gz"}  # fmt: skip
    profile = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    assert profile["request_count"]["avg"] == 8


def test_drafts_make_a_token_shorter_and_requests_too_long_are_counted(braid: Braid) -> None:
    words = (*ENGINE, *FEW, "--json")
    plain, drafted = (braid(*words, "--set", f"engines.step.batch.drafts={drafts}").json for drafts in (0, 2))
    assert drafted["inter_token_latency"]["avg"] < 0.8 * plain["inter_token_latency"]["avg"]
    short = braid(*ENGINE, *FEW, "--set", "engines.cache.tokens=64")
    assert "8 refused" in short.out


@pytest.mark.parametrize(("words", "text"), [
    (("serve",), "give SERVICE, or --model and --machine"),
    (("serve", "--model", "llama_3_1_8b"), "give SERVICE, or --model and --machine"),
    ((*ENGINE, "--sweep", "rate"), "--sweep KEY takes VALUES"),
    ((*ENGINE, "--goodput", "ttft:5"), "time_to_first_token"),
    ((*ENGINE, "--set", "engines.cache.block_sise=8"), "did you mean 'engines.cache.block_size'"),
    ((*ENGINE, "--set", "prefill.step.cards=8"), "no engines that prefill apart"),
    ((*ENGINE, "--requests", "none"), "load.requests"),
    ((*ENGINE, "--trace", "nowhere.jsonl"), "nowhere.jsonl"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_message(braid: Braid, words: tuple[str, ...], text: str) -> None:
    done = braid(*words)
    assert done.is_one_clear_message(2), done.err
    assert text in " ".join(done.err.split())
