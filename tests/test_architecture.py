"""The tree keeps its shape: imports point down only, a file is one noun, a function does one thing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "simulator"
FILES = sorted(PACKAGE.rglob("*.py"))

FLOORS = (
    ("compiled", "np", "units", "errors", "paths"),
    "physics", "spec", "fabric", "die", "program", "collective", "symmetry", "replay", "live", "model", "stack",
    "parallel", "study", "serving", "search", "calibrate", "probe", "bench", "commands", "__main__",
)
"""Folders from the ground up, each on a floor of its own above the files of the package that all may import."""

FLOOR = {name: number for number, names in enumerate(FLOORS) for name in ([names] if isinstance(names, str) else names)}
BESIDE = "observe"  # imports numpy and units alone; whoever runs something may import it
OBSERVED_FROM = FLOOR["study"]
EXPLAINED = re.compile(r"(?:^|[.;]\s+)((?:[a-z]\w*, )*[a-z]\w*): ")  # "ends, spread: of its kernels"
VAGUE = re.compile(r"\b(?:(?:no|some|every|any)body|whoever)\b", re.IGNORECASE)
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
TOP = {".ci", ".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "docs", "pyproject.toml",
       "results", "scenarios", "services", "simulator", "tests", "topologies", "workloads"}  # fmt: skip
def _noun(module: str) -> str:
    """simulator.die.npu -> die"""
    return [*module.split("."), ""][1]


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


MODULES = {_module(file).removesuffix(".__init__") for file in FILES}


def _imports(file: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it: in functions, and for types alone, too."""
    return _imported(file.read_text(encoding="utf-8"), str(file))


def _imported(source: str, where: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{where}: relative import"
            parts = {f"{node.module}.{name.name}" for name in node.names}
            found |= {part if part in MODULES else node.module for part in parts}
    return {name for name in found if name.split(".")[0] == "simulator"}


def _circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Modules that import each other, by whatever way round."""
    graph = networkx.DiGraph([(here, there) for here, those in imports.items() for there in those if here != there])
    return [circle for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_imports_point_down_only(file: Path) -> None:
    here = _noun(_module(file))
    if here in ("__init__", ""):
        assert _imports(file) <= {"simulator.compiled"}, "every command waits for what this imports"
        return
    for imported in _imports(file):
        there = _noun(imported)
        if here == BESIDE:
            assert there in (BESIDE, "np", "units"), f"observe/ imports {imported}; it may import numpy and units alone"
        elif there == BESIDE:
            assert FLOOR[here] >= OBSERVED_FROM, f"{here} must not know who watches, but imports {imported}"
        else:
            assert here in FLOOR, f"{here} has no floor: give it one in this test and in the README"
            assert there in FLOOR, f"{there} has no floor: give it one in this test and in the README"
            assert FLOOR[there] <= FLOOR[here], f"floor {FLOOR[here]} imports {imported} of floor {FLOOR[there]}"


def test_no_files_import_each_other() -> None:
    circles = _circles({_module(file).removesuffix(".__init__"): _imports(file) for file in FILES})
    short = [{module.removeprefix("simulator.") for module in circle} for circle in circles]
    assert short == []


def test_a_circle_is_found_in_functions_and_among_types_too() -> None:
    inside = "def f():\n    from simulator.die import npu\n"
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from simulator.die.cache import Cache\n"
    imports = {"simulator.die.cache": _imported(inside, ""), "simulator.die.npu": _imported(types, "")}
    assert _circles(imports) == [{"simulator.die.cache", "simulator.die.npu"}]


def test_the_floors_are_the_folders() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    files = {file.stem for file in PACKAGE.glob("*.py")} - {"__init__"}
    assert folders | files == {*FLOOR, BESIDE}


def test_the_top_has_the_folders_and_nothing_else() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout: what else lies here is its owner's")
    assert {line.partition("/")[0] for line in listed.stdout.splitlines()} == TOP


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


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_docstrings_name_what_they_speak_of(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            vague = VAGUE.findall(ast.get_docstring(node) or "")
            assert not vague, f"{file.name}: {getattr(node, 'name', 'the file')} speaks of {', '.join(vague)}"


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_docstrings_of_records_explain_fields_that_there_are(file: Path) -> None:
    """By their names, or without the unit that ends them; a value that a field may have stands in quotes somewhere."""
    source = file.read_text(encoding="utf-8")
    for node in (one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.ClassDef)):
        fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
        names = {one.id for one in fields if isinstance(one, ast.Name)}
        if not names or any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body):
            continue
        names |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)} | {"none"}
        said = " ".join((ast.get_docstring(node) or "").split())
        for word in (word for found in EXPLAINED.findall(said) for word in found.split(", ")):
            there = any(name == word or name.startswith(f"{word}_") for name in names) or f'"{word}"' in source
            assert there, f"{file.name}: {node.name} explains '{word}', which it has not"


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'simpy', 'networkx', 'pyarrow', 'pydantic'}"
    code = f"import sys, simulator.commands.main; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
