"""AllGather and ReduceScatter around rings, by hand on nodes of 8 H800."""

from __future__ import annotations

import pytest

from simulator.collective.lowering import Lowering
from simulator.collective.transfer import Phase
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.program.task import Collective
from simulator.spec.load import load_machine

MB = 10**6
H800 = load_machine("h800_cluster")


def phases(kind: str, ranks: int, algorithm: str = "ring") -> tuple[Phase, ...]:
    collective = Collective(kind, "world", "nccl", MB, algorithm=algorithm)
    return Lowering(Fabric(H800, ranks), H800.collectives).lower(collective, tuple(range(ranks)))


def on_links(phase: Phase, level: int) -> set[int]:
    """Bytes on each link of a level of the fabric (0: in the node)."""
    fabric = Fabric(H800, 32)
    edges = fabric.route(0, 1 if level == 0 else 8).edges
    (transfer,) = phase.transfers
    loads = dict(transfer.loads)
    return {loads[("link", *edge)] for edge in edges}


def test_the_worked_example() -> None:
    (phase,) = phases("all_gather", 32)
    (transfer,) = phase.transfers
    assert transfer.size_bytes == 31 * MB
    assert on_links(phase, 1) == {31 * MB // 8}
    assert on_links(phase, 0) == {31 * MB * 7 // 8}


def test_a_reduce_scatter_moves_as_much() -> None:
    assert phases("reduce_scatter", 32)[0].transfers[0].size_bytes == 31 * MB


def test_an_all_reduce_goes_around_twice() -> None:
    scatter, gather = phases("all_reduce", 32)
    assert scatter.transfers[0].size_bytes == gather.transfers[0].size_bytes == 31 * (MB // 32)


def test_in_one_node_it_is_what_goes_straight() -> None:
    (around,), (straight,) = phases("all_gather", 8), phases("all_gather", 8, "direct")
    assert around.latency_s == straight.latency_s
    assert dict(around.transfers[0].loads) == dict(straight.transfers[0].loads)


def test_nodes_with_different_numbers_of_members_are_refused() -> None:
    lowering = Lowering(Fabric(H800, 16), H800.collectives)
    with pytest.raises(InputError, match="as many members in every node"):
        lowering.lower(Collective("all_gather", "world", "nccl", MB, algorithm="ring"), tuple(range(12)))
