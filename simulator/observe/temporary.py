"""Names of what is not whole yet, and locks: both are known as such, and as left over once their process has ended.

A temporary name begins with MARK and eight hexadecimal digits. What has it is locked (flock) by the process that made
it, for as long as that lives, however it ends: what can be locked is left over, and the next one that writes to the
folder takes it away. What a killed process had whole, and had begun to move to its final names, is moved to the end
instead. Where there are no such locks, as on some network file systems, nothing is taken away and nothing is refused.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

MARK = ".braid-"
LOCK = f"{MARK}lock"  # of a folder
_OURS = re.compile(re.escape(MARK) + r"[0-9a-f]{8}-")  # what else begins with MARK is its owner's
WHOLE = "-whole"  # how the name of a folder ends whose files are all whole

Make = Callable[[Path], int]


def a_file(path: Path) -> int:
    """Makes an empty file; its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def a_folder(path: Path) -> int:
    """Makes a folder; its descriptor."""
    path.mkdir()
    return os.open(path, os.O_RDONLY)


@contextmanager
def temporary(folder: Path, name: str, make: Make = a_file) -> Iterator[Path]:
    """The path of a new file, or folder, in a folder; what is still there at the end is removed. What others have left
    there is, too. Raises OSError where nothing can be made."""
    settle(folder)
    path, held = _made(folder, os.fsencode(name)[:100].decode("utf-8", "ignore"), make)
    if not _can_lock():
        os.close(held)
    try:
        yield path
    finally:
        _remove(path)
        if _can_lock():
            os.close(held)


def _made(folder: Path, name: str, make: Make) -> tuple[Path, int]:
    while True:
        path = folder / f"{MARK}{token_hex(4)}-{name}"
        held = make(path)
        if _lock(held) is not False and _is_at(held, path):  # else it was taken for left over before it was locked
            return path, held
        os.close(held)


@contextmanager
def together(folder: Path) -> Iterator[Path]:
    """A folder to write files into, each whole; they get their final names in `folder` together at the end, or not at
    all. A process that is killed while they get them is helped by the next `settle`."""
    with temporary(folder, "staged", a_folder) as staged:
        yield staged
        whole = staged.with_name(staged.name + WHOLE)
        os.rename(staged, whole)
        _move(whole, folder)  # what stops this, Ctrl-C too, leaves the rest to the next `settle`
        _remove(whole)


def _move(whole: Path, folder: Path) -> None:
    for one in sorted(whole.iterdir()):
        if one.name.startswith(MARK):
            continue
        there = folder / one.name
        if there.is_dir():  # of an earlier run: a folder is replaced as a whole
            os.replace(there, whole / f"{MARK}{one.name}")
        os.replace(one, there)


def settle(folder: Path) -> None:
    """Ends what processes have begun in a folder and can end no more: what was whole gets its names, all else goes.
    Nothing that a living process is at, no lock; nothing at all where the folder cannot be written to."""
    with suppress(OSError):
        for entry in sorted(one.name for one in os.scandir(folder) if _OURS.match(one.name)):
            with suppress(OSError):
                _settle(folder / entry, folder)


def _settle(left: Path, folder: Path) -> None:
    held = os.open(left, os.O_RDONLY)
    try:
        if _lock(held) and _is_at(held, left):
            if left.name.endswith(WHOLE) and left.is_dir():
                _move(left, folder)
            _remove(left)
    finally:
        os.close(held)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def lock_of(path: Path) -> tuple[int, str]:
    """A file that this process alone has from now on, until it closes the descriptor or ends; why it cannot be locked
    here, or "". Its text names the process. BlockingIOError, with that text: another process has it."""
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        got = _lock(held)
        if got is False:
            owner = os.pread(held, 100, 0).decode("utf-8", "replace").strip() or "another process"
            os.close(held)
            raise BlockingIOError(errno.EAGAIN, owner, str(path))
        if _is_at(held, path):
            break
        os.close(held)
    os.ftruncate(held, 0)
    os.pwrite(held, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
    return held, "" if got else "there are no locks"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder for this process alone; it is made, and removed if nothing is in it at the end. BlockingIOError, with
    the name of who has it: another process has it. OSError where it cannot be written to."""
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        lock, _ = lock_of(folder / LOCK)
        try:
            settle(folder)
            yield
        finally:
            _remove(folder / LOCK)
            os.close(lock)
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _lock(descriptor: int) -> bool | None:
    """Whether this descriptor has the lock now; None: there are no locks here."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _can_lock() -> bool:
    """Whether files stay open that are renamed."""
    return os.name == "posix"


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to what is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
