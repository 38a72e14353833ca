"""AllGather and ReduceScatter pipelined over nodes, by hand on Atlas A2's links."""

from __future__ import annotations

import pytest

from simulator.collective.lowering import Lowering
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.physics.flows import Capacity, Flow
from simulator.program.task import Collective
from simulator.replay.replay import rate_of
from simulator.spec.load import load_machine, override

FREE = {f"collectives.sdma.{name}": "0" for name in ("transfer_bytes", "copy_bytes")}
FULL = {
    **FREE,
    "collectives.sdma.startup": "0 us",
    "collectives.sdma.ladder.default.0.rate": "196 GB/s",
    "collectives.sdma.ladder.default.1.rate": "196 GB/s",
    "collectives.sdma.ladder.send.0.rate": "25 GB/s",
}
MB = 10**6


def phases_us(kind: str, nodes: int, **changes: str) -> list[float]:
    """Duration of every phase of an exchange of shards of 1 MB, without latencies."""
    machine = override(load_machine("atlas_a2"), {**FULL, **changes})
    fabric = Fabric(machine, 8 * nodes)
    collective = Collective(kind, "ep", "sdma", MB, algorithm="hierarchical")
    durations = []
    for phase in Lowering(fabric, machine.collectives).lower(collective, tuple(range(8 * nodes))):
        solos = []
        for transfer in phase.transfers:
            loads = [(Capacity(str(key), rate_of(key, machine, fabric)), load / transfer.size_bytes)
                     for key, load in transfer.loads if load]  # fmt: skip
            solos.append(Flow(transfer.size_bytes, loads).solo_s() * 1e6)
        durations.append(max(solos))
    return durations


def test_the_worked_example() -> None:
    assert phases_us("all_gather", 4) == pytest.approx([40, 40, 40, 1e6 / 28e3], rel=1e-6)


def test_links_inside_at_half_their_rate_hide_those_across() -> None:
    half = phases_us("all_gather", 4, **{"fabric.node.link_rate": "14 GB/s"})
    assert half == pytest.approx([1e6 / 14e3] * 4, rel=1e-6)


def test_a_reduce_scatter_is_the_all_gather_backwards() -> None:
    assert phases_us("reduce_scatter", 4) == phases_us("all_gather", 4)[::-1]


def test_every_rank_sends_as_many_bytes_as_directly() -> None:
    machine = override(load_machine("atlas_a2"), FULL)
    fabric = Fabric(machine, 32)
    lower = Lowering(fabric, machine.collectives).lower
    sent = {}
    for algorithm in ("direct", "hierarchical"):
        phases = lower(Collective("all_gather", "ep", "sdma", MB, algorithm=algorithm), tuple(range(32)))
        sent[algorithm] = sum(transfer.size_bytes for phase in phases for transfer in phase.transfers)
    assert sent["direct"] == 31 * MB
    assert sent["hierarchical"] == 4 * 7 * MB + 3 * MB


def test_each_step_sends_own_shards_one_node_further() -> None:
    """3 nodes: to the next one, then to the one after it; each sends to its counterpart alone, and gets as much."""
    machine = override(load_machine("atlas_a2"), FULL)
    fabric = Fabric(machine, 24)
    phases = Lowering(fabric, machine.collectives).lower(
        Collective("all_gather", "ep", "sdma", MB, algorithm="hierarchical"), tuple(range(24)))
    for phase in phases[:2]:
        _, across = phase.transfers
        crossed = {key: moved for key, moved in across.loads if key[0] == "link"}
        ways = [fabric.route(rank, (rank + 8) % 24).edges for rank in range(24)]
        assert crossed == {("link", *edge): MB for way in ways for edge in way}
    assert len(phases[2].transfers) == 1


def test_one_node_needs_no_step_across() -> None:
    assert phases_us("all_gather", 1) == pytest.approx([1e6 / 28e3], rel=1e-6)


def test_nodes_with_different_numbers_of_members_are_refused() -> None:
    machine = load_machine("atlas_a2")
    lowering = Lowering(Fabric(machine, 16), machine.collectives)
    with pytest.raises(InputError, match="as many members in every node"):
        lowering.lower(Collective("all_gather", "ep", "sdma", MB, algorithm="hierarchical"), tuple(range(12)))


def test_every_step_but_the_first_begins_with_three_messages_between_nodes() -> None:
    machine = load_machine("atlas_a2")
    sdma, (node, roce) = machine.collectives["sdma"], machine.fabric
    collective = Collective("all_gather", "ep", "sdma", MB, algorithm="hierarchical")
    lower = Lowering(Fabric(machine, 32), machine.collectives).lower
    first, *others = (phase.latency_s for phase in lower(collective, tuple(range(32))))
    assert first == pytest.approx(sdma.startup.si + roce.latency.si)
    assert others == pytest.approx([3 * roce.latency.si] * 3)
    inside = [phase.latency_s for phase in lower(collective, tuple(range(8)))]
    assert inside == pytest.approx([sdma.startup.si + node.latency.si])
