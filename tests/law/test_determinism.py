"""The same scenario and seed give the same bytes: in another process, with another hash seed, folded, unwatched."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from simulator.collective.lowering import Lowering
from simulator.errors import InputError
from simulator.observe.arrow import write_parquet
from simulator.observe.columns import select
from simulator.observe.timeline import ROWS_PER_GROUP, Unrecorded
from simulator.replay.replay import Replay, rate_of
from simulator.replay.tape import Compiler
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from simulator.study.simulate import prepare, simulate
from simulator.symmetry.roles import find_roles, unfolded

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ("a3_prefill:dp_uneven", "contention:staging")
LIVE = "pplx:efa_ep16"
ACROSS = [*((scenario, "roles") for scenario in SCENARIOS), ("contention:staging", "all"), (LIVE, "roles"),
          ("cm384_decode:exchange_push", "roles")]  # fmt: skip
WRITE = """
import sys
from simulator.study.simulate import simulate
from tests.law.test_determinism import ACROSS, few_layers
for number, (scenario, ranks) in enumerate(ACROSS):
    simulate(few_layers(scenario), ranks=ranks).timeline.write_parquet(f"{sys.argv[1]}/{number}")
"""


def few_layers(name: str) -> Scenario:
    """A scenario; of prefill three dense layers and three with experts."""
    scenario = load_scenario(name)
    return scenario.replace({"model.shapes.layers": "6"}) if name.startswith("a3_prefill") else scenario


class Table:
    """Keeps the times of every task, as `Run.times` has them."""

    def __init__(self) -> None:
        self.times: dict[tuple[int, int], tuple[int, ...]] = {}

    def record(self, rank: int, task: int, *row: object) -> None:
        """One task."""
        self.times[rank, task] = row[:5]  # type: ignore[assignment]

    def found(self, *_: object) -> None:
        """Times are all that is kept."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The Parquet files of two processes, each with a hash seed of its own."""
    written = [tmp_path_factory.mktemp(hash_seed) for hash_seed in ("1", "4242")]
    for hash_seed, folder in zip(("1", "4242"), written, strict=True):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", WRITE, str(folder)], env=environment, check=True, cwd=ROOT)
    return written


@pytest.mark.parametrize("number", range(len(ACROSS)), ids=[f"{name}-{ranks}" for name, ranks in ACROSS])
def test_another_process_with_another_hash_seed_writes_the_same_bytes(number: int, folders: list[Path]) -> None:
    first, second = (hashlib.sha256((folder / str(number)).read_bytes()).hexdigest() for folder in folders)
    assert first == second


def test_somebody_who_is_told_of_progress_changes_no_byte(tmp_path: Path) -> None:
    told: list[float] = []
    for name, progress in (("alone", None), ("told", told.append)):
        result = simulate(load_scenario("contention:staging"), progress=progress)
        result.timeline.write_parquet(tmp_path / name)
    assert told[-1] == 1.0
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "told").read_bytes()


@pytest.mark.parametrize("scenario", ["a3_prefill:dp", "contention:staging"])
def test_leaders_have_the_rows_of_the_unfolded_run(scenario: str) -> None:
    folded = simulate(few_layers(scenario), ranks="roles").columns
    whole = simulate(few_layers(scenario), ranks="all").columns
    rows = np.isin(whole["rank"], np.unique(folded["rank"]))
    for name, column in folded.items():
        if name != "multiplicity":
            assert (whole[name][rows] == column).all(), name
    assert folded["multiplicity"].sum() == len(whole["rank"])


@pytest.mark.parametrize("scenario", ["a3_prefill:dp", "a3_prefill:dp_long_prompt", "contention:staging"])
def test_a_folded_run_written_out_for_every_rank_is_the_unfolded_file(scenario: str, tmp_path: Path) -> None:
    chosen = few_layers(scenario)
    ready = prepare(chosen)
    roles = find_roles(ready.world, Lowering(ready.fabric, ready.machine.collectives, groups=ready.world.groups),
                       partial(rate_of, machine=ready.machine, fabric=ready.fabric))
    folded = simulate(chosen, ranks="roles").columns
    first = dict(zip(*np.unique(folded["rank"], return_index=True), strict=True))
    count = dict(zip(*np.unique(folded["rank"], return_counts=True), strict=True))
    rows = np.concatenate([np.arange(first[leader], first[leader] + count[leader]) for leader in roles.leader])
    whole = {name: column[rows] for name, column in folded.items()}
    whole["rank"] = np.repeat(np.arange(len(roles.leader), dtype=np.int32), [count[one] for one in roles.leader])
    whole["multiplicity"] = np.ones(len(rows), dtype=np.int32)
    groups = (select(whole, np.arange(at, min(at + ROWS_PER_GROUP, len(rows))))
              for at in range(0, len(rows), ROWS_PER_GROUP))  # fmt: skip
    write_parquet(groups, tmp_path / "folded.parquet")
    simulate(chosen, ranks="all").timeline.write_parquet(tmp_path / "whole.parquet")
    assert len(roles.leaders) < ready.world.ranks
    assert (tmp_path / "folded.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize("scenario", [*SCENARIOS, LIVE])
def test_a_run_without_recording_has_the_same_makespan_and_metrics(scenario: str) -> None:
    kept, forgotten = simulate(few_layers(scenario)), simulate(few_layers(scenario), record=False)
    assert forgotten.makespan_ps == kept.makespan_ps
    assert forgotten.metrics.items() <= kept.metrics.items()
    assert len(forgotten.timeline) == 0
    with pytest.raises(InputError, match="without recording"):
        _ = forgotten.columns


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_that_nobody_watches_lasts_as_long(scenario: str) -> None:
    ready = prepare(few_layers(scenario))
    lowering = Lowering(ready.fabric, ready.machine.collectives, groups=ready.world.groups)
    compiler = Compiler(ready.machine, ready.scenario.kernels)
    silent = Replay(ready.world, compiler, ready.fabric, lowering, unfolded(ready.world), Unrecorded())
    assert silent.run() == simulate(few_layers(scenario), ranks="all").makespan_ps
