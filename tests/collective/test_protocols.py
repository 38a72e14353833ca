"""Collectives of algorithm "auto": which protocol is taken, and that it takes what its numbers say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collective import nvls
from simulator.collective.algorithms import amounts
from simulator.collective.lowering import Lowering
from simulator.collective.protocols import alone_s, buffer_bytes, chosen, parts
from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from simulator.program.task import Collective
from simulator.spec.load import load_machine
from simulator.spec.machine import CollectiveSpec
from simulator.spec.protocols import ProtocolSpec
from simulator.spec.typed_toml import validate
from tests.die.machines import gpu_nodes, number

MACHINE = gpu_nodes()  # 3.3 us and 450 GB/s in a node
HOP_S = MACHINE.fabric[0].latency.si


def protocol(algorithm: str, startup_us: float, rate_gb_s: float, kind: str = "all_reduce", per_peer_us: float = 0.0,
             up_to: float | None = None) -> ProtocolSpec:
    limit = {} if up_to is None else {"up_to": number(up_to, "B")}
    return validate(ProtocolSpec, {"kind": kind, "algorithm": algorithm, "startup": number(startup_us, "us"),
                                   "startup_per_peer": number(per_peer_us, "us"), "rate": number(rate_gb_s, "GB/s"),
                                   **limit}, "a test")  # fmt: skip


def engine(**protocols: ProtocolSpec) -> CollectiveSpec:
    sdma = load_machine("atlas_a3").collectives["sdma"]
    tables = {name: own.model_dump(exclude_none=True) for name, own in protocols.items()}
    return validate(CollectiveSpec, {**sdma.model_dump(exclude_none=True), "copy_bytes": number(0),
                                     "protocols": tables}, "a test")  # fmt: skip


ENGINE = engine(one_shot=protocol("one_shot", 4, 250), two_shot=protocol("direct", 4, 200),
                in_switch=protocol("nvls", 30, 300), gather=protocol("ring", 5, 100, "all_gather", 1))


def all_reduce(size: int, algorithm: str = "auto") -> Collective:
    return Collective("all_reduce", "world", "own", size, algorithm=algorithm)


def seconds(collective: Collective, members: tuple[int, ...], own: CollectiveSpec = ENGINE) -> float:
    """How long it takes alone, on links that are fast enough."""
    phases = Lowering(Fabric(MACHINE, 16), {"own": own}).lower(collective, members)
    rates = {key: key[2] for phase in phases for one in phase.transfers for key, _ in one.loads if key[0] == "out"}
    return sum(phase.latency_s + max((moved / rates[key] for one in phase.transfers for key, moved in one.loads
                                      if key in rates), default=0.0) for phase in phases)  # fmt: skip


@pytest.mark.parametrize(("size", "algorithm"), [(2**16, "one_shot"), (2**20, "direct"), (2**26, "nvls")])
def test_the_fastest_protocol_is_taken(size: int, algorithm: str) -> None:
    assert chosen(all_reduce(size), 8, ENGINE)[0] == all_reduce(size, algorithm)


def test_the_worked_example_of_the_module() -> None:
    one, two, _, _ = ENGINE.protocols.values()
    assert [round(alone_s(own, 2**16, 8) * 1e6, 1) for own in (one, two)] == [5.8, 8.6]
    assert round(alone_s(two, 2**20, 8) * 1e6) == 17


@given(st.integers(0, 2**27), st.integers(2, 8))
@settings(max_examples=50, deadline=None)
def test_a_protocol_takes_its_latency_and_its_bytes_at_its_rate(size: int, members: int) -> None:
    one, own = chosen(all_reduce(size), members, ENGINE)
    taken = next(each for each in ENGINE.protocols.values()
                 if (each.algorithm, each.startup) == (one.algorithm, own.startup) and each.kind == "all_reduce")
    expected = alone_s(taken, size, members) + parts(one.algorithm, one.kind) * HOP_S
    assert seconds(all_reduce(size), tuple(range(members))) == pytest.approx(expected, rel=1e-3)


@given(st.integers(1, 2**27), st.integers(2, 8))
@settings(max_examples=50, deadline=None)
def test_auto_is_never_slower_than_any_of_its_protocols(size: int, members: int) -> None:
    ranks = tuple(range(members))
    each = [engine(only=own) for own in ENGINE.protocols.values() if own.kind == "all_reduce"]
    hops_s = HOP_S  # the choice is made without hops: of two parts there is one more
    assert seconds(all_reduce(size), ranks) <= min(seconds(all_reduce(size), ranks, own) for own in each) + hops_s


def test_a_library_stops_at_its_limit() -> None:
    own = engine(one_shot=protocol("one_shot", 1, 400, up_to=2**20), beyond=protocol("ring", 9, 300))
    assert chosen(all_reduce(2**20), 2, own)[0].algorithm == "one_shot"
    assert chosen(all_reduce(2**20 + 1), 2, own)[0].algorithm == "ring"


def test_sizes_are_those_of_whole_buffers() -> None:
    gather = Collective("all_gather", "world", "own", 1000, algorithm="auto")
    assert buffer_bytes(gather, 8) == 8000
    assert buffer_bytes(all_reduce(1000), 8) == 1000
    assert buffer_bytes(replace(gather, kind="all_to_all", sizes=((0, 4), (2, 0))), 2) == 3
    assert seconds(gather, tuple(range(8))) == pytest.approx(12e-6 + 7000 / 100e9 + HOP_S)


def test_without_a_protocol_it_is_direct_at_the_engines_own_numbers() -> None:
    scatter = Collective("reduce_scatter", "world", "own", 1000, algorithm="auto")
    assert chosen(scatter, 8, ENGINE) == (replace(scatter, algorithm="direct"), ENGINE)
    assert seconds(scatter, (0, 1)) == seconds(replace(scatter, algorithm="direct"), (0, 1))


def test_amounts_are_those_of_the_protocol() -> None:
    assert amounts(all_reduce(2**16), 8, ENGINE) == amounts(all_reduce(2**16, "one_shot"), 8, ENGINE)
    assert amounts(all_reduce(2**26), 8, ENGINE)[0] == nvls.sent_bytes(2**26, 8)


# sums in the switch


def test_the_worked_example_of_nvls() -> None:
    (phase,) = Lowering(Fabric(MACHINE, 8), {"own": ENGINE}).lower(all_reduce(8_000_000, "nvls"), tuple(range(8)))
    (transfer,) = phase.transfers
    loads = dict(transfer.loads)
    assert transfer.size_bytes == 9_000_000
    assert loads["link", "die 3", "node 0"] == loads["link", "node 0", "die 3"] == 9_000_000
    assert loads["hbm", 3] == 8_000_000 * ENGINE.transfer_bytes.si
    assert transfer.ranks == tuple(range(8))


def test_a_switch_sums_for_two() -> None:
    (phase,) = Lowering(Fabric(MACHINE, 8), {"own": ENGINE}).lower(all_reduce(8_000_000, "nvls"), (2, 5))
    links = {key[1:]: moved for key, moved in phase.transfers[0].loads if key[0] == "link"}
    assert links == {edge: 12_000_000 for die in ("die 2", "die 5") for edge in ((die, "node 0"), ("node 0", die))}


def test_no_switch_sums_for_several_nodes() -> None:
    both = tuple(range(4, 12))
    with pytest.raises(InputError, match="no one switch joins all of these"):
        Lowering(Fabric(MACHINE, 16), {"own": ENGINE}).lower(all_reduce(2**26, "nvls"), both)
    only = engine(two_shot=ENGINE.protocols["two_shot"])
    assert seconds(all_reduce(2**26), both) == seconds(all_reduce(2**26), both, only)


def test_one_rank_and_no_bytes_take_no_wire() -> None:
    lowering = Lowering(Fabric(MACHINE, 8), {"own": ENGINE})
    assert lowering.lower(all_reduce(2**20), (3,))[0].transfers == ()
    assert all(not phase.transfers for phase in lowering.lower(all_reduce(0, "nvls"), (0, 1)))
