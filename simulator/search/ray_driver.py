"""What talks to Ray, in a process of its own: Ray ends the process that has lost its cluster, and writes to its stdout.

A message to it is (number, work and thing, pickled), or None at the end. Its messages are (kind, number, what): "slots"
(how many may be asked and not done; every BEAT_S, so that silence means that the cluster is lost), "done" (what is
what `run_one` gave), "ended" (the worker was lost, and why), "failed" (nothing can be run there), "refused" (there is
no such cluster) and "lost" (there was one).
"""

from __future__ import annotations

import os
import pickle
import platform
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from simulator.errors import InputError, RunError, reason_of
from simulator.study.kept import source
from simulator.study.processes import AHEAD, follow_the_parent

BEAT_S = 1.0
STORE_BYTES = 100 << 20  # of Ray's objects on a cluster that is started here: results are small
LOCAL = "local"  # as `ray.init` calls a cluster that it starts


class Message(NamedTuple):
    """One from this process; the file says which there are."""

    kind: str
    number: int = 0
    what: Any = None


def drive(pipe: Connection, address: str | None, jobs: int | None) -> None:
    """Runs what comes through a pipe on the cluster at an address, or on one that is started here for it and ends with
    it, until None comes. jobs: as many at once, of a cluster at most; None is one for each CPU that there is."""
    if hasattr(os, "setsid"):
        os.setsid()  # what Ray starts is in the group of this process, and ends with it
    follow_the_parent(_end_all)
    _hush()
    said: SimpleQueue[Message | None] = SimpleQueue()
    telling = Thread(target=_tell, args=(pipe, said), daemon=True)  # the pipe may be full: nothing else waits for it
    telling.start()
    try:
        _connect(address, jobs)
    except Exception as error:  # of whatever type Ray has for it
        said.put(Message("refused", what=_line(error)))
    else:
        try:
            _serve(pipe, said, jobs if address else None)
        except Exception as error:
            said.put(Message("lost", what=_line(error)))
    said.put(None)
    telling.join()


def _end_all() -> None:
    end_group(os.getpid())
    os._exit(1)


def end_group(leader: int) -> None:
    """Ends a `drive` and all that it has started; Ray's own processes would stay for minutes."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _hush() -> None:
    """Ray keeps logs of its own; what it writes to stdout and stderr goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(nowhere, stream.fileno())


def _tell(pipe: Connection, said: SimpleQueue[Message | None]) -> None:
    with suppress(OSError):  # the other end is gone, and follow_the_parent ends this process, too
        while (message := said.get()) is not None:
            pipe.send(message)


def _connect(address: str | None, jobs: int | None) -> None:
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray would send to its makers how it is used
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        os.environ.update(_environment(os.environ))
        ray.init(LOCAL, num_cpus=jobs, include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
    else:
        _knock(address)
        ray.init(address, runtime_env={"env_vars": _environment(os.environ)}, **quiet)


def _knock(address: str) -> None:
    """OSError: nothing listens there; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
            return


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """What workers need in order to be as this process is: this Braid first of all, and what it is told."""
    folders = [str(Path(__file__).resolve().parents[2]), *filter(None, [ours.get("PYTHONPATH")])]
    told = {key: text for key, text in ours.items() if key.startswith("BRAID_")}
    return told | {"PYTHONPATH": os.pathsep.join(folders)}


def _serve(pipe: Connection, said: SimpleQueue[Message | None], most: int | None) -> None:
    import ray

    remote = ray.remote(num_cpus=1, max_retries=0)(run_one)  # those who asked count how often, and say for what
    beat_s = -BEAT_S
    while True:
        if time.monotonic() - beat_s >= BEAT_S:
            slots = AHEAD * max(int(ray.cluster_resources().get("CPU", 0)), 1)
            said.put(Message("slots", what=slots if most is None else min(most, slots)))
            beat_s = time.monotonic()
        if pipe.poll(BEAT_S):
            asked = pipe.recv()
            if asked is None:
                return
            number, pickled = asked
            reference = remote.remote(pickled, source(), os.getcwd())
            reference.future().add_done_callback(partial(_done, said, number))


def _done(said: SimpleQueue[Message | None], number: int, future: Any) -> None:
    """Called by a thread of Ray's."""
    from ray.exceptions import RaySystemError, RayTaskError

    error = future.exception()
    if error is None:
        said.put(Message("done", number, future.result()))
    elif isinstance(error, RaySystemError | ConnectionError):
        said.put(Message("lost", what=_line(error)))
    else:  # of `work` nothing is raised here: of a RayTaskError, Braid itself cannot be imported there
        said.put(Message("failed" if isinstance(error, RayTaskError) else "ended", number, _line(error)))


def _line(error: BaseException) -> str:
    """What an error of Ray's says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")


def run_one(pickled: bytes, wanted: str, folder: str) -> bytes:
    """In a worker: the result of a `work`, or the error that it raised, pickled. wanted: the source of Braid there
    must be here, too; folder: becomes the process's own, where there is such a one."""
    result, raised = None, None
    try:
        if source() != wanted:
            raise InputError(f"'{Path(__file__).resolve().parents[1]}' on {platform.node()} is not the Braid that"
                             " asks: install the same one there")
        with suppress(OSError):
            os.chdir(folder)
        work, one = pickle.loads(pickled)
        result = work(one)
    except Exception as error:  # goes on where it was asked for
        error.add_note(f"in a worker of Ray on {platform.node()}:\n{traceback.format_exc()}")
        raised = error
    try:
        answer = pickle.dumps((result, raised))
        pickle.loads(answer)  # some errors are written, and cannot be read
    except Exception as error:
        why = raised or error
        answer = pickle.dumps((None, RunError(reason_of(why))))
    return answer
