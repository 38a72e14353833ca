"""Where work is done: in this process, in processes beside it, or on a Ray cluster.

Each executor takes things as late as it can, and gives each thing with its result as soon as that is done, in no order.
None among the things says that there is none until one of those that were taken is done.
What `work` raises is raised here. The end of the iterator, of whatever kind, ends what the executor has started.
`work` is a function of a module, or a `functools.partial` of one; things and results can be pickled and are small.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from simulator.errors import InputError, RunError
from simulator.search.ray_driver import Message, drive, end_group
from simulator.study.processes import ctrl_c_held_back, processes, serial

__all__ = ["on_ray", "processes", "serial"]

W = TypeVar("W")
T = TypeVar("T")
TRIES = 4  # of a thing whose worker is lost, and of a cluster that is lost before it gives a result
START_S = 60.0  # for a cluster to say that it is there
SILENT_S = 15.0  # a cluster that says nothing for so long is lost
RETURN_S = 90.0  # for a cluster that is lost to be there again


def on_ray(work: Callable[[W], T], those: Iterable[W | None], address: str | None, jobs: int | None,
           warn: Callable[[str], None]) -> Iterator[tuple[W, T]]:
    """Each of those and its `work`, in workers of the Ray cluster at `address` ("host:port", "auto", "ray://...");
    None starts one on this machine, of `jobs` CPUs. jobs: of a cluster, as many at once at most; None is all CPUs.

    What a killed worker was at is done again, TRIES times in all; a cluster that is lost is waited for, RETURN_S at
    most, and asked again for all that is not done: `warn` is told either in one line. InputError: Ray is not installed,
    there is no such cluster, or a worker has another Braid. RunError: a thing ends each of its workers, or the cluster
    does not come back.
    """
    if find_spec("ray") is None:
        raise InputError("Ray is not installed, and it is what this executor needs: pip install 'braid[search]'")
    return _through_losses(_Asked(work, those, warn), address, jobs)


class _Lost(Exception):  # noqa: N818
    """The cluster does not answer, and why. there: it did before."""

    def __init__(self, why: str, there: bool) -> None:
        super().__init__(why)
        self.there = there


class _Asked(Generic[W, T]):
    """What was taken from those and is not done (`left`), by number."""

    def __init__(self, work: Callable[[W], T], those: Iterable[W | None], warn: Callable[[str], None]) -> None:
        self.warn, self.left = warn, dict[int, W]()
        self._work, self._those, self._lost, self._given = work, enumerate(those), Counter[int](), 0

    def take(self) -> int | None:
        """The number of one more; None where there is none, or none yet."""
        number, one = next(self._those, (0, None))
        if one is None:
            return None
        self.left[number] = one
        return number

    def send(self, pipe: Connection, number: int) -> None:
        """Ask for it, for the first time or again."""
        pickled = pickle.dumps((self._work, self.left[number]))
        try:
            pipe.send((number, pickled))
        except OSError:
            raise _Lost("its driver ended", there=True) from None

    def lost(self, number: int, why: str) -> None:
        """Its worker is, for the first time or again."""
        self._lost[number] += 1
        what = str(self.left[number])[:200]
        if self._lost[number] == TRIES:
            raise RunError(f"{what}: {TRIES} workers of Ray ended in the middle of it, the last one so: {why}")
        self.warn(f"a worker of Ray ended in the middle of its work, which is done again: {what}: {why}")

    def cluster_lost(self) -> bool:
        """Whether it gave results before; from here on, its workers are others."""
        had, self._given = self._given > 0, 0
        self._lost.clear()
        return had

    def done(self, number: int, pickled: bytes) -> tuple[W, T]:
        """The thing and its result."""
        result, raised = pickle.loads(pickled)
        if raised is not None:
            raise raised
        self._given += 1
        return self.left.pop(number), result


def _through_losses(asked: _Asked[W, T], address: str | None, jobs: int | None) -> Iterator[tuple[W, T]]:
    """Connects again and again, until all is done."""
    name = f"the Ray cluster at {address}" if address else "the Ray cluster that was started here"
    asked.take()
    losses, lost_s = 0, None
    while asked.left:
        try:
            with _driver(address, jobs) as pipe:
                yield from _served(asked, pipe)
        except _Lost as lost:
            if not (losses or lost.there):
                raise _no_cluster(address, str(lost)) from None
            if lost.there:
                losses, lost_s = (1 if asked.cluster_lost() else losses + 1), time.monotonic()
                asked.warn(f"{name} was lost ({lost}): {len(asked.left)} layouts are asked of it again")
            if losses == TRIES or time.monotonic() - (lost_s or 0.0) > RETURN_S:
                raise RunError(f"{name} was lost for good: {lost}; what was done until then is kept") from None
            time.sleep(1.0)


def _no_cluster(address: str | None, why: str) -> InputError:
    if address is None:
        return InputError(f"Ray cannot start here: {why}; `--executor processes` needs no Ray")
    return InputError(f"no Ray cluster answers at '{address}': {why}; `ray start --head` starts one and says its"
                      " address, and there must be a node of it on this machine, or the address begins with ray://")


def _served(asked: _Asked[W, T], pipe: Connection) -> Iterator[tuple[W, T]]:
    """Of one connection, until all is done; _Lost: it is no more."""
    slots = 0
    while asked.left:
        kind, number, what = _next(pipe, slots > 0)
        if kind == "slots":
            for again in asked.left if not slots else ():
                asked.send(pipe, again)
            slots = what
        elif kind == "done":
            yield asked.done(number, what)
        elif kind == "ended":
            asked.lost(number, what)
            asked.send(pipe, number)
        elif kind == "failed":
            raise RunError(f"a worker of Ray cannot run Braid: {what}")
        else:
            raise _Lost(what, slots > 0)
        while len(asked.left) < slots and (new := asked.take()) is not None:
            asked.send(pipe, new)


def _next(pipe: Connection, there: bool) -> Message:
    """What the driver says; there: it has said something before."""
    wait_s = SILENT_S if there else START_S
    try:
        if pipe.poll(wait_s):
            message: Message = pipe.recv()
            return message
    except (EOFError, OSError):
        raise _Lost("its driver ended", there) from None
    raise _Lost(f"it said nothing for {wait_s:.0f} s", there)


@contextmanager
def _driver(address: str | None, jobs: int | None) -> Iterator[Connection]:
    """A pipe to a process that has a cluster, or starts one; it ends with this, and so does all that it started."""
    spawn = get_context("spawn")
    pipe, other_end = spawn.Pipe()
    driver = spawn.Process(target=drive, args=(other_end, address, jobs), daemon=True)
    try:
        with ctrl_c_held_back():  # also from the process that starts here
            driver.start()
        other_end.close()
        yield pipe
    finally:
        if driver.pid is not None:
            end_group(driver.pid)
            driver.kill()  # before it has a group
            driver.join()
        pipe.close()
