"""Pages in a headless browser: what they complain of, and what they ask a network for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.observe.perfetto_ui import chromium, missing

NO_PLOTLY = "window.Plotly = { react() {} };"
"""In its place where charts are not what is tested: it takes seconds to read."""


class Opened:
    """A page that is drawn. page: of playwright; complaints: what stands on its console, and what it asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda one: self.complaints.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda one: self.complaints.append(str(one)))
        page.on("dialog", lambda one: self.complaints.append(f"dialog: {one.message}"))
        page.on("request", lambda one: self._asked(one.url))

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.complaints.append(f"asked for {url}")

    def at(self, text: str, folder: Path) -> Opened:
        """Shows a page with this text, and waits until it is drawn."""
        path = folder / "page.html"
        path.write_text(text, encoding="utf-8")
        self.page.goto(path.as_uri())
        self.page.wait_for_function("() => document.documentElement.dataset.drawn", timeout=60_000)
        return self

    def overflow(self, width: int) -> int:
        """By how many pixels the page is wider than a window of this width."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.wait_for_timeout(120)  # until charts have the new width
        found = self.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        return int(found)

    def shown(self) -> tuple[float, float]:
        """From and to when the timeline shows, in units of the page."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        data = self.page.evaluate("() => ({ ...document.querySelector('.timeline').dataset })")
        return float(data["from"]), float(data["to"])


@contextmanager
def browser() -> Iterator[Any]:
    """A browser; skips the test where there is none."""
    if reason := missing():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield started
        finally:
            started.close()
