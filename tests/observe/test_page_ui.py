"""Pages in a browser: drawn without a complaint and without a network, at every width, by keys and by pointer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.observe.page.many_page import many_page
from simulator.observe.page.palette import KINDS
from simulator.observe.page.run_page import run_page
from tests.observe.hand import comm, task
from tests.observe.page_ui import NO_PLOTLY, Opened, browser
from tests.observe.test_page import EVIL, US, WORDS, document, overlapped, run_of

pytestmark = pytest.mark.perfetto
WIDTHS = (390, 768, 1920)
COLOURS_ON_CANVAS = """() => {
    const canvas = document.querySelector('canvas'), found = new Set();
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    for (let at = 0; at < data.length; at += 4) {
        found.add('#' + [0, 1, 2].map(part => data[at + part].toString(16).padStart(2, '0')).join(''));
    }
    return [...found];
}"""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def opened(chrome: Any) -> Iterator[Opened]:
    page = chrome.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield Opened(page)
    page.close()


def plotly() -> str:
    pytest.importorskip("plotly")
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def test_a_page_is_drawn_at_every_width_in_light_and_dark(opened: Opened, tmp_path: Path) -> None:
    evil = [task(EVIL, 0, 9 * US, kind=EVIL, stream=EVIL, bound_by=EVIL, layer=0, flops=1e9, hbm_bytes=1e6)]
    run, other = overlapped(), run_of([*evil, comm("two", 0, US)], title=EVIL, scenario=EVIL)
    page = opened.at(document(run_page({"A": run, "B": other}, WORDS), plotly()), tmp_path).page
    assert "<script>alert(1)</script>" in page.inner_text("h1")
    drawn = page.eval_on_selector_all(".chart .plot", "all => all.filter(one => one.clientWidth).map(one => "
                                                      "one.querySelectorAll('.main-svg').length)")
    assert len(drawn) >= 8
    assert all(drawn), "every chart that is not folded"
    assert [opened.overflow(width) for width in WIDTHS] == [0, 0, 0]
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light, picture = page.evaluate(ground), page.screenshot()
    page.click("#theme")
    dark = page.evaluate(ground)
    assert dark != light
    assert page.screenshot() != picture
    page.click("#theme")
    assert page.evaluate(ground) == light
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"dark => ({ground})() === dark", arg=dark)  # the page follows the system
    for folded in page.query_selector_all("details"):
        folded.query_selector("summary").click()
    page.wait_for_function("() => [...document.querySelectorAll('.plot')].every(one => one.querySelector('.main-svg'))")
    assert opened.overflow(390) == 0
    assert opened.complaints == []


def test_an_instant_has_the_digits_that_the_length_of_its_task_needs(opened: Opened, tmp_path: Path) -> None:
    """And a run without layers has no control for one."""
    start, length = 1_241_203_456_000, 10_644_000
    run = run_of([task("early", 0, start), task("late", start, start + length)])
    page = opened.at(document(run_page({"": run}, WORDS), NO_PLOTLY), tmp_path).page
    assert not page.is_visible("label:has-text('layer')")
    page.focus("canvas")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert "10.644 us, from 1.241203456 s to 1.2412141 s" in page.inner_text(".said")


@pytest.mark.slow
def test_a_sweep_and_hostile_texts_are_drawn(opened: Opened, tmp_path: Path) -> None:
    runs = [run_of([task(EVIL, 0, length * US, kind=EVIL)], title=EVIL, scenario=EVIL, changes={EVIL: EVIL * length})
            for length in (1, 2, 3)]
    for place, run in enumerate(runs):
        run.metrics.update(tpot_ms=1.0 + place, throughput_tok_s=5.0 * place + 1)  # type: ignore[attr-defined]
    page = opened.at(document(many_page(runs, WORDS), plotly()), tmp_path).page
    assert "<script>alert(1)</script>" in page.title()
    assert "Pareto front" in page.inner_text("#curve")
    assert [opened.overflow(width) for width in WIDTHS] == [0, 0, 0]
    assert opened.complaints == []


def test_keys_move_the_timeline_and_go_from_task_to_task(opened: Opened, tmp_path: Path) -> None:
    page = opened.at(document(run_page({"": overlapped()}, WORDS), NO_PLOTLY), tmp_path).page
    layer = opened.shown()
    assert layer[0] < 55_000 < 60_000 < layer[1], "the middle layer of the slowest rank, in ns"
    page.focus("canvas")
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Home")
    whole = opened.shown()
    assert whole[0] <= 0 <= 60_000 <= whole[1]
    page.keyboard.press("+")
    near = opened.shown()
    assert near[1] - near[0] < whole[1] - whole[0]
    page.keyboard.press("ArrowRight")
    moved = opened.shown()
    assert moved[0] > near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0])
    page.keyboard.press("End")
    assert opened.shown() == pytest.approx(layer)
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    assert "a.gemm" in page.inner_text(".said")
    page.keyboard.press("Shift+ArrowDown")
    assert "b.move" in page.inner_text(".said")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.tagName") != "CANVAS", "Tab leaves the timeline"
    assert opened.complaints == []


def test_the_pointer_tells_zooms_and_drags(opened: Opened, tmp_path: Path) -> None:
    page = opened.at(document(run_page({"": overlapped()}, WORDS), NO_PLOTLY), tmp_path).page
    page.select_option("select.rank", label="rank 0, first")
    page.click(".do-whole")
    whole = opened.shown()
    box = page.query_selector("canvas").bounding_box()
    left = min(110, max(56, box["width"] * 0.12))

    def point(time_ns: float, lane: int) -> tuple[float, float]:
        x = left + (time_ns - whole[0]) / (whole[1] - whole[0]) * (box["width"] - left)
        return box["x"] + x, box["y"] + 22 + 22 + 17 + 28 * lane + 12

    page.mouse.move(*point(57_500, 1))
    said = page.inner_text(".tip")
    for text in ("b.move", "all_to_all", "stream comm", "layer 1", "micro-batch B", "works 5 us", "waited 5 us",
                 "came after b.norm", "bound by link", "rank 0"):
        assert text in said
    page.mouse.click(*point(5_000, 0))
    assert "a.gemm" in page.inner_text(".said")
    assert {KINDS["gemm"], KINDS["all_to_all"], KINDS["vector"]} <= set(page.evaluate(COLOURS_ON_CANVAS))
    page.mouse.move(*point(30_000, 0))
    page.mouse.wheel(0, -240)
    near = opened.shown()
    assert near[1] - near[0] < whole[1] - whole[0]
    assert near[0] < 30_000 < near[1]
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 70)
    page.mouse.up()
    assert opened.shown()[0] < near[0]
    assert opened.complaints == []


def test_two_timelines_have_one_scale(opened: Opened, tmp_path: Path) -> None:
    late = run_of([task("before", 0, 100 * US), task("a.gemm", 100 * US, 120 * US, layer=0, after=(0,)),
                   task("b.norm", 120 * US, 130 * US, layer=1, kind="vector", after=(1,))])
    page = opened.at(document(run_page({"A": overlapped(), "B": late}, WORDS), NO_PLOTLY), tmp_path).page
    begin = opened.shown()[0]
    assert begin <= 0, "both from the begin of their layer"
    page.select_option("select.align", "start")
    page.select_option("select.layer", "1")
    from_start = opened.shown()
    assert from_start[0] < 55_000 < 130_000 < from_start[1], "both as they are"
    assert opened.complaints == []
