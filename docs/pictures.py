"""Makes the pictures of read_a_timeline.md: runs small scenarios, opens their traces in the Perfetto UI, and shoots.

In a checkout with the extra `ui` and a chromium on the PATH: `python -m docs.pictures [NAME ...]`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from simulator.observe.events import FIRST_PID

FOLDER = Path(__file__).parent / "pictures"
WIDTH, NAMES, RIGHT = 1200, 250, 15  # px: of a picture, and of what is left and right of the time in it
ABOVE, DRAWER = 113, 360  # px: search box and overview of the whole run, which are cut off; what is told of a slice

_READY = "() => !globalThis.app.isLoadingTrace && globalThis.app.trace.workspace.children.length > 0"
_SHOW = """([lanes, from_ns, to_ns]) => {
    const trace = globalThis.app.trace, other = one => !lanes.some(lane => one.name.startsWith(lane));
    for (const rank of trace.workspace.children) {
        rank.expand();
        rank.children.filter(other).forEach(one => rank.removeChild(one));
    }
    trace.timeline.timestampFormat = 'seconds';
    trace.timeline.setViewportTime(BigInt(from_ns), BigInt(to_ns));
}"""
_SELECT = "id => globalThis.app.trace.selection.selectSqlEvent('slice', id)"


class Picture(NamedTuple):
    """What is run and what of it is shown.

    lanes: how the names of those shown begin. height: of them and of the scale of time (px). window_ms: from and to.
    ranks: as for --trace-ranks. selected: a rank and how the name of a slice begins; of its first one in the window
    arrows are drawn. told: its arguments are shown, too. pointed: a counter and a time (ms) at which its value is said.
    """

    name: str
    scenario: str
    lanes: tuple[str, ...]
    height: int
    window_ms: tuple[float, float]
    ranks: str = "0"
    selected: tuple[int, str] | None = None
    told: bool = False
    pointed: tuple[str, float] | None = None


PICTURES = (
    Picture("lanes", "a3_prefill:microbatch", ("iteration", "layers", "host", "stream"), 222, (163.5, 189.5)),
    Picture("wait", "a3_prefill:microbatch", ("stream",), 126, (177.5, 183), selected=(0, "wait: event"), told=True),
    Picture("late_peer", "a3_prefill:dp_uneven", ("stream",), 143, (582, 584), ranks="0,16",
            selected=(16, "dispatch.counts")),
    Picture("launches", "a3_prefill:microbatch_slow_host", ("host", "stream compute"), 126, (196.4, 198.8),
            selected=(0, "launch attention.k_nope.layout")),
    Picture("counters", "a3_prefill:microbatch", ("stream", "HBM", "L2", "node", "cube"), 290, (171.5, 189.5),
            pointed=("L2", 175.5)),
)  # fmt: skip


def arguments(picture: Picture, folder: Path) -> list[str]:
    """Of `braid`, to write what is shown into a folder: a scenario with five layers."""
    return ["run", picture.scenario, "--set", "model.shapes.layers=5", "--trace-ranks", picture.ranks,
            "--out", str(folder)]  # fmt: skip


def shoot(picture: Picture, trace: Path, path: Path) -> None:
    """Opens a trace, zooms, selects, and takes the picture."""
    from tests.observe.perfetto_ui import opened

    window = [round(1e6 * each) for each in picture.window_ms]
    with opened(trace) as perfetto:
        page = perfetto.page
        page.set_viewport_size({"width": WIDTH, "height": ABOVE + picture.height + DRAWER})
        page.wait_for_function(_READY)
        page.evaluate(_SHOW, [picture.lanes, *map(str, window)])
        if picture.selected:
            rank, name = picture.selected
            [[chosen]] = perfetto.query(
                "select slice.id from slice join thread_track on track_id = thread_track.id join thread using (utid) "
                f"join process using (upid) where slice.name glob '{name}*' and pid = {FIRST_PID + rank} and "
                f"ts >= {window[0]} and ts + slice.dur <= {window[1]} order by ts limit 1")
            page.evaluate(_SELECT, chosen)
        page.wait_for_timeout(1_500)  # what a chart shows is fetched, then drawn
        if picture.told:
            page.get_by_text("args", exact=True).evaluate("one => one.scrollIntoView()")
        if picture.pointed:
            point(page, *picture.pointed, picture.window_ms)
        page.wait_for_timeout(500)
        height = picture.height + (DRAWER - 24 if picture.told else 0)
        page.screenshot(path=path, clip={"x": 0, "y": ABOVE, "width": WIDTH, "height": height})


def point(page: Any, counter: str, at_ms: float, window_ms: tuple[float, float]) -> None:
    """Moves the mouse to a time on a counter's track."""
    box = page.get_by_text(counter).first.bounding_box()
    share = (at_ms - window_ms[0]) / (window_ms[1] - window_ms[0])
    page.mouse.move(NAMES + share * (WIDTH - NAMES - RIGHT), box["y"] + box["height"])


def main() -> None:
    """Makes all pictures, or those named."""
    for picture in (one for one in PICTURES if one.name in sys.argv[1:] or not sys.argv[1:]):
        path = FOLDER / f"{picture.name}.png"
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "simulator", *arguments(picture, Path(folder))]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            shoot(picture, Path(folder) / "trace.json.gz", path)
        print(path)


if __name__ == "__main__":
    main()
