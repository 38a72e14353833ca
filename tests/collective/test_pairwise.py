"""All2All that goes from peer to peer between nodes, by hand on Atlas A2's links."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from simulator.collective.lowering import Lowering, busy_of
from simulator.collective.pairwise import steps_of
from simulator.collective.transfer import Phase
from simulator.fabric.graph import Fabric
from simulator.program.task import Collective
from simulator.replay.replay import rate_of
from simulator.spec.load import load_machine, override

PAIR = 250_000
ENOUGH = {
    "collectives.sdma.startup": "0 us",
    "collectives.sdma.ladder.default.0.rate": "196 GB/s",
    "collectives.sdma.ladder.default.1.rate": "196 GB/s",
    "collectives.sdma.ladder.send.0.rate": "25 GB/s",
    "collectives.sdma.transfer_bytes": "0",
    "collectives.sdma.copy_bytes": "0",
    "fabric.roce.latency": "4 us",
}


MACHINE = override(load_machine("atlas_a2"), ENOUGH)


def lowered(collective: Collective, nodes: int = 4) -> tuple[Phase, ...]:
    fabric = Fabric(MACHINE, 8 * nodes)
    return Lowering(fabric, MACHINE.collectives).lower(collective, tuple(range(8 * nodes)))


def busy_us(phases: tuple[Phase, ...]) -> list[float]:
    """What the busiest capacity needs for every phase."""
    fabric = Fabric(MACHINE, 32)
    rate = partial(rate_of, machine=MACHINE, fabric=fabric)
    return [busy_of(one.transfers, rate)(0, [range(len(one.transfers))])[0] / 1e6 for one in phases]


def all_to_all(algorithm: str = "pairwise", uneven: bool = False, ranks: int = 32) -> Collective:
    sizes = ((PAIR,) * ranks,) * ranks if uneven else ()
    return Collective("all_to_all", "ep", "sdma", 0 if uneven else PAIR, sizes, algorithm=algorithm)


@pytest.mark.parametrize("uneven", [False, True])
def test_the_worked_example(uneven: bool) -> None:
    phases = lowered(all_to_all(uneven=uneven))
    assert len(phases) == 24
    assert [phase.latency_s for phase in phases[1:]] == pytest.approx([12e-6] * 23)
    assert busy_us(phases) == pytest.approx([10] * 24, rel=1e-4)


def test_every_rank_meets_every_other_once_and_one_at_a_time_between_nodes() -> None:
    fabric = Fabric(load_machine("atlas_a2"), 32)
    inside, across = steps_of(fabric, tuple(range(32)))
    met = Counter(inside + [pair for pairs in across for pair in pairs])
    assert met == Counter((a, b) for a in range(32) for b in range(32) if a != b)
    for pairs in across:
        assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == list(range(32))


def test_in_one_node_it_is_the_direct_one() -> None:
    """All peers at once; copies into and out of buffers included."""
    (ours,), (direct,) = lowered(all_to_all(), nodes=1), lowered(all_to_all("direct"), nodes=1)
    assert ours.latency_s == direct.latency_s
    assert Counter(dict(ours.transfers[0].loads)) == Counter(dict(direct.transfers[0].loads))


def test_as_many_bytes_cross_every_link_as_directly() -> None:
    def links(collective: Collective) -> Counter:
        moved: Counter = Counter()
        for phase in lowered(collective):
            for transfer in phase.transfers:
                for key, load in transfer.loads:
                    if key[0] == "link":
                        moved[key] += load
        return moved

    assert links(all_to_all()) == links(all_to_all("direct")) == links(all_to_all(uneven=True))


def test_a_step_lasts_as_long_as_its_longest_message() -> None:
    """What is hot for one receiver makes all wait, in every step that has such a message."""
    sizes = tuple(tuple(2 * PAIR if to == 0 else PAIR for to in range(32)) for _ in range(32))
    phases = lowered(Collective("all_to_all", "ep", "sdma", sizes=sizes, algorithm="pairwise"))
    assert busy_us(phases) == pytest.approx([20] * 24, rel=1e-4)


@pytest.mark.parametrize("uneven", [False, True])
def test_what_a_rank_sends_to_one_place_at_a_time_weighs_as_much_as_one_kernel(uneven: bool) -> None:
    """Its messages inside the node together one, and the one that goes to another node one."""
    first, *others = lowered(all_to_all(uneven=uneven))
    for phase, weight in ((first, 2.0), *((phase, 1.0) for phase in others)):
        sent = [transfer.weight for transfer in phase.transfers if not uneven or transfer.ranks[0] == 0]
        assert sum(sent) == pytest.approx(weight)
