"""Build hook of the wheel: compiles `ranked.c` where a C compiler is found; without one the wheel is built without it.

The library is bound by ctypes, so it needs no Python headers, and one serves every Python of its platform.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O2", "-shared", "-fPIC", "-ffp-contract=off")


class RankedBuildHook(BuildHookInterface):
    """Puts `libranked.so` beside `ranked.c`, in the source tree for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before hatchling collects files; version: "standard" or "editable"."""
        if self.target_name != "wheel":
            return
        source = Path(self.root, "simulator", "physics", "ranked.c")
        library = source.with_name("libranked.so")
        if not _compiled(source, library):
            if version == "editable":
                library.unlink(missing_ok=True)  # one of an older source must not answer
            self.app.display_warning("no C compiler: coupled flows will be solved by Python, which is slower")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"][str(library)] = "simulator/physics/libranked.so"


def _compiled(source: Path, library: Path) -> bool:
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
