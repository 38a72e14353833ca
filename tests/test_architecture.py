"""The tree keeps its shape: imports point down only, a file is one noun, a function does one thing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "simulator"
FILES = sorted(PACKAGE.rglob("*.py"))

FLOORS = (
    ("units", "errors", "paths", "patterns"),
    ("physics",), ("spec",), ("fabric",), ("die",), ("program",), ("collective",), ("symmetry",), ("replay",),
    ("live",), ("model",), ("study",), ("calibrate",), ("commands", "bench", "__main__"),
)
"""From the ground up; of a folder, or a file at the top. A floor imports those below it, and itself."""

FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
BESIDE = "observe"  # imports units alone; whoever runs something may import it
OBSERVED_FROM = FLOOR["study"]
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60


def _noun(module: str) -> str:
    """simulator.die.npu -> machine"""
    return [*module.split("."), ""][1]


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def _imports(file: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            whole = node.module == "simulator"
            found |= {f"simulator.{name.name}" if whole else node.module for name in node.names}
    return {name for name in found if name.split(".")[0] == "simulator"}


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_imports_point_down_only(file: Path) -> None:
    here = _noun(_module(file))
    if here in ("__init__", ""):
        assert not _imports(file), "the package itself imports nothing, so that the command line answers at once"
        return
    for imported in _imports(file):
        there = _noun(imported)
        if here == BESIDE:
            assert there in (BESIDE, "units"), f"observe/ imports {imported}; it may import units alone"
        elif there == BESIDE:
            assert FLOOR[here] >= OBSERVED_FROM, f"{here} must not know who watches, but imports {imported}"
        else:
            assert here in FLOOR, f"{here} has no floor: give it one in this test and in the README"
            assert there in FLOOR, f"{there} has no floor: give it one in this test and in the README"
            assert FLOOR[there] <= FLOOR[here], f"floor {FLOOR[here]} imports {imported} of floor {FLOOR[there]}"


@pytest.mark.parametrize("file", sorted((ROOT / "workloads").rglob("*.py")), ids=lambda file: file.name)
def test_workloads_do_not_know_who_watches(file: Path) -> None:
    for imported in _imports(file):
        assert _noun(imported) != BESIDE, f"a workload imports {imported}"
        assert FLOOR[_noun(imported)] <= FLOOR["study"], f"a workload imports {imported}"


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_files_and_functions_stay_small(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert source.count("\n") <= MAX_FILE_LINES, f"{file.name} is no longer one noun"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{file.name}: {node.name} has {lines} lines"


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_public_things_say_what_they_mean(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{file.name} does not say what it is"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{file.name}: {node.name} has no docstring"


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'simpy', 'networkx', 'pyarrow', 'pydantic'}"
    code = f"import sys, simulator.commands.main; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
