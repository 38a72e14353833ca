"""Gathered weights with exchanges and schedules that no paper has: what they free, wait for, and what hides them."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.parallel.gathered_weights import GATHER
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from simulator.study.simulate import Result, prepare, simulate

DATA_PARALLEL = {"machine": "h800_cluster", "kernels": "sglang_2025",
                 "model": "qwen3_235b", "layout.tp": "1", "layout.dp": "8", "layout.ep": "8",
                 "batch.requests": "64",
                 "knobs.exchange": "all_to_all", "model.shapes.layers": "6"}  # fmt: skip
GATHERED = {"knobs.gathered.modules": "qkv,o"}


def scenario(**changes: str) -> Scenario:
    keys = {key.replace("__", "."): text for key, text in changes.items()}
    return load_scenario("transformer:decode").replace(DATA_PARALLEL | keys)


def run(**changes: str) -> Result:
    return simulate(scenario(**changes, **{key.replace(".", "__"): text for key, text in GATHERED.items()}))


def test_a_rank_keeps_its_share_and_the_buffers() -> None:
    whole, shared = (prepare(one).ledger.used_bytes for one in (scenario(), scenario().replace(GATHERED)))
    layer = 2 * 4096 * 128 * (64 + 2 * 4 + 64)
    assert whole - shared == pytest.approx((6 - 2) * layer * 7 / 8)


@pytest.mark.parametrize("schedule", ["one_stream", "two_batches"])
def test_every_layer_is_gathered_once_and_read_behind_it(schedule: str) -> None:
    program = prepare(scenario(knobs__schedule=schedule).replace(GATHERED)).world.programs[0]
    gathers = [task.index for task in program.tasks if task.name == GATHER]
    readers = [task for task in program.tasks if task.name == "attention.o"]
    assert len(gathers) == 6
    batches = len(readers) // 6
    for number, reader in enumerate(readers):
        assert gathers[number // batches] in reader.after
    for ahead, gather in enumerate(gathers[2:]):
        assert readers[(ahead + 1) * batches - 1].index in program.tasks[gather].after


def test_more_buffers_hide_more_of_the_gather() -> None:
    plain = simulate(scenario()).makespan_ps
    slow = run(knobs__gathered__buffers="1")
    assert slow.makespan_ps > run(knobs__gathered__buffers="4").makespan_ps > plain


def test_what_cannot_be_gathered_is_refused() -> None:
    with pytest.raises(InputError, match=r"knobs.gathered.modules has q_b: attention of qwen3_235b has qkv, o"):
        prepare(scenario(knobs__gathered__modules="q_b"))
    with pytest.raises(InputError, match="every rank has only its heads' part"):
        prepare(scenario(layout__tp="2", layout__dp="4", knobs__gathered__modules="o"))
    with pytest.raises(InputError, match=r"8 ranks do not divide into groups of 3 \(knobs.gathered.shards\)"):
        prepare(scenario(knobs__gathered__modules="o", knobs__gathered__shards="3"))
