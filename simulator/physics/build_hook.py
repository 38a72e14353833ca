"""Build hook of the wheel: compiles what is hot where a C compiler is found; without one the wheel is built without it.

Two things are compiled. `ranked.c`, the solver of coupled flows, becomes a library that is bound by ctypes, so it needs
no Python headers. The modules that pyproject.toml lists become extensions of the same names by mypyc (see
`simulator/compiled.py`): what runs is the same source, only faster.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O2", "-shared", "-fPIC", "-ffp-contract=off")
MODULE_FLAGS = ("-O1", "-g0", "-w", "-ffp-contract=off")
FOLDER = f"simulator/_compiled/{sys.implementation.cache_tag}"


class CompilingBuildHook(BuildHookInterface):
    """Puts `libranked.so` beside `ranked.c` and the extensions into FOLDER, both in the source tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before hatchling collects files; version: "standard" or "editable"."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        library = root / "simulator" / "physics" / "libranked.so"
        if not _library_compiled(library.with_name("ranked.c"), library):
            if version == "editable":
                with suppress(OSError):
                    library.unlink()  # one of an older source must not answer
            self.app.display_warning("no C compiler: coupled flows will be solved by Python, which is slower")
            return
        compiled = {library: "simulator/physics/libranked.so"}
        build_data["pure_python"] = False
        if _modules_compiled(root, self.config["modules"]):
            compiled[root / FOLDER] = FOLDER
            build_data["infer_tag"] = True
        else:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
            self.app.display_warning("mypyc could not compile the hot modules: they run as Python, at half speed")
        if version != "editable":
            build_data["force_include"] |= {str(file): name for file, name in compiled.items()}


def _library_compiled(source: Path, library: Path) -> bool:
    """Whether the library could be built."""
    named = os.environ.get("CC")
    compilers = [shlex.split(named)] if named else [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]
    for compiler in compilers:
        fresh = library.with_suffix(".new")
        command = [*compiler, *FLAGS, "-o", str(fresh), str(source), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            fresh.replace(library)
            return True
        print(done.stderr, file=sys.stderr)
    return False


def _modules_compiled(root: Path, modules: list[str]) -> bool:
    """Whether the extensions could be built; FOLDER holds these and the digest of their sources, or is gone."""
    folder = root / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    sys.path.insert(0, str(root))
    try:
        from simulator.compiled import DIGEST, digest_of

        with tempfile.TemporaryDirectory() as build:
            digest = digest_of(root, modules)
            _compile(root, modules, Path(build))
            shutil.copytree(Path(build, "out"), folder)
        Path(folder, DIGEST).write_text("\n".join([digest, *modules]) + "\n")
    except (Exception, SystemExit) as error:  # mypyc leaves the process where it finds fault with a source
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return False
    finally:
        sys.path.remove(str(root))
    return True


def _compile(root: Path, modules: list[str], build: Path) -> None:
    """Compile modules, named by their paths, into build/out, in folders like those of their sources."""
    import simpy  # noqa: F401 (mypyc must see that the base of a compiled class is Python's)
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    before = Path.cwd()
    os.chdir(root)
    try:
        options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", "--explicit-package-bases",
                   "--disable-error-code=attr-defined"]  # of NumPy, which need not be there
        extensions = mypycify([*options, *modules], target_dir=str(build), opt_level="1", debug_level="0")
        for extension in extensions:
            extension.extra_compile_args = list(MODULE_FLAGS)
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = str(build / "out"), str(build / "objects")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
