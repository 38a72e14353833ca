"""The report reads as plain text a hundred columns wide; what is not given is left out."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from simulator.observe.critical import critical_path
from simulator.observe.metrics import measure
from simulator.observe.report import (
    ExpectedRow,
    Footnote,
    ReportInput,
    expected_table,
    parts,
    print_report,
    stretch_sentence,
)
from simulator.observe.tables import number, show
from tests.observe.hand import comm, task, timeline

MS = 10**9
RUN = [
    task("attention", 0, 100 * MS, kind="attention", layer=0, bound_by="L2"),
    comm("dispatch", 120 * MS, 300 * MS, ready=100 * MS, after=(0,), layer=0),
    task("experts", 100 * MS, 220 * MS, solo=100 * MS, after=(0,), layer=0, bound_by="HBM"),
    comm("combine", 300 * MS, 350 * MS, after=(1, 2), layer=0, bound_by="latency"),
]
EXPECTED = [
    ExpectedRow("A1", "latency_ms", 3128.0, 3200.0, 72 / 3128, "fit"),
    ExpectedRow("A2", "tpot_ms", 0.5, None, None, "predict"),
    ExpectedRow("A3", "gain", 1.0, 1.0, 0.0, "predict", "0.9 to 1.2"),
]
LONG = "a_name_of_forty_characters_without_a_gap"
GOLDEN = """\
a3_prefill:dp on atlas_a3
32 dies
latency: 350 ms

expected against simulated
id   metric         expected   simulated   error   role
──────────────────────────────────────────────────────────
A1   latency_ms        3,128       3,200   +2.3%   fit
A2   tpot_ms             0.5           -       -   predict
A3   gain         0.9 to 1.2           1    none   predict

where the time went (each instant once)     time by kind (average rank)
                         ms   of the run    kind          ms   of the run
────────────────────────────────────────    ─────────────────────────────
compute                 220        62.9%    all_to_all   230        65.7%
communication exposed   130        37.1%    gemm         120        34.3%
                                            attention    100        28.6%

communication (ms of an average rank, share of the run)
name                        busy       hidden      exposed     waiting   of it exposed
──────────────────────────────────────────────────────────────────────────────────────
dispatch              180  51.4%   100  28.6%    80  22.9%   20   5.7%             44%
combine                50  14.3%     0   0.0%    50  14.3%    0   0.0%            100%

all (overlaps once)   230  65.7%   100  28.6%   130  37.1%   20   5.7%             57%

Compute against its time alone on the same cores: +10.0% over the run, +25.0% while communication
runs on its rank, +0.0% apart from it.
Host-bound: 0 ms (0.0%) in which a compute kernel lacked only its launch, by a host that was not
blocked.

critical path (more than 1% of it)
kind         bound by    ms   of the path
─────────────────────────────────────────
all_to_all   link       180         51.4%
attention    L2         100         28.6%
all_to_all   latency     50         14.3%
wait         peers       20          5.7%

budget of one layer (ms of rank 0, layer 0, 350 ms long)
block       tasks   work   beside others   alone   waiting   bound by   runs beside
────────────────────────────────────────────────────────────────────────────────────
attention       1    100               0     100         0   L2         -
dispatch        1    180             100      80        20   link       experts 100
experts         1    120             100      20         0   HBM        dispatch 100
combine         1     50               0      50         0   latency    -

rank 0, layer 0: 350 ms long, starts 0 s into the run
main |AAAAAAAAAAAAAAAAAAAAAAAAAAAEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE                                   |
comm |                           ~~~~~DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDCCCCCCCCCCCCC|
ms    0                          100                       200                        300
A attention 100 ms   D dispatch 180 ms   E experts 120 ms   C combine 50 ms
~ waiting for cores or peers, : another layer
times are of this layer, added up over the streams

parameters that bounded the critical path (what twice as good a number would save of the run, as far
as nothing else then decides)
parameter   twice saves   value    kind     source
──────────────────────────────────────────────────
chip.l2            7.0%   5 TB/s   fitted   [1] 2.
"""


def _printed(report: ReportInput) -> str:
    file = io.StringIO()
    print_report(report, file=file)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).rstrip() + "\n"


def test_a_whole_report() -> None:
    columns = timeline(RUN).columns()
    text = _printed(ReportInput(
        "a3_prefill:dp on atlas_a3", ["32 dies"], [("latency", "350 ms")], EXPECTED, measure(columns),
        critical_path(columns), columns,
        footnotes=[Footnote("chip.l2", "7.0%", "5 TB/s", "fitted", "[1] 2.")]))
    assert text == GOLDEN
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("columns", ["", "60", "300"])
def test_names_are_never_cut_where_nobody_looks_on(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    rows = [ExpectedRow(f"{LONG}.id", f"{LONG}.metric / {LONG}:other", 1.0, 1.0, 0.0, "predict", "above 1")]
    notes = [Footnote(f"{LONG}.{LONG}", "7.0%", "1 us", "assumed", "a long source of several words " * 5)]
    text = _printed(ReportInput("long names", expected=rows, footnotes=notes))
    for whole in (f"{LONG}.id ", f"{LONG}.metric / {LONG}:other", f"{LONG}.{LONG}"):
        assert whole in text
    assert "…" not in text
    assert (text.count("a long source of several words") == 5) == (columns == "300")


def test_a_narrow_terminal_breaks_names_and_loses_nothing() -> None:
    file = io.StringIO()
    terminal = Console(file=file, width=50, force_terminal=True, no_color=True)
    show(terminal, expected_table([ExpectedRow(LONG, LONG, 1.0, 1.0, 0.0, "fit")]))
    lines = re.sub(r"\x1b\[\d+m", "", file.getvalue()).splitlines()
    assert max(map(len, lines)) <= 50
    assert sum(line.count("_") for line in lines) == 2 * LONG.count("_")


def test_a_report_in_a_narrow_terminal_loses_nothing() -> None:
    columns = timeline(RUN).columns()
    file = io.StringIO()
    terminal = Console(file=file, width=60, force_terminal=True, no_color=True)
    show(terminal, *parts(ReportInput("narrow", expected=EXPECTED, metrics=measure(columns), columns=columns), 60))
    lines = re.sub(r"\x1b\[\d+m", "", file.getvalue()).splitlines()
    assert max(map(len, lines)) <= 60
    whole = "\n".join(lines)
    for said in ("communication exposed", "dispatch", "51.4%", "once)", "time by kind", "all_to_all"):
        assert said in whole


def test_what_is_not_given_is_left_out() -> None:
    assert _printed(ReportInput("nothing ran")) == "nothing ran\n"
    empty = timeline().columns()
    assert _printed(ReportInput("empty", metrics=measure(empty), path=critical_path(empty), columns=empty)) == "empty\n"


def test_stretch_without_company() -> None:
    alone = measure(timeline([task("a", 0, 11, solo=10)]).columns())
    assert stretch_sentence(alone) == (
        "Compute against its time alone on the same cores: +10.0% over the run; no communication ran beside it.")


def test_numbers_keep_four_digits() -> None:
    shown = [number(one) for one in (0.012344, 12.345, 3128.4, 48210.0, 0)]
    assert shown == ["0.01234", "12.35", "3,128", "48,210", "0"]


def test_importing_is_light() -> None:
    modules = ["timeline", "metrics", "critical", "trace", "report", "layer_picture", "tables", "arrow"]
    code = (f"import sys; [__import__('simulator.observe.' + name) for name in {modules}]; "
            "sys.exit(any(name in sys.modules for name in ('numpy', 'pyarrow', 'rich')))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
