"""`braid serve` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.serving.loop import Loop
from simulator.serving.offered import recorded
from simulator.serving.record import Served
from simulator.serving.settings import Load
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
    assert "broken lines were left out: 1, the first of them 4" in " ".join(done.err.split())


@pytest.mark.parametrize("words", [("--rate", "2"), ("--concurrency", "2"), ("--sweep", "concurrency", "2")])
def test_a_trace_with_times_has_no_other_load(braid: Braid, trace: Path, words: tuple[str, ...]) -> None:
    done = braid(*ENGINE, "--trace", str(trace), "--skip-bad", *words)
    assert done.is_one_clear_message(2), done.err
    assert "its requests come at their own times" in " ".join(done.err.split())


def test_a_table_of_lengths_comes_at_the_rate_and_keeps_what_it_shares(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n' * 3)
    found = recorded(path, Load(rate=2.0), 0, paced=True)
    assert (found.concurrency, found.requests.hash_tokens) == (0, 512)
    assert found.requests.hashes_of(2).tolist() == found.requests.hashes_of(0).tolist() != []
    assert found.requests.arrival_s[2] > found.requests.arrival_s[1] > 0.0
    assert recorded(path, Load(concurrency=2), 0).concurrency == 2


def test_ctrl_c_ends_a_sweep_and_shows_the_rows_before_it(braid: Braid, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Loop] = []
    plain = Loop.run

    def second_is_stopped(loop: Loop) -> Served:
        runs.append(loop)
        served = plain(loop)
        return replace(served, interrupted=len(runs) == 2)

    monkeypatch.setattr(Loop, "run", second_is_stopped)
    done = braid(*ENGINE, *FEW[:-2], "--json", "--sweep", "concurrency", "1", "2", "4")
    assert done.code == 130
    assert len(runs) == 2
    assert [row["concurrency"] for row in done.json] == ["1"]
    assert "stopped by Ctrl-C at concurrency 2" in done.err


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
    ((*ENGINE, "--sweep", "rate", "1", "--out", "folder"), "--out is of one run"),
    ((*ENGINE, "--limit", "3", "--speedup", "2"), "--limit, --speedup: of a recorded trace"),
    ((*ENGINE, "--trace", "a.jsonl", "--isl", "3", "--range-ratio", "0.5"), "--isl, --range-ratio: of requests that"),
    (("serve", "one_server:llama_3_1_70b", "--mesh", "tp=4"), "--mesh: SERVICE has its own"),
    ((*ENGINE, "--goodput", "ttft:5"), "time_to_first_token"),
    ((*ENGINE, "--set", "engines.cache.block_sise=8"), "did you mean 'engines.cache.block_size'"),
    ((*ENGINE, "--set", "engines.capture=8,4,2"), "capture is 8,4,2: sizes must ascend"),
    ((*ENGINE, "--set", "prefill.step.cards=8"), "no engines that prefill apart"),
    ((*ENGINE, "--requests", "none"), "load.requests"),
    ((*ENGINE, "--set", "load.priorities=0.2,0.7"), "priorities is 0.2,0.7: shares of all requests must add up to 1"),
    ((*ENGINE, "--set", "engines.scheduling.policy=lpm"), "policy is lpm where scheduler is vllm: it is of sglang"),
    ((*ENGINE, "--set", "engines.scheduling.attention_dp_config.enable_balance=true"), "it is of trtllm"),
    ((*ENGINE, "--rate", "inf", "--until", "steady"), "load.rate is inf: all requests come at once"),
    ((*ENGINE, "--trace", "nowhere.jsonl"), "nowhere.jsonl"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_message(braid: Braid, words: tuple[str, ...], text: str) -> None:
    done = braid(*words)
    assert done.is_one_clear_message(2), done.err
    assert text in " ".join(done.err.split())


def test_an_engine_from_words_is_launched_as_its_stack_is_and_prompts_share_prefixes(braid: Braid) -> None:
    words = (*ENGINE, *FEW, "--json", "--set")
    apart, shared = (braid(*words, f"load.prefix_share={share}").json for share in ("0", "0.5"))
    assert "prefix_cache_hit_ratio" in shared
    assert apart["prefix_cache_hit_ratio"]["avg"] == 0.0
    assert 0.2 < shared["prefix_cache_hit_ratio"]["avg"] < 0.5
    vllm, trtllm = (braid(*ENGINE, *FEW, "--json", "--stack", stack).json for stack in ("vllm", "trtllm"))
    assert vllm["time_to_first_token"]["avg"] != trtllm["time_to_first_token"]["avg"]


def test_metrics_by_priority_are_printed_and_in_the_json(braid: Braid) -> None:
    words = (*ENGINE, *FEW, "--requests", "24", "--set", "load.priorities=0.25,0.75", "--set",
             "engines.scheduling.policy=priority", "--set", "engines.scheduling.max_num_seqs=1")  # fmt: skip
    done, plain = braid(*words, "--json"), braid(*words)
    by_priority = done.json["braid"]["whole"]["priorities"]
    assert set(by_priority) == {"0", "1"}
    counts = [by_priority[one]["request_latency"]["count"] for one in "01"]
    assert sum(counts) == 24
    assert min(counts) > 0
    assert by_priority["0"]["time_to_first_token"]["avg"] < 0.8 * by_priority["1"]["time_to_first_token"]["avg"]
    assert "all requests, priority" in plain.out
    assert "priorities" not in braid(*ENGINE, *FEW, "--json").json["braid"]["whole"]


def test_until_steady_says_how_well_the_means_are_known(braid: Braid) -> None:
    words = (*ENGINE, *FEW[2:-2], "--rate", "20", "--set", "load.burstiness=inf", "--until", "steady")
    done = braid(*words)
    assert done.code == 0, done.err
    assert "known within 2%: TTFT +-" in " ".join(done.out.split())
    found = braid(*words, "--json").json["braid"]
    assert 200 <= found["requests"]["requests"] < 2000
    assert all(one["known"] for one in found["steady_state"]["means_95"].values())
    few = braid(*words, "--requests", "40")
    assert "NOT KNOWN within 2% after all 40 requests" in " ".join(few.out.split())


STRUCK = (*ENGINE, "--mesh", "tp=1", "--instances", "2", "--requests", "20", "--isl", "64", "--osl", "40", "--steps",
          "lattice", "--rate", "50")  # fmt: skip


def test_a_fault_stands_beside_the_same_run_without_it(braid: Braid, tmp_path: Path) -> None:
    fault = ("--fault", "200 ms: engine 0 lost for 50 ms")
    plain, struck = braid(*STRUCK, "--json").json, braid(*STRUCK, *fault, "--json").json
    (row,) = struck["braid"]["faults"]
    assert (row["struck"], row["struck_s"], row["noticed_s"], row["over_s"]) == ("engine 0", 0.2, 0.2, 0.25)
    assert row["rerouted"] > 0 < row["recomputed_tokens"]
    against = {(one["metric"], one["statistic"]): one for one in struck["braid"]["against"]}
    worst = against["request_latency", "p99"]
    assert worst["without"] == plain["request_latency"]["p99"] < worst["with"] == struck["request_latency"]["p99"]
    assert "faults" not in plain["braid"]
    done = braid(*STRUCK, *fault, "--out", str(tmp_path / "served"))
    assert done.code == 0, done.err
    assert "the same run" in done.out
    page = braid("report", str(tmp_path / "served"), "--out", str(tmp_path / "page.html"))
    assert page.code == 0, page.err
    assert "What faults did" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_fault_of_nothing_is_refused(braid: Braid) -> None:
    refused = braid(*STRUCK, "--fault", "9 s: engine 7 lost")
    assert refused.code == 2
    assert "there are engine.0, engine.1" in refused.err
    assert braid(*STRUCK, "--fault", "1 s: engine 0 lost", "--until", "steady").code == 2
