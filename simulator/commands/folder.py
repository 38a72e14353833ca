"""The folder that a run writes into: refused before the run if it cannot be written, never left with half a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from simulator.errors import InputError


class OutputFolder:
    """A folder to write results into. It is made when the first results are there; the folder above must exist."""

    def __init__(self, path: Path) -> None:
        """Raises InputError if `path` cannot become a folder with files in it; leaves nothing behind."""
        self.path = path.expanduser()
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"cannot write to '{path}': it is a file, not a folder")
        self._check(self.path if self.path.is_dir() else self.path.parent)

    def _check(self, nearest: Path) -> None:
        """Tries to write into the folder that exists already: permission bits alone do not tell."""
        if not nearest.is_dir():
            what = "is a file, not a folder" if nearest.exists() else "does not exist"
            raise InputError(f"cannot write to '{self.path}': '{nearest}' {what}")
        try:
            os.rmdir(tempfile.mkdtemp(prefix=".braid-", dir=nearest))
        except OSError as error:
            raise InputError(f"cannot write to '{self.path}': {error.strerror or error}") from None

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A folder to write files into; they get their final names together at the end, or not at all."""
        is_new = not self.path.exists()
        self.path.mkdir(exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".braid-", dir=self.path))
        try:
            yield staging
            for file in sorted(staging.iterdir()):
                os.replace(file, self.path / file.name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if is_new and not any(self.path.iterdir()):
                self.path.rmdir()


def write_text(path: Path, text: str) -> None:
    """Writes one small file whole or not at all, and makes its folder; InputError if it cannot be written."""
    from simulator.observe.files import whole_file

    try:
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None
