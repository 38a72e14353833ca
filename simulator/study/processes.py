"""The same work on many things, in processes of their own; Ctrl-C ends them all, and so does the end of the parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as first_of
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import TypeVar

from simulator.errors import RunError

W = TypeVar("W")
T = TypeVar("T")
Tell = Callable[[float], None]  # the share done
AHEAD = 2  # things per process that are taken and not done: one that it is at, and one for when that is done


def in_processes(work: Callable[[W], T], those: Sequence[W], jobs: int, tell: Tell | None) -> list[T]:
    """`work` of each of those, in order; in this process if jobs is 1."""
    done = dict(as_done(work, those, jobs, tell))
    return [done[number] for number in range(len(those))]


def as_done(work: Callable[[W], T], those: Sequence[W], jobs: int, tell: Tell | None) -> Iterator[tuple[int, T]]:
    """As `in_processes`: the place of each of those and its `work`, as soon as it is done."""
    numbered, of_one = enumerate(those), partial(_of_numbered, work)
    found = serial(of_one, numbered) if jobs == 1 else processes(of_one, numbered, jobs)
    for count, ((number, _), result) in enumerate(found, 1):
        yield number, result
        if tell is not None:
            tell(count / len(those))


def _of_numbered(work: Callable[[W], T], numbered: tuple[int, W]) -> T:
    return work(numbered[1])


def serial(work: Callable[[W], T], those: Iterable[W | None]) -> Iterator[tuple[W, T]]:
    """Each of those and its `work`, in this process; the next is taken from those when this one has been used. None
    among those is none of them."""
    for one in those:
        if one is not None:
            yield one, work(one)


def processes(work: Callable[[W], T], those: Iterable[W | None], jobs: int) -> Iterator[tuple[W, T]]:
    """Each of those and its `work` in one of `jobs` processes, as soon as it is done: not in their order. They are
    taken from those as late as can be: no more than 2 x jobs are taken and not done. None among those: there is none
    until one that was taken is done. What `work` raises is raised here and ends the processes, as the end of the
    iterator does. RunError: a process was killed."""
    taken = iter(those)
    running: dict[Future[T], W] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=follow_the_parent) as pool:
        try:
            while True:
                while len(running) < AHEAD * jobs and (one := next(taken, None)) is not None:
                    with ctrl_c_held_back():  # also from the processes that start here
                        running[pool.submit(work, one)] = one
                if not running:
                    return
                future = next(iter(first_of(running, return_when=FIRST_COMPLETED).done))
                yield running.pop(future), future.result()
        except BaseException as error:  # the pool then finds its processes gone and ends
            for child in active_children():
                child.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RunError(f"one of {jobs} processes was killed in the middle of its work: by another program, or"
                               " by the system, for want of memory; fewer processes (--jobs) need less") from None
            raise


@contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """SIGINT waits until the end of it; a process that starts meanwhile never gets it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end() -> None:
    os._exit(1)


def follow_the_parent(end: Callable[[], None] = _end) -> None:
    """Leaves Ctrl-C to the parent process, and ends this one when the parent has ended, in whatever way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        end()

    Thread(target=follow, daemon=True).start()
