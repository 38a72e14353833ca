"""A card's times by hand: 1 GB/s, 10 us latency, 5 us back, 10 writes a microsecond; order, load, ports, faults."""

from __future__ import annotations

import pytest

from simulator.live.journal import Label
from simulator.live.nic import Write
from tests.live.live_hosts import US, Wire

KB = 1000


def post(wire: Wire, source: int, target: int, size: int, name: str = "w", card: int = 0) -> Write:
    write = Write(Label(name), source, target, size, immediate=name)
    wire.hosts[source].engine.nics[card].post(write)
    return write


def test_a_write_alone_takes_its_latency_and_its_bytes() -> None:
    wire = Wire(2)
    post(wire, 0, 1, 20 * KB)
    wire.env.run()
    assert wire.rows.of(0, "nic 0 out") == [("w", 0.0, 20.0)]
    assert wire.rows.of(1, "nic 0 in") == [("w", 10.0, 30.0)]
    assert wire.env.now == 35 * US  # and the completion 5 us later


def test_writes_leave_one_after_the_other_and_small_ones_at_the_message_rate() -> None:
    wire = Wire(3)
    for target, size in ((1, 20 * KB), (2, 20 * KB), (1, 0), (2, 0)):
        post(wire, 0, target, size)
    wire.env.run()
    assert [row[1] for row in wire.rows.of(0, "nic 0 out")] == pytest.approx([0.0, 20.0, 40.0, 40.1])


def test_a_busy_port_makes_writes_wait() -> None:
    """Two senders at once: the second one's bytes are received behind the first one's."""
    wire = Wire(3)
    post(wire, 0, 2, 20 * KB, "a")
    post(wire, 1, 2, 20 * KB, "b")
    wire.env.run()
    assert wire.rows.of(2, "nic 0 in") == [("a", 10.0, 30.0), ("b", 30.0, 50.0)]


def test_crossing_rails_costs_only_where_writes_of_several_senders_meet() -> None:
    wire = Wire(3, nic__rail_crossing="0.5")
    post(wire, 0, 2, 20 * KB, "a")
    post(wire, 1, 2, 20 * KB, "b")
    wire.env.run()
    assert wire.rows.of(2, "nic 0 in") == [("a", 10.0, 30.0), ("b", 30.0, 70.0)]


def test_load_delays_long_writes_that_are_not_alone_and_no_others() -> None:
    wire = Wire(3, nic__loaded_latency="100 us")
    for target, size in ((1, 20 * KB), (2, 20 * KB), (1, 1 * KB)):
        post(wire, 0, target, size, f"{size}")
    wire.env.run()
    arrivals = {(row[0], row[3]): row[4] for row in wire.rows.rows if row[1] == "nic 0 in"}
    assert arrivals == {(1, "20000"): 10.0, (2, "20000"): 130.0, (1, "1000"): 50.0}  # the first one left alone


@pytest.mark.parametrize(("machine", "first"), [("p5en_h200", "short"), ("h200_cx7", "long")])
def test_reliable_connections_keep_order_and_datagrams_do_not(machine: str, first: str) -> None:
    wire = Wire(3, machine, nic__loaded_latency="100 us")
    post(wire, 0, 2, 20 * KB, "other")
    post(wire, 0, 1, 20 * KB, "long")
    post(wire, 0, 1, 1 * KB, "short")
    wire.env.run()
    assert wire.rows.of(1, "nic 0 in")[0][0] == first


def test_a_dead_card_completes_nothing_and_keeps_the_names_of_what_is_lost() -> None:
    wire = Wire(2)
    post(wire, 0, 1, 20 * KB, "a")
    post(wire, 0, 1, 20 * KB, "b")
    wire.env.process(_kill(wire, 15))
    wire.env.run()
    nic = wire.hosts[0].engine.nics[0]
    assert [str(write) for write in nic.outstanding] == [
        "write 'a' from rank 0 to rank 1 (20000 B)",
        "write 'b' from rank 0 to rank 1 (20000 B)",
    ]
    assert not wire.hosts[1].engine.counts


def test_a_slow_card_is_slow_from_then_on() -> None:
    wire = Wire(2)
    nic = wire.hosts[0].engine.nics[0]
    nic.speed = 0.1
    post(wire, 0, 1, 20 * KB)
    wire.env.run()
    assert wire.rows.of(0, "nic 0 out") == [("w", 0.0, 200.0)]
    assert wire.rows.of(1, "nic 0 in")[0][0] == "w"
    assert wire.env.now == 215 * US


def _kill(wire: Wire, at_us: int):  # type: ignore[no-untyped-def]
    yield wire.env.timeout(at_us * US)
    wire.hosts[0].engine.nics[0].die()
