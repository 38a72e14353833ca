"""Files that are there whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import IO

from simulator.observe.temporary import temporary


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[Path]:
    """Gives a temporary name in the folder of `path`, renamed to `path` at the end, removed if the block fails.

    Makes the folder. Raises OSError where that folder cannot be written; it names `path`, in whatever write it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary(target.parent, target.name) as part:
        try:
            yield part
            os.replace(part, target)
        except OSError as error:
            if error.filename in (None, str(part), part):  # a write that fails names nothing
                error.filename, error.filename2 = str(target), None
            raise


@contextmanager
def text_file(path: Path, packed: bool) -> Iterator[IO[str]]:
    """A file to write text to, gzipped (without a time stamp: the same text gives the same bytes) or plain."""
    with (path.open("wb") as raw,
          gzip.GzipFile("", "wb", compresslevel=3, fileobj=raw, mtime=0) if packed else nullcontext(raw) as binary,
          io.TextIOWrapper(binary, encoding="utf-8") as file):
        yield file
