"""What `run --out` writes of a trace: of which ranks, when, for which tools."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import Outcome

Braid = Callable[..., Outcome]
UNEVEN = ("a3_prefill:dp_uneven", "--set", "model.shapes.layers=4")


def _trace(folder: Path) -> dict:
    with gzip.open(folder / "trace.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


def test_ranks_are_chosen_and_said_and_the_metadata_tells_the_run(braid: Braid, tmp_path: Path) -> None:
    done = braid("run", *UNEVEN, "--seed", "3", "--out", tmp_path / "run", "--trace-ranks", "fastest,0,31")
    assert done.code == 0, done.err
    said = _trace(tmp_path / "run")["otherData"]
    ranks = said["shown_ranks"]
    told = next(line for line in done.out.splitlines() if "trace.json.gz" in line)
    assert all(f"rank {rank}" in told for rank in ranks)
    assert "(fastest, for 31)" in told
    leaders = said["leaders"].split()
    assert {int(leaders[0]), int(leaders[31])} <= set(ranks), "a rank is shown by the one that was simulated for it"
    assert (said["seed"], said["settings"]["model"], said["changes"]) == (
        3, "deepseek_r1", {"model.shapes.layers": "4"})
    of_parquet = json.loads(pq.read_schema(tmp_path / "run" / "timeline.parquet").metadata[b"braid"])
    assert {key: of_parquet[key] for key in ("seed", "version", "settings")} == {
        key: said[key] for key in ("seed", "version", "settings")}


def test_a_window_and_files_for_other_tools(braid: Braid, tmp_path: Path) -> None:
    into = ("--out", tmp_path / "run", "--trace-format", "kineto")
    done = braid("run", *UNEVEN, *into, "--trace-window", "20 ms..30 ms")
    assert done.code == 0, done.err
    trace = _trace(tmp_path / "run")
    assert trace["otherData"]["window_s"] == [0.02, 0.03]
    kernels = [one for one in trace["traceEvents"] if one.get("cat") == "kernel"]
    assert kernels
    assert all(one["ts"] <= 30_000 and one["ts"] + one["dur"] >= 20_000 for one in kernels)
    files = sorted(one.name for one in (tmp_path / "run" / "kineto").iterdir())
    assert files == [f"rank-{rank}.json.gz" for rank in sorted(trace["otherData"]["shown_ranks"])]
    again = braid("run", *UNEVEN, *into, "--trace-ranks", "0")
    assert again.code == 0, "into its own folder, once more"
    assert [one.name for one in (tmp_path / "run" / "kineto").iterdir()] == ["rank-0.json.gz"]
    assert braid("run", *UNEVEN, "--out", tmp_path / "run").code == 0
    assert not (tmp_path / "run" / "kineto").exists(), "nothing of an earlier run stays"


@pytest.mark.parametrize(("words", "said"), [
    (("--trace-ranks", "slow"), "'slow' is no rank: ranks are numbers, or slowest, median, fastest, first, all"),
    (("--trace-ranks", "32"), "--trace-ranks: no rank 32: a3_prefill:dp_uneven has ranks 0 to 31"),
    (("--trace-window", "3..5"), "'3..5' is not FROM..TO in time"),
    (("--trace-window", "5 ms..3 ms"), "'5 ms..3 ms' is not FROM..TO in time"),
    (("--trace-window", "-1 ms..2 ms"), "'-1 ms..2 ms' is not FROM..TO in time"),
    (("--trace-window", "2 ms..inf s"), "'2 ms..inf s' is not FROM..TO in time"),
    (("--trace-window", "90 s..91 s"), "--trace-window: a3_prefill:dp_uneven has ended by then, after "),
    (("--trace-window", "5 MB..6 MB"), "'5 MB..6 MB' is not FROM..TO in time")])
def test_what_cannot_be_shown_is_refused(braid: Braid, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = braid("run", *UNEVEN, "--out", tmp_path / "run", *words)
    assert done.is_one_clear_message(2), done
    assert said in done.err
    assert not (tmp_path / "run").exists()


def test_options_of_a_trace_need_one(braid: Braid) -> None:
    done = braid("run", *UNEVEN, "--trace-ranks", "all")
    assert done.is_one_clear_message(2), done
    assert "are of the trace that --out writes" in done.err
