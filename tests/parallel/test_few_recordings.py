"""Ranks that launch the same kernels share a recording, however their batches and rows differ."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.model.micro_batch import MicroBatch
from simulator.study.library import load_scenario
from simulator.study.simulate import prepare, simulate

MOE = {"machine": "dgx_h200", "kernels": "vllm", "model": "qwen3_30b_a3b", "model.shapes.layers": "6", "cards": "8",
       "layout.tp": "1", "layout.dp": "8", "layout.ep": "8", "knobs.exchange": "all_gather"}  # fmt: skip


@pytest.mark.parametrize(("requests", "recordings"), [
    ([40] * 8, 1),
    ([41, *[40] * 7], 2),  # one group has more: its rank, and all others
    ([41, 40] * 4, 2),
    ([1] + [0] * 7, 8),  # 8 rows of a token: some places of a layer have none
], ids=str)  # fmt: skip
def test_there_are_as_many_recordings_as_kinds_of_ranks(requests: list[int], recordings: int) -> None:
    scenario = load_scenario("transformer:decode").replace(MOE)
    batch: Any = scenario.batch
    groups = [MicroBatch(0, ((1, 1000),) * count, padded=0 if count else 1) for count in requests]
    uneven = scenario.variant(batch=batch.working_on(groups))
    found = {id(program.items) for program in prepare(uneven).world.programs}
    assert len(found) == recordings
    assert simulate(uneven).makespan_ps == simulate(uneven, ranks="all").makespan_ps
