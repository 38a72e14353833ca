"""The same work on many things, in processes of their own; Ctrl-C ends them all, and so does the end of the parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import TypeVar

W = TypeVar("W")
T = TypeVar("T")
Tell = Callable[[float], None]  # the share done


def in_processes(work: Callable[[W], T], those: Sequence[W], jobs: int, tell: Tell | None) -> list[T]:
    """`work` of each of those, in order; in this process if jobs is 1."""
    done = dict(as_done(work, those, jobs, tell))
    return [done[number] for number in range(len(those))]


def as_done(work: Callable[[W], T], those: Sequence[W], jobs: int, tell: Tell | None) -> Iterator[tuple[int, T]]:
    """As `in_processes`: the place of each of those and its `work`, as soon as it is done."""
    for count, (number, result) in enumerate(_as_done(work, those, jobs), 1):
        yield number, result
        if tell is not None:
            tell(count / len(those))


def _as_done(work: Callable[[W], T], those: Sequence[W], jobs: int) -> Iterator[tuple[int, T]]:
    if jobs == 1:
        for number, one in enumerate(those):
            yield number, work(one)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_follow_the_parent) as pool:
        with _ctrl_c_held_back():  # also from the processes that start here
            futures = {pool.submit(work, one): number for number, one in enumerate(those)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except (KeyboardInterrupt, GeneratorExit):  # the pool then finds its processes gone and ends
            for child in active_children():
                child.terminate()
            raise


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """SIGINT waits until the end of it; a process that starts meanwhile never gets it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow_the_parent() -> None:
    """Leaves Ctrl-C to the parent process, and ends this one when the parent has ended, in whatever way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=follow, daemon=True).start()
