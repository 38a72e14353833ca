"""A page of a run says what its timeline says: sums, places and sizes, and no text of it becomes markup."""

from __future__ import annotations

import base64
import json
import re
import zlib
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from simulator.observe.critical import CriticalPath, Segment
from simulator.observe.metrics import overlap_by_kind
from simulator.observe.page.bars import PACKED, ranks_shown, timeline_data, unit_ps
from simulator.observe.page.charts import waterfall
from simulator.observe.page.document import GENERATOR, Page, document
from simulator.observe.page.html import Html, Section, data_script, escaped, table
from simulator.observe.page.machine_use import roofline_chart
from simulator.observe.page.many_page import Point, changed, front, in_order, many_page
from simulator.observe.page.palette import KINDS, OTHERS, colours
from simulator.observe.page.roofline import kernel_points
from simulator.observe.page.run_page import run_page
from simulator.observe.page.summary import Words
from simulator.observe.page.use import use_over_time
from simulator.observe.page.where_time import change_steps, kinds_chart, path_steps
from simulator.observe.recorded import Recorded
from simulator.observe.tables import Titled
from tests.observe.hand import comm, task, timeline
from tests.observe.large import large_columns, recorded

US = 1_000_000
EVIL = "</script><script>alert(1)</script>"


def run_of(*ranks: list[dict[str, Any]], **about: Any) -> Recorded:
    return recorded(timeline(*ranks).columns(), **about)


def overlapped() -> Recorded:
    """An exchange of 30 us of which 10 us lie beside a GEMM, and one that waits 5 us for its peer."""
    one = [task("a.gemm", 0, 20 * US, layer=0, flops=2e9, hbm_bytes=1e6, l2_bytes=4e6, unit_cores=(24,), micro_batch=0),
           comm("a.move", 10 * US, 40 * US, layer=0, wire_bytes=3e6, hbm_bytes=6e6, after=(), micro_batch=0),
           task("b.norm", 40 * US, 50 * US, layer=1, kind="vector", engine="vector", hbm_bytes=9e6, after=(1,),
                unit_cores=(48,), micro_batch=1),
           comm("b.move", 55 * US, 60 * US, ready=50 * US, layer=1, after=(2,), micro_batch=1)]
    two = [task("a.gemm", 0, 55 * US, layer=0), comm("b.move", 55 * US, 60 * US, layer=1, after=(0,))]
    return run_of(one, two)


def text_of(page: Page) -> str:
    return document(page, "/* plotly */")


WORDS = Words(lambda metric: f"what {metric} says", lambda run: [f"on {run.about['machine']}"])
"""Of a page made by hand."""


def scripts(text: str) -> list[Any]:
    """What the page's scripts read."""
    parts = text.split('<script type="application/json">')[1:]
    return [json.loads(part.partition("</script>")[0]) for part in parts]


def test_hidden_and_exposed_are_what_is_busy() -> None:
    run = overlapped()
    times = overlap_by_kind(run.columns)
    assert {kind: (one.hidden_ps, one.exposed_ps, one.busy_ps) for kind, one in times.items()} == {
        "gemm": (0, 37.5 * US, 37.5 * US), "all_to_all": (5 * US, 15 * US, 20 * US), "vector": (0, 5 * US, 5 * US)}
    assert {kind: one.busy_ps for kind, one in times.items()} == dict(run.measured.kind_ps)
    drawn = kinds_chart({"": run}, {"": times})
    bars = dict(zip(drawn.traces[0]["y"], zip(*(trace["x"] for trace in drawn.traces), strict=True), strict=True))
    assert [trace["name"] for trace in drawn.traces] == ["exposed", "hidden", "waiting"]
    assert bars["all_to_all"] == pytest.approx((0.015, 0.005, 0.0025))


def test_the_waterfall_ends_where_the_run_ends() -> None:
    run = overlapped()
    lengths = {pair: share * 60.0 for pair, share in run.critical.by_kind_and_bound().items()}
    steps = path_steps(lengths, colours(["gemm"]))
    assert sum(step.value for step in steps if not step.total) == pytest.approx(60.0)
    assert steps[-1].value == pytest.approx(60.0)
    drawn = waterfall("path", steps, "us", "us").traces[0]
    ends = [base + value for base, value in zip(drawn["base"], drawn["x"], strict=True)]
    assert drawn["base"][1:-1] == pytest.approx(ends[:-2]), "each begins where the one before ends"
    assert drawn["base"][-1] == 0.0


def path_of(**lengths_ps: int) -> CriticalPath:
    segments, at = [], 0
    for kind, length in lengths_ps.items():
        segments.append(Segment(0, 0, kind, kind, at, at + length, "work", "HBM"))
        at += length
    return CriticalPath(segments, at)


def test_changes_lead_from_a_to_b() -> None:
    ms = 10**9
    a, b = path_of(gemm=10 * ms, send=5 * ms), path_of(gemm=12 * ms, copy=ms // 100)
    steps = change_steps(a, b, {})
    assert [(step.name, step.value) for step in steps[:3]] == [("A", 15.0), ("send, HBM", -5.0), ("gemm, HBM", 2.0)]
    assert sum(step.value for step in steps[:-1]) == pytest.approx(steps[-1].value) == pytest.approx(12.01)
    assert [step.value for step in change_steps(a, a, {})] == [15.0, 0.0, 15.0]


def unpacked(rank: dict[str, Any]) -> dict[str, Any]:
    planes = np.frombuffer(zlib.decompress(base64.b64decode(rank["packed"])), dtype=np.uint8)
    table = planes.reshape(len(PACKED), 4, rank["rows"]).transpose(0, 2, 1).copy().view("<u4")[:, :, 0]
    found = dict(zip(PACKED, table.astype(np.int64), strict=True))
    return found | {"start": np.cumsum(found["start"]) % 2**32}


def test_bars_are_the_tasks_of_the_timeline() -> None:
    run = overlapped()
    assert unit_ps(run.measured.makespan_ps) == 1000
    _, other = timeline_data(run.columns, run.critical, 1000)
    assert other["streams"] == [("main", 2), ("comm", 2)]
    bars = unpacked(other)
    assert bars["start"].tolist() == [0, 40_000, 10_000, 55_000]
    assert bars["length"].tolist() == [20_000, 10_000, 30_000, 5_000]
    assert bars["waited"].tolist() == [0, 0, 0, 5_000]
    assert [other["texts"][number][0] for number in bars["what"]] == ["a.gemm", "b.norm", "a.move", "b.move"]
    assert bars["awaited"].tolist() == [0, 3, 0, 2], "the place of what each came after, and one"
    assert other["layers"] == [(0, 0, 40_000), (1, 40_000, 60_000)]
    on_path = {one.task for one in run.critical.segments if one.rank == 0}
    assert set(bars["task"][bars["critical"] > 0].tolist()) == on_path != set()


def test_long_runs_have_a_coarser_unit() -> None:
    hour_ps = 3600 * 10**12
    assert hour_ps / unit_ps(hour_ps) < 2**32
    assert unit_ps(hour_ps) % 1000 == 0


def test_the_slowest_rank_comes_first() -> None:
    run = timeline([task("work", 0, 50)], [task("work", 0, 90)], [task("work", 0, 20)], [task("work", 0, 60)])
    assert [*ranks_shown(run.columns())] == [1, 0, 3]
    assert ranks_shown(run.columns())[1] == "rank 1, slowest"


def test_use_over_time_adds_up_to_what_is_moved() -> None:
    run = overlapped()
    edges = np.linspace(0, 60 * US, 7)
    used = {one.name: one for one in use_over_time(run.columns, run.peaks, 0, edges)}
    assert {(one.unit, one.peak) for one in used.values()} == {("GB/s", 1000), ("GB/s", 3000), ("cores", 24),
                                                               ("cores", 48), ("GB/s", 0)}  # fmt: skip
    used = {name.partition(" ")[0]: one for name, one in used.items()}
    assert (used["HBM"].mean * 10e-6 * 1e9).sum() == pytest.approx(16e6)
    assert used["HBM"].mean[0] == pytest.approx(1e6 / 20e-6 / 1e9)
    assert used["cube"].mean.tolist() == pytest.approx([24, 24, 0, 0, 0, 0])


def test_a_point_of_the_roofline_is_flops_by_bytes_and_by_time() -> None:
    run = overlapped()
    (point,) = kernel_points(run.columns)
    assert (point.name, point.flops_per_byte) == ("a.gemm", 2000.0)
    assert point.flops_per_s == pytest.approx(2e9 / 75e-6), "over the time of both ranks"
    drawn = roofline_chart({"": run}, {"": [point]})
    roof = next(one for one in drawn.traces if one.get("role") == "roof")
    assert [min(3e14, 1e12 * x) for x in roof["x"]] == roof["y"], "bytes/s x FLOP/byte, up to the peak"


def test_the_front_is_what_nothing_beats() -> None:
    points = [Point("a", 1, 1), Point("b", 2, 3), Point("c", 3, 2), Point("d", 3, 5), Point("e", 2, 2)]
    assert [one.name for one in front(points)] == ["a", "b", "d"]
    for point in set(points) - set(front(points)):
        assert any(one.latency <= point.latency and one.rate >= point.rate for one in front(points))


def test_values_of_a_sweep_are_in_order() -> None:
    def run(value: str) -> Recorded:
        return run_of([task("one", 0, US)], changes={"chip.rate": value}, settings={})

    runs = [run("3.2 TB/s"), run("900 GB/s"), run("1 TB/s")]
    key, pairs = in_order(runs)
    assert (key, [value for value, _ in pairs]) == ("chip.rate", ["900 GB/s", "1 TB/s", "3.2 TB/s"])
    assert changed([run("sdma"), run("aiv")]) == ("chip.rate", ["sdma", "aiv"])
    assert changed([run("1"), run_of([task("one", 0, US)], scenario="other:one")])[0] == "scenario"
    assert "3 values of chip.rate" in text_of(many_page(runs, WORDS))


def test_values_that_repeat_are_told_apart() -> None:
    """Bars of one name would stand on each other."""
    def run(changes: dict[str, str], seed: int = 0) -> Recorded:
        return run_of([task("one", 0, US)], changes=changes, seed=seed)

    def names(*runs: Recorded) -> tuple[str, list[str]]:
        key, pairs = in_order(runs)
        return key, [value for value, _ in pairs]

    assert names(run({}, 2), run({}, 0), run({}, 10)) == ("seed", ["0", "2", "10"])
    one, other = run({"chip.rate": "2"}), run({"chip.rate": "1"})
    assert names(one, other, one) == ("chip.rate", ["1", "2 (2)", "2 (3)"])
    assert names(one, run({"chip.rate": "2"}, 1), other)[0] == "chip.rate, seed"
    assert names(one, one, one) == ("scenario", [f"hand:made ({place})" for place in (1, 2, 3)])
    drawn = [trace for chart in scripts(text_of(many_page([one, other, one], WORDS))) for trace in chart["data"]]
    bars = [trace["y"] for trace in drawn if trace["type"] == "bar"]
    assert len(bars) >= 3
    assert {tuple(sorted(names)) for names in bars} == {("1", "2 (2)", "2 (3)")}


@pytest.mark.parametrize("sides", ["", "AB"])
def test_a_page_has_all_sections_and_the_numbers(sides: str) -> None:
    run = overlapped()
    text = text_of(run_page(dict.fromkeys(sides, run) if sides else {"": run}, WORDS))
    names = [one.partition('"')[0] for one in text.split('<section id="')[1:]]
    assert names == ["summary", "timeline", "kinds", "path", *(["moved"] if sides else []), "sensitivity", "roofline",
                     "use", "kernels", "memory", "provenance"]  # fmt: skip
    assert ("Nothing moved: all 6 tasks" in text) == bool(sides)
    assert GENERATOR in text[:2048]
    for said in ("what latency_ms says", "chip.hbm.peak", "-50.0%", "a paper", "0.06"):
        assert said in text
    assert not re.search(r"https?://|src=|@import", text), "nothing from a network"


def test_a_run_without_tasks_has_a_page() -> None:
    text = text_of(run_page({"": run_of([])}, WORDS))
    assert 'id="memory"' in text
    assert 'id="timeline"' not in text


def test_no_text_becomes_markup() -> None:
    run = run_of([task(EVIL, 0, US, kind=EVIL, stream=EVIL, layer=0, flops=1.0, hbm_bytes=1.0, bound_by=EVIL),
                  comm("move", US, 2 * US, after=(0,))], title=EVIL, scenario=EVIL, settings={EVIL: EVIL},
                 changes={EVIL: EVIL}, machine=EVIL)  # fmt: skip
    for page in (run_page({"": run}, WORDS), run_page({"A": run, "B": run}, WORDS), many_page([run] * 3, WORDS)):
        text = text_of(page)
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
        assert EVIL in str(scripts(text)) or "&lt;script&gt;" in str(scripts(text)), "scripts read the text itself"


def test_pieces_of_html_show_text_as_it_is() -> None:
    assert escaped('<a & "b">') == "&lt;a &amp; &quot;b&quot;&gt;"
    assert data_script("</script>") == '<script type="application/json">"\\u003c/script\\u003e"</script>'
    made = table(Titled("<t>", ("<name", ">value"), [("a_b", 1.0), None, ("<i>", 2.5)]))
    for said in ("a_<wbr>b", "&lt;i&gt;", '<tr class="below">'):
        assert said in made
    assert "<i>" not in made
    assert table(Titled("none", ("<name",), [])) == ""
    page = Page("t", Html(""), [Section("one", "One", Html("x"))], "1")
    assert '<a href="#one">One</a>' in document(page, "")


def test_one_colour_for_each_kind_everywhere() -> None:
    assert colours(["gemm", "mine"])["gemm"] == KINDS["gemm"]
    assert colours(["mine", "yours"]) == colours(["yours", "mine"])
    usual = [*KINDS.values(), *OTHERS]
    assert len(set(usual)) == len(usual)


DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
PROTANOPIA = np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])
"""Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision Deficiency, 2009."""


@pytest.mark.parametrize("eye", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["all", "no green", "no red"])
def test_usual_kinds_are_told_apart_by_who_sees_few_colours(eye: Any) -> None:
    def lab(colour: str) -> Any:
        rgb = np.array([int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        seen = np.clip(eye @ linear, 0, 1)
        xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
        x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 1e-6))
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    usual = ["gemm", "grouped_gemm", "attention", "vector", "all_to_all", "all_gather", "reduce_scatter", "all_reduce"]
    for one, other in combinations(usual, 2):
        distance = float(np.linalg.norm(lab(KINDS[one]) - lab(KINDS[other])))
        assert distance > 8, f"{one} and {other} look alike: {distance:.1f}"


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "layers"), [(3, 20_834), (64, 977)])
def test_half_a_million_tasks_are_ten_megabytes_at_most(ranks: int, layers: int) -> None:
    from plotly.offline import get_plotlyjs

    run = recorded(large_columns(ranks, layers))
    assert len(run.columns["rank"]) >= 500_000
    assert len(document(run_page({"": run}, WORDS), get_plotlyjs()).encode()) < 10e6
