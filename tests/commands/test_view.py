"""`braid view`: the trace that it serves is the one that was written, and every mistake is one message."""

from __future__ import annotations

import gzip
import importlib.util
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

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
