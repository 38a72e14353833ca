"""Modules that were compiled when the package was built, used where they were compiled from the present sources.

The build hook of the wheel puts extensions into `_compiled`, a folder for each Python, beside the digest of the sources
that they were made of (not of what these import: a type that changes there is checked as it was). A source that was
edited since, or the environment variable BRAID_PLAIN, has all of them run as Python: to step through them, to patch
them, or to inherit from their classes.
"""

import os
import sys
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

DIGEST = "digest"
"""The file with the digest; after it the modules, by their paths, a line each."""


def digest_of(root: Path, modules: list[str]) -> str:
    """Of the texts of modules, which are named by their paths from `root`."""
    return sha256(b"".join((root / module).read_bytes() for module in modules)).hexdigest()


def folder_name() -> str:
    """Where in the package the extensions for this Python are."""
    return f"_compiled/{sys.implementation.cache_tag}"


class CompiledFinder:
    """Finds the extensions of `modules` in `folder`, and what they share."""

    def __init__(self, folder: Path, modules: list[str]) -> None:
        self.folder = folder
        self.names = {module.removesuffix(".py").replace("/", ".") for module in modules}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """As `importlib` asks for it."""
        if name not in self.names and not name.endswith("__mypyc"):
            return None
        return PathFinder.find_spec(name, [str(self.folder.joinpath(*name.split(".")[:-1]))])


def use_compiled(package: Path) -> bool:
    """Have the compiled modules of a package imported from now on; whether there are any that are up to date."""
    note = package / folder_name() / DIGEST
    if os.environ.get("BRAID_PLAIN") or not note.exists():
        return False
    digest, *modules = note.read_text().split() or [""]
    try:
        if digest != digest_of(package.parent, modules):
            return False
    except OSError:
        return False
    sys.meta_path.insert(0, CompiledFinder(note.parent, modules))
    return True
