"""A measured trace from a file or a folder of files, one per rank, whatever of the known formats it is in.

Which format it is says its content, not its name.
"""

from __future__ import annotations

import csv
import gc
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulator.observe.measured import kineto, msprof, nsight
from simulator.observe.measured.events import parsed
from simulator.observe.measured.table import Measured, Rows, check, table

FORMS = (f"JSON of torch.profiler (traceEvents with events of the category {' or '.join(sorted(kineto.DEVICE_WORK))}), "
         f'an Ascend trace_view.json (a process named "{msprof.HARDWARE}"), a kernel_details.csv (columns '
         f"{', '.join(msprof.NEEDED)}), or SQLite of Nsight Systems (table {nsight.KERNELS})")
SUFFIXES = (".json", ".json.gz", ".csv", ".sqlite")
MOST_BYTES = 4 << 30
"""Of a trace, unpacked."""
MOST_TIMES, FREE_BYTES = 200, 64 << 20
"""How many times larger than its gzip a trace may be beyond so many bytes: profilers' are 10 to 40 times."""
_CHUNK_BYTES = 16 << 20
_GZIP, _JSON = b"\x1f\x8b", (b"{", b"[")


def read_measured(path: Path) -> Measured:
    """The trace in a file, or of all ranks whose files a folder has.

    Raises ValueError, which says of which file what is wrong with it; OSError where it cannot be read.
    """
    form, rows = _of_folder(path) if path.is_dir() else _of_file(path)
    return Measured(str(path), form, table(path.name, rows), rows.notes)


def _of_folder(folder: Path) -> tuple[str, Rows]:
    """The files of the first format that there is, a rank each."""
    files = [one for one in sorted(folder.iterdir()) if one.is_file() and one.name.endswith(SUFFIXES)]
    files = files or sorted(folder.glob("**/ASCEND_PROFILER_OUTPUT/trace_view.json"))
    found: dict[str, list[tuple[Path, Rows]]] = {}
    mistakes = []
    for file in files:
        try:
            form, rows = _of_file(file)
            found.setdefault(form, []).append((file, rows))
        except ValueError as error:
            mistakes.append(str(error))
    if not found:
        why = f": {mistakes[0]}" if mistakes else f"; it has no file {', '.join(SUFFIXES)}"
        raise ValueError(f"'{folder}' has neither a run of Braid (`run --out` writes one) nor a measured trace{why}")
    form = next(one for one in (kineto.FORM, msprof.TIMELINE, msprof.TABLE, nsight.FORM) if one in found)
    return form, _together(found[form])


def _together(parts: list[tuple[Path, Rows]]) -> Rows:
    """Rows of several files as one; where files do not say whose they are, their ranks are counted."""
    whole, owners = Rows(), dict[int, Path]()
    for number, (file, rows) in enumerate(parts):
        if len(parts) > 1 and len(set(rows.rank)) == 1 and not rows.says_rank:
            rows.rank = [number] * len(rows)
        for rank in sorted(set(rows.rank)):
            if rank in owners:
                raise ValueError(f"'{owners[rank]}' and '{file}' are both of rank {rank}: give one of them")
            owners[rank] = file
        whole.extend(rows)
    if len(parts) > 1 and not all(rows.says_rank for _, rows in parts):
        whole.notes.append("files are ranks in order of their names")
    return whole


def _of_file(path: Path) -> tuple[str, Rows]:
    """The format and the rows of a file; ValueError with its name."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(nsight.MAGIC))
        form, rows = (nsight.FORM, nsight.rows_of(path)) if begin == nsight.MAGIC else _of_text(path, begin)
        check(rows)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"'{path}': {error}") from None
    except KeyError as error:
        raise ValueError(f"'{path}': an entry of it has no {error}") from None
    except (TypeError, AttributeError, ArithmeticError) as error:
        text = f"an entry of it is not as its format has it: {type(error).__name__}: {error}"
        raise ValueError(f"'{path}': {text}") from None
    if not len(rows):
        raise ValueError(f"'{path}' is {form} without a kernel: was the device traced?")
    return form, rows


def _of_text(path: Path, begin: bytes) -> tuple[str, Rows]:
    try:
        text = _whole(path, packed=begin.startswith(_GZIP))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"it is no whole gzip: {error}") from None
    if text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_JSON):
        with _uncollected():
            return _of_events(text)
    lines = text.decode("utf-8", errors="replace").splitlines()
    if lines and msprof.is_table(next(csv.reader(lines[:1]))):
        return msprof.TABLE, msprof.table_rows(lines)
    raise ValueError(f"it is no trace that is known; known are {FORMS}")


def _whole(path: Path, packed: bool) -> bytes:
    """The bytes of a file, unpacked; ValueError where they are more than any trace has."""
    size, most = path.stat().st_size, MOST_BYTES
    if packed:
        most = min(MOST_BYTES, max(FREE_BYTES, MOST_TIMES * size))
    pieces, total = [], 0
    with gzip.open(path) if packed else path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            pieces.append(piece)
            total += len(piece)
            if total > most:
                raise ValueError(f"its {size:,} bytes are more than {most:,} when unpacked, which no trace is" if packed
                                 else f"it has more than {most:,} bytes, which is the most that is read")
    return b"".join(pieces)


def _of_events(text: bytes) -> tuple[str, Rows]:
    around, events = parsed(text)
    if msprof.is_msprof(events):
        return msprof.TIMELINE, msprof.rows_of(events)
    if kineto.is_kineto(events):
        return kineto.FORM, kineto.rows_of(around, events)
    raise ValueError(f"it is JSON of a trace in which no device works; known are {FORMS}")


@contextmanager
def _uncollected() -> Iterator[None]:
    """Millions of objects are made that all stay: looking for garbage among them takes longer than making them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
