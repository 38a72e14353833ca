"""Results are the same to the byte, whatever the hash seed, and whether steps are simulated or read from disk."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from simulator.serving.loop import Loop
from simulator.serving.record import Served
from tests.conftest import ROOT
from tests.serving.services import instances, service, sharing

SCRIPT = """
import sys
from pathlib import Path
from tests.law.serving.test_same_bytes import digest, served
one = served(Path(sys.argv[1]))
print(digest(one), one.about_steps["simulated"])
"""


def served(folder: Path | None) -> Served:
    """Prefill and decode apart, with shared prompts, preemptions, and routers that draw."""
    of = service(instances("tp=1,dp=2", tokens=320), prefill=instances(count=2),
                 front={"request_ms": 0.1, "router": "power_of_two"})  # fmt: skip
    return Loop(of, sharing(24, 2), seed=3, folder=folder).run()


def digest(one: Served) -> str:
    """Of all columns."""
    columns = {**one.times, **one.steps, "status": one.status, "emitted": one.emitted, "cached": one.cached_tokens,
               "preempted": one.preempted_ps, "preemptions": one.preemptions, "engine": one.decode_engine,
               "prefill": one.prefill_engine}  # fmt: skip
    found = sha256()
    for name, column in sorted(columns.items()):
        found.update(f"{name} {column.dtype} {column.shape}".encode() + column.tobytes())
    return found.hexdigest()


def test_processes_hash_seeds_and_kept_steps_change_no_byte(tmp_path: Path) -> None:
    printed = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        printed.append(subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, check=True,
                                      capture_output=True, text=True, cwd=ROOT).stdout.split())  # fmt: skip
    (cold, simulated), (warm, again) = printed
    assert int(simulated) > 10
    assert int(again) == 0
    here = served(None)
    assert cold == warm == digest(here)
    assert here.preemptions.any()
    assert here.cached_tokens.any()
