"""Lowering by hand: who sends how much over which link and through which memory, on one switch and on two levels.

Engine dma: 10 us + 1 us per peer, t = 2, c = 2, 1 GB/s. Engine aiv: 4 us, t = 2, c = 0, a ladder from 0.5 to 1 GB/s.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collective.lowering import Lowering
from simulator.collective.transfer import CapacityKey, Phase, Transfer, columns_of
from simulator.fabric.graph import Fabric
from simulator.program.task import Collective
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate
from tests.die.machines import level
from tests.replay.small import TINY

MB = 10**6
MODES = ("auto", "classes", "pairwise")
PAIRS = validate(MachineSpec, {
    **TINY.model_dump(), "name": "pairs",
    "fabric": [level("pair", "mesh", 2, 4, 0.5), level("node", "switch", 2, 2, 1), level("top", "switch", 2, 3, 3)],
}, "pairs")


def lower(collective: Collective, members: tuple[int, ...], mode: str = "auto", machine: MachineSpec = TINY,
          ranks: int = 8) -> tuple[Phase, ...]:
    return Lowering(Fabric(machine, ranks), machine.collectives, mode).lower(collective, members)


def balanced(kind: str, size: int, via: str = "dma") -> Collective:
    return Collective(kind, "world", via, size)


def uneven(sizes: tuple[tuple[int, ...], ...], via: str = "dma") -> Collective:
    return Collective("all_to_all", "world", via, sizes=sizes)


def bytes_on(phases: tuple[Phase, ...], without: tuple[str, ...] = ("out", "in")) -> Counter[CapacityKey]:
    """Bytes on every capacity, all phases and transfers together."""
    total: Counter[CapacityKey] = Counter()
    for phase in phases:
        for transfer in phase.transfers:
            for key, load in transfer.loads:
                if key[0] not in without:
                    total[key] += load
    return total


# balanced exchanges ---------------------------------------------------------------------------------------------------


def test_the_worked_example_of_the_module() -> None:
    (phase,) = lower(balanced("all_to_all", MB), (0, 1, 2, 3))
    (transfer,) = phase.transfers
    assert phase.latency_s == pytest.approx(10e-6 + 3 * 1e-6 + 1e-6)
    assert (transfer.size_bytes, transfer.ranks) == (3 * MB, (0, 1, 2, 3))
    loads = dict(transfer.loads)
    for rank in range(4):
        assert loads.pop(("out", rank, 1e9)) == 3 * MB
        assert loads.pop(("hbm", rank)) == loads.pop(("l2", rank)) == 18 * MB
        assert loads.pop(("link", f"die {rank}", "box 0")) == loads.pop(("link", "box 0", f"die {rank}")) == 3 * MB
    assert not loads


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "n", "via", "memory_mb"), [
    ("all_to_all", 2, "dma", 1 * 2 + 2 * 1 * 2),
    ("all_to_all", 4, "dma", 3 * 2 + 2 * 3 * 2),
    ("all_to_all", 4, "aiv", 3 * 2),
    ("all_gather", 2, "dma", 1 * 2 + 3 * 2),
    ("all_gather", 4, "dma", 3 * 2 + 5 * 2),
    ("reduce_scatter", 3, "dma", 2 * 2 + 4 * 2),
    ("reduce_scatter", 3, "aiv", 2 * 2),
])
def test_bytes_of_balanced_exchanges(kind: str, n: int, via: str, memory_mb: int, mode: str) -> None:
    phases = lower(balanced(kind, MB, via), tuple(range(n)), mode)
    loads = bytes_on(phases)
    for rank in range(n):
        assert loads["hbm", rank] == loads["l2", rank] == pytest.approx(memory_mb * MB, abs=n)  # whole bytes
        assert loads["link", f"die {rank}", "box 0"] == loads["link", "box 0", f"die {rank}"] == (n - 1) * MB
    senders = n if mode == "pairwise" else 1
    assert sum(transfer.size_bytes for transfer in phases[0].transfers) == senders * (n - 1) * MB


def test_all_reduce_is_a_reduce_scatter_and_an_all_gather_of_shards() -> None:
    members = (0, 1, 2)
    both = lower(balanced("reduce_scatter", MB), members) + lower(balanced("all_gather", MB), members)
    assert lower(balanced("all_reduce", 3 * MB), members) == both
    assert lower(balanced("all_reduce", 3 * MB - 2), members) == both  # shards are rounded up


def test_on_two_levels_bytes_cross_the_links_of_their_routes() -> None:
    """Pairs of dies in a mesh, two pairs under a switch, two such nodes under another."""
    (phase,) = lower(balanced("all_to_all", MB), tuple(range(8)), machine=PAIRS)
    loads = bytes_on((phase,))
    assert loads["link", "die 0", "die 1"] == MB
    assert loads["link", "die 0", "node 0"] == 6 * MB  # to two dies in its node and four outside
    assert loads["link", "node 0", "top 0"] == 4 * 4 * MB
    assert phase.latency_s == pytest.approx(10e-6 + 7e-6 + 3e-6)  # the longest route
    assert lower(balanced("all_to_all", MB), (0, 1), machine=PAIRS)[0].latency_s == pytest.approx(11e-6 + 0.5e-6)


@pytest.mark.parametrize(("size", "rate"), [(1, 0.5e9), (10_000, 0.5e9), (100_000, 0.75e9), (MB, 1e9), (9 * MB, 1e9)])
def test_the_rate_follows_the_ladder_of_the_engine(size: int, rate: float) -> None:
    assert TINY.collectives["aiv"].rate_bytes_per_s("all_gather", size) == pytest.approx(rate)
    (transfer,) = lower(balanced("all_gather", size, "aiv"), (0, 1))[0].transfers
    assert [key[2] for key, _ in transfer.loads if key[0] == "out"] == [pytest.approx(rate)] * 2


# uneven All2All -------------------------------------------------------------------------------------------------------

SKEWED = ((9, 3, 0), (2, 9, 4), (5, 0, 9))  # the diagonal stays at home


def test_an_uneven_all_to_all_is_one_transfer_per_pair_that_has_bytes() -> None:
    (phase,) = lower(uneven(SKEWED), (0, 1, 2))
    assert {(each.ranks, each.size_bytes) for each in phase.transfers} == {
        ((0, 1), 3), ((1, 0), 2), ((1, 2), 4), ((2, 0), 5)}
    assert dict(phase.transfers[0].loads) == {
        ("out", 0, 1e9): 3, ("in", 1, 1e9): 3,
        ("hbm", 0): 9, ("hbm", 1): 9, ("l2", 0): 9, ("l2", 1): 9,  # 3 x (2 / 2 + 2) at each end
        ("link", "die 0", "box 0"): 3, ("link", "box 0", "die 1"): 3}


@pytest.mark.parametrize("sizes", [((0, 1), (1, 0)), ((0, 1, 1), (1, 0), (1, 1, 0)), ((0, 1, 1),) * 4])
def test_sizes_that_are_not_those_of_all_pairs_are_refused(sizes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="must be 3 x 3"):
        lower(uneven(sizes), (0, 1, 2))


def test_by_sender_its_messages_end_together() -> None:
    (phase,) = lower(uneven(SKEWED), (0, 1, 2), "classes")
    assert [(each.ranks[0], set(each.ranks), each.size_bytes) for each in phase.transfers] == [
        (0, {0, 1}, 3), (1, {0, 1, 2}, 6), (2, {0, 2}, 5)]
    weights = [each.weight / each.size_bytes for each in phase.transfers]
    assert weights == pytest.approx([weights[0]] * 3)  # all senders end together


def test_equal_messages_are_the_balanced_exchange() -> None:
    even = lower(uneven(((MB,) * 4,) * 4), (0, 1, 2, 3), "pairwise")
    pairs = lower(balanced("all_to_all", MB), (0, 1, 2, 3), "pairwise")
    assert even == pairs


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(2, 5), st.sampled_from(["dma", "aiv"]))
def test_every_mode_moves_the_same_bytes(data: st.DataObject, n: int, via: str) -> None:
    sizes = tuple(tuple(data.draw(st.integers(0, 50)) for _ in range(n)) for _ in range(n))
    collective = uneven(sizes, via)
    pairwise, *others = (bytes_on(lower(collective, tuple(range(n)), mode, PAIRS))
                         for mode in ("pairwise", "classes", "auto"))
    assert all(other == pairwise for other in others)
    sent = sum(sizes[i][j] for i in range(n) for j in range(n) if i != j)
    ends = TINY.collectives[via].transfer_bytes.si / 2 + TINY.collectives[via].copy_bytes.si
    assert sum(load for key, load in pairwise.items() if key[0] == "hbm") == 2 * ends * sent


# messages, and exchanges of nothing -----------------------------------------------------------------------------------


def test_a_message_loads_both_ends() -> None:
    (phase,) = lower(balanced("send", MB), (2, 5))
    (transfer,) = phase.transfers
    assert transfer.ranks == (2, 5)
    assert bytes_on((phase,)) == {("hbm", 2): 3 * MB, ("hbm", 5): 3 * MB, ("l2", 2): 3 * MB, ("l2", 5): 3 * MB,
                                  ("link", "die 2", "box 0"): MB, ("link", "box 0", "die 5"): MB}
    assert phase.latency_s == pytest.approx(10e-6 + 1e-6 + 1e-6)
    (own_ladder,) = lower(balanced("send", MB, "aiv"), (2, 5))[0].transfers
    assert ("out", 2, 0.25e9) in dict(own_ladder.loads)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("collective", [
    balanced("barrier", 0), balanced("all_to_all", 0), balanced("all_gather", 0), balanced("reduce_scatter", 0),
    uneven(((0,) * 4,) * 4), uneven(tuple(tuple(7 * (i == j) for j in range(4)) for i in range(4)))], ids=str)
def test_nothing_to_move_costs_the_latency(collective: Collective, mode: str) -> None:
    (phase,) = lower(collective, (0, 1, 2, 3), mode)
    assert phase == Phase(phase.latency_s, ())
    assert phase.latency_s == pytest.approx(14e-6)


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "barrier"])
def test_a_group_of_one_has_nothing_to_do(kind: str) -> None:
    assert lower(balanced(kind, MB), (3,)) == (Phase(0.0, ()),)


def test_lowering_once_is_enough() -> None:
    lowering = Lowering(Fabric(TINY, 4), TINY.collectives)
    assert lowering.lower(balanced("all_gather", MB), (0, 1)) is lowering.lower(balanced("all_gather", MB), (0, 1))


def test_loads_as_columns_number_capacities_in_the_order_in_which_they_come() -> None:
    """Equal keys are one capacity, whether they are one object or not."""
    first, same, other = tuple(["hbm", 7]), tuple(["hbm", 7]), ("l2", 7)  # noqa: C409
    transfers = [Transfer(5, (other, first), (4, 5), (0,)), Transfer(3, (), (), (0,)), Transfer(9, (same,), (9,), (1,))]
    keys, place, moved, ends = columns_of(transfers)
    assert keys == [other, first]
    assert (place.tolist(), moved.tolist(), ends.tolist()) == ([0, 1, 1], [4, 5, 9], [0, 2, 2, 3])
