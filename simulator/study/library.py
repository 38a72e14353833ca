"""Scenarios by name ("a3_prefill:dp") from the library, or by path ("my.py:mine") from a user's own file, and whatever
else is what a function of such a file returns.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from simulator import paths
from simulator.errors import InputError
from simulator.paths import did_you_mean, own_location
from simulator.study.refusals import exits_refused
from simulator.study.scenario import Scenario

ReturnedT = TypeVar("ReturnedT")
_LISTS = {"scenarios": "braid list", "services": "braid services"}
_PREFIX = "braid_"  # of modules that were loaded here, before their kind


def scenario_names() -> list[tuple[str, str]]:
    """(name, first line of what it is) of every scenario of the library, file by file in the order of the code."""
    return names_of("scenarios")


def load_scenario(reference: str) -> Scenario:
    """The scenario FILE:FUNCTION, FILE being a name of the library or a path to a .py file; InputError where there
    is no such file or function, with those that there are, or it does not return a scenario."""
    found = returned("scenarios", reference, Scenario)
    return found.variant(name=reference, file_changes=found.changes)


def names_of(kind: str) -> list[tuple[str, str]]:
    """(name, first line of what it is) of every function of the library's files of a kind, in the order of the code."""
    return [(f"{file}:{name}", (inspect.getdoc(function) or "").partition("\n")[0]) for file in paths.names(kind)
            for name, function in _functions(_module(kind, paths.find(kind, file)))]


def doc_of(kind: str, reference: str) -> str:
    """What the file of FILE:FUNCTION says of itself; "" where it says nothing."""
    return inspect.getdoc(_module(kind, paths.find(kind, reference.rpartition(":")[0]))) or ""


def about(kind: str, reference: str) -> str:
    """The first sentence of it."""
    return " ".join(doc_of(kind, reference).split()).partition(". ")[0].removesuffix(".")


def returned(kind: str, reference: str, of: type[ReturnedT]) -> ReturnedT:
    """What FILE:FUNCTION of a kind ("scenarios") returns, which must be of this type; InputError as `load_scenario`."""
    what = of.__name__.lower()
    file, colon, name = reference.rpartition(":")
    if not colon and reference.endswith(".py"):
        has = [f"{reference}:{one}" for one, _ in _functions(_module(kind, paths.find(kind, reference)))]
        raise InputError(f"'{reference}' is a file: write FILE:FUNCTION; it has {', '.join(has) or 'none'}")
    if not colon:
        known = [one for one, _ in names_of(kind)]
        its = [one for one in known if one.startswith(f"{reference}:")]
        there = f"the nearest are {', '.join(paths.nearest(reference, known))}; `{_LISTS[kind]}` has all"
        if its:
            there = f"there are {', '.join(its)}"
        hint = did_you_mean(reference, its or known)
        raise InputError(f"'{reference}' is no {what}: write FILE:FUNCTION{hint}; {there}")
    module = _module(kind, paths.find(kind, file))
    functions = dict(_functions(module))
    if name not in functions:
        raise InputError(f"'{reference}' is no {what}{_why_not(module, name, file, list(functions), what)}")
    with exits_refused(reference):
        found = functions[name]()
    if not isinstance(found, of):
        raise InputError(f"{reference} returns {type(found).__name__}, not a {of.__name__}")
    return found


def _why_not(module: ModuleType, name: str, file: str, functions: list[str], of: str) -> str:
    """What is wrong with the name of a function that returns no such thing, and which there are."""
    known = [f"{file}:{one}" for one in functions]
    what, value = did_you_mean(f"{file}:{name}", known), vars(module).get(name)
    if inspect.isfunction(value):
        needed = [one.name for one in inspect.signature(value).parameters.values() if one.default is one.empty]
        if name.startswith("_"):
            what = f": a name that begins with _ is the file's own: rename {name}"
        elif value.__module__ != module.__name__:
            what = f": {name} is imported: give the file that defines it"
        elif needed:
            what = f": {name} needs {', '.join(needed)}: a {of} function takes no arguments"
    there = f"there are {', '.join(known)}" if known else "no function in this file can be called without arguments"
    return f"{what}; {there}"


def _module(kind: str, path: Path) -> ModuleType:
    """The file as a module; its own folder's siblings and the library's `workloads` can be imported from it.

    Siblings belong to the file: another file's sibling of the same name is another module.
    """
    name = f"{_PREFIX}{kind}.{path.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    own = path.resolve().parent
    for folder in (paths.folder("workloads").parent, own):  # also for what is imported later, in a function
        if str(folder) not in sys.path and folder != paths.folder(kind):
            sys.path.append(str(folder))
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        with _siblings(own) if own != paths.folder(kind) else nullcontext(), exits_refused(str(path)):
            specification.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SyntaxError | ImportError | NameError):
            raise InputError(f"{own_location(error) or path}: {type(error).__name__}: {error}") from error
        raise
    return module


@contextmanager
def _siblings(folder: Path) -> Iterator[None]:
    """Modules of this folder can be imported, and are forgotten afterwards: the code that imported them keeps them."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().is_relative_to(folder) and not name.startswith(_PREFIX):
                del sys.modules[name]


def _functions(module: ModuleType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The public functions that the file itself defines and that need no argument."""
    for name, value in vars(module).items():
        if name.startswith("_") or not inspect.isfunction(value) or value.__module__ != module.__name__:
            continue
        parameters = inspect.signature(value).parameters.values()
        if all(parameter.default is not parameter.empty for parameter in parameters):
            yield name, value
