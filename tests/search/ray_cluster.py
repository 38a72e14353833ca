"""A Ray cluster of several raylets on this machine, in a process of its own, so that it can be killed as a whole."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.commands.processes import environment

UP = "up: "


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
    return port


@contextmanager
def cluster(port: int, raylets: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address and its process, in whose group all of its processes are but the workers; it is killed at the end."""
    words = ["-m", "tests.search.ray_cluster", str(port), str(raylets)]
    with subprocess.Popen([sys.executable, *words], env=environment(RAY_USAGE_STATS_ENABLED="0"), text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          start_new_session=True) as running:  # fmt: skip
        assert running.stdout is not None
        try:
            address = next(line.removeprefix(UP).strip() for line in running.stdout if line.startswith(UP))
            yield address, running
        finally:
            killed(running)


def killed(running: subprocess.Popen[str]) -> None:
    """Head and raylets, all at once."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def alive(process: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def main(port: int, raylets: int) -> None:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False,
                                                         "gcs_server_port": port})  # fmt: skip
    for _ in range(raylets - 1):
        made.add_node(num_cpus=1)
    print(UP + made.address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
