"""Collectives are lowered as the plain second writing does it: byte by byte, on every capacity."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.collective.lowering import Lowering
from simulator.collective.transfer import Phase
from simulator.errors import InputError
from simulator.program.task import Collective
from simulator.units import to_ps
from tests.trust.exchanges import Exchanges, Members, Steps
from tests.trust.random_runs import RandomRun, random_run

Lowered = list[tuple[int, Counter[tuple]]]
"""Of each phase its latency, and what moves: bytes, weight, ranks that wait, bytes on every capacity."""


def of_phases(phases: tuple[Phase, ...]) -> Lowered:
    return [(to_ps(phase.latency_s), Counter(
        (one.size_bytes, round(one.weight, 12), frozenset(one.ranks), frozenset(one.loads)) for one in phase.transfers
    )) for phase in phases]  # fmt: skip


def of_steps(steps: Steps) -> Lowered:
    return [(to_ps(latency_s), Counter(
        (one.size, round(one.weight, 12), frozenset(one.ranks), frozenset(one.loads.items())) for one in moved
    )) for latency_s, moved in steps]  # fmt: skip


def exchanges(run: RandomRun) -> dict[tuple[Collective, Members], None]:
    """Every different collective of all ranks, but one-sided ones."""
    found: dict[tuple[Collective, Members], None] = {}
    for rank, program in enumerate(run.world.programs):
        for _, one in program.collectives():
            members = run.world.instance(one.group, rank)
            if one.kind == "send":
                found[one.as_send(), (rank, members[one.peer])] = None
            elif one.kind not in ("recv", "put", "collect"):
                found[one, members] = None
    return found


@pytest.mark.parametrize("mode", ["auto", "pairwise"])
def test_they_are_lowered_as_written_plainly(mode: str) -> None:
    met: set[tuple[str, str, bool]] = set()
    for seed in range(60):
        run = random_run(seed)
        fabric, engines, groups = run.fabric(), run.machine.collectives, run.world.groups
        lowering = Lowering(fabric, engines, mode, groups, run.world.eager)
        plain = Exchanges(fabric, engines, groups, mode == "auto")
        for one, members in exchanges(run):
            met.add((one.kind, one.algorithm, len(run.machine.fabric) > 1))
            try:
                lowered = of_phases(lowering.lower(one, members))
            except InputError:
                continue
            eager = not run.world.eager.isdisjoint(members)
            assert lowered == of_steps(plain.steps(one, members, eager)), f"seed {seed}: {one} among {members}"
    assert len(met) > 20
