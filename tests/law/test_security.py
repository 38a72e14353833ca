"""What SECURITY.md promises of the source: data runs nothing, and only what is named there opens a door."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDERS = ("simulator", "scenarios", "services", "workloads")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
READS_OBJECTS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "jsonpickle"}
SHELLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}
NETWORK = {"http", "socket", "socketserver", "urllib.request", "requests", "httpx", "aiohttp", "ftplib", "smtplib"}
WORDS = re.compile("|".join(map(re.escape, (
    *RUNS_TEXT, *READS_OBJECTS, *(name for _, name in SHELLS), *(name.partition(".")[0] for name in NETWORK),
    "shell", "load_module", "run_path", ".load(", "allow_pickle"))))
ALLOWED = {
    ("simulator/study/library.py", "exec_module"): "a scenario, or a service, is a file of Python",
    ("simulator/search/executors.py", "pickle"): "between this process and those that it started, through their pipes",
    ("simulator/search/ray_driver.py", "pickle"): "between this process and the Ray cluster that the user names",
    ("simulator/search/ray_driver.py", "socket"): "whether the Ray cluster that the user names answers",
    ("simulator/probe/torch_group.py", "socket"): "a free port of this computer, for the processes of a probe",
    ("simulator/commands/view.py", "http"): "the server of `braid view`, on the loopback interface",
}
"""(file, what of the above it has): why it may."""


def found(source: str, where: str) -> Iterator[tuple[str, str]]:
    """(file, what) of everything that runs text, reads objects, starts a shell or opens a connection."""
    if not WORDS.search(source):  # which is faster than to parse it
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [
                node.module or "", *(f"{node.module}.{one.name}" for one in node.names)]
            for name in names:
                its = {name, name.partition(".")[0]} & (READS_OBJECTS | NETWORK)
                yield from ((where, one) for one in its)
        elif isinstance(node, ast.Call):
            yield from ((where, one) for one in _of_call(node))


def _of_call(node: ast.Call) -> Iterator[str]:
    called = node.func
    if isinstance(called, ast.Name) and called.id in RUNS_TEXT:
        yield called.id
    if isinstance(called, ast.Attribute):
        owner = called.value.id if isinstance(called.value, ast.Name) else ""
        if called.attr in ("exec_module", "load_module", "run_path") or (owner, called.attr) in SHELLS:
            yield called.attr
        if called.attr == "load" and owner in ("np", "numpy", "torch"):
            yield f"{owner}.load"
    for one in node.keywords:
        if one.arg in ("shell", "allow_pickle") and not (isinstance(one.value, ast.Constant) and not one.value.value):
            yield f"{one.arg}="


def test_nothing_runs_data_but_what_security_md_names() -> None:
    seen = {each for file in FILES for each in found(file.read_text(encoding="utf-8"), str(file.relative_to(ROOT)))}
    assert seen == set(ALLOWED), "name it, and why it may, in SECURITY.md and in ALLOWED; or take it out"


@pytest.mark.parametrize(("source", "what"), [
    ("eval('1')", "eval"), ("import yaml", "yaml"), ("from pickle import loads", "pickle"),
    ("def f():\n    import cloudpickle as c", "cloudpickle"), ("os.system('x')", "system"),
    ("subprocess.run('x', shell=True)", "shell="), ("np.load(x)", "np.load"),
    ("import urllib.request", "urllib.request"),
    ("from urllib import request", "urllib.request"), ("spec.loader.exec_module(it)", "exec_module"),
])  # fmt: skip
def test_each_of_them_is_found(source: str, what: str) -> None:
    assert list(dict.fromkeys(found(source, "a.py"))) == [("a.py", what)]


def test_security_md_names_every_file_that_may() -> None:
    said = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for file, _ in ALLOWED:
        assert f"`{file}`" in said


def test_the_limits_that_security_md_states_are_those_of_the_source() -> None:
    from simulator.observe.arrow import MOST_ROWS
    from simulator.observe.measured.read import MOST_BYTES
    from simulator.search.asked import MOST
    from simulator.serving.measured import MOST_REQUESTS
    from simulator.spec.levels import MOST_DIES, MOST_LINKS
    from simulator.spec.model_tables import MOST as OF_A_MODEL

    said = " ".join(Path(ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
    for text in (f"{MOST_DIES:,} dies", f"{MOST_LINKS:,} links", f"{OF_A_MODEL['layers']:,} layers",
                 f"{OF_A_MODEL['routed_experts']:,} routed experts", f"{MOST:,} GPUs", f"{MOST_REQUESTS:,} requests",
                 f"{MOST_BYTES >> 30} GiB", f"{MOST_ROWS:,} rows"):  # fmt: skip
        assert text in said, text
