"""A card's times by hand: 1 GB/s, 10 us latency, 5 us back, 10 writes a microsecond; order, load, ports, faults."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.live.thread import Label
from simulator.live.write import Write
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


def test_a_write_of_several_messages_takes_as_many_turns_of_the_card() -> None:
    wire = Wire(2)
    wire.hosts[0].engine.nics[0].post(Write(Label("three"), 0, 1, 6, immediate="three", messages=3))
    post(wire, 0, 1, 6, "next")
    wire.env.run()
    assert [row[1] for row in wire.rows.of(0, "nic 0 out")] == pytest.approx([0.0, 0.3])


def test_a_port_is_shared_by_those_who_send_to_it() -> None:
    """Both writes get half of it and are there at 50 us. Rows of a port follow each other: one has no length."""
    wire = Wire(3)
    post(wire, 0, 2, 20 * KB, "a")
    post(wire, 1, 2, 20 * KB, "b")
    wire.env.run()
    assert wire.rows.of(2, "nic 0 in") == [("a", 10.0, 50.0), ("b", 50.0, 50.0)]


def test_crossing_rails_costs_only_where_writes_of_several_senders_meet() -> None:
    wire = Wire(3, nic__rail_crossing="0.5")
    post(wire, 0, 2, 20 * KB, "a")
    post(wire, 1, 2, 20 * KB, "b")
    wire.env.run()
    assert wire.rows.of(2, "nic 0 in") == [("a", 10.0, 70.0), ("b", 70.0, 70.0)]  # one of them counts twice


def test_cards_of_one_rail_meet_without_crossing() -> None:
    """Ranks 0, 8 and 16 have the same place in their nodes, and so the same rail."""
    wire = Wire(17, nic__rail_crossing="0.5")
    post(wire, 0, 16, 20 * KB, "a")
    post(wire, 8, 16, 20 * KB, "b")
    wire.env.run()
    assert wire.rows.of(16, "nic 0 in") == [("a", 10.0, 50.0), ("b", 50.0, 50.0)]


@pytest.mark.parametrize(("machine", "ends"), [("p5en_h200", {"a": 60, "b": 60, "c": 70}),
                                               ("h200_cx7", {"a": 50, "b": 50, "c": 70})])
def test_a_reliable_connection_takes_one_write_at_a_time(machine: str, ends: dict[str, float]) -> None:
    """`c` follows `a` from the same sender and begins to arrive at 30 us: in order, it leaves the port to `a` and `b`;
    in any order, all three share it."""
    wire = Wire(3, machine)
    for source, name in ((0, "a"), (1, "b"), (0, "c")):
        post(wire, source, 2, 20 * KB, name)
    wire.env.run()
    assert {name: end for name, _, end in wire.rows.of(2, "nic 0 in")} == pytest.approx(ends)
    assert wire.rows.of(0, "nic 0 out") == [("a", 0.0, 20.0), ("c", 20.0, 40.0)]  # no card waits for a busy port


def arrivals(wire: Wire) -> dict[tuple[int, str], float]:
    """When the first byte of every write came, in us, by rank and name."""
    return {(row[0], row[3]): row[4] for row in wire.rows.rows if row[1] == "nic 0 in"}


def test_a_write_waits_behind_what_its_card_has_on_its_way_to_other_ranks() -> None:
    wire = Wire(3, nic__standing_queue="1 MB")
    for target, size, name in ((1, 20 * KB, "first"), (2, 20 * KB, "other"), (1, 1 * KB, "last")):
        post(wire, 0, target, size, name)
    wire.env.run()
    assert arrivals(wire) == {(1, "first"): 10.0, (2, "other"): 50.0, (1, "last"): 70.0}  # 20 kB drain in 20 us


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 60))
def test_loaded_latency_grows_with_the_bytes_on_their_way_to_others_and_is_none_alone(sizes: list[int],
                                                                                        queue: int) -> None:
    """The write to rank 1 that is posted last; what is on its way to rank 1 itself does not count."""

    def late_us(others: list[int]) -> float:
        wire = Wire(8, nic__standing_queue=f"{queue} kB")
        for target, size in enumerate(others, 2):
            post(wire, 0, target, size * KB, "other")
        post(wire, 0, 1, 5 * KB, "before")
        return post(wire, 0, 1, 5 * KB, "last").queued_ps / US

    late = [late_us(sizes[:count]) for count in range(len(sizes) + 1)]
    assert late[0] == 0.0
    assert late == sorted(late)
    assert late[-1] == pytest.approx(min(sum(sizes), queue))


@pytest.mark.parametrize("cards", ["1", "2", "4"])
def test_messages_a_second_do_not_depend_on_the_number_of_cards(cards: str) -> None:
    """Ten a microsecond for the GPU: 40 empty writes start within 3.9 us, on however many cards."""
    wire = Wire(2, nic__per_die=cards)
    for number in range(40):
        post(wire, 0, 1, 0, card=number % int(cards))
    wire.env.run()
    starts = sorted(row[4] for row in wire.rows.rows if row[1].endswith("out"))
    assert starts == pytest.approx([place / 10 for place in range(40)])


@pytest.mark.parametrize(("machine", "first"), [("p5en_h200", "short"), ("h200_cx7", "long")])
def test_reliable_connections_keep_order_and_datagrams_do_not(machine: str, first: str) -> None:
    """The short one is posted when nothing to others is on its way any more."""
    wire = Wire(3, machine, nic__standing_queue="100 kB")
    post(wire, 0, 2, 60 * KB, "other")
    post(wire, 0, 1, 20 * KB, "long")
    wire.env.run(until=76 * US)
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
    assert sorted(str(write) for write in nic.given_up) == [
        "write 'a' from rank 0 to rank 1 (20000 B)",
        "write 'b' from rank 0 to rank 1 (20000 B)",
    ]
    assert not wire.hosts[1].engine.counts


def test_a_slow_card_is_slow_from_then_on() -> None:
    wire = Wire(2)
    nic = wire.hosts[0].engine.nics[0]
    nic.struck("a fault", 0.1)
    post(wire, 0, 1, 20 * KB)
    wire.env.run()
    assert wire.rows.of(0, "nic 0 out") == [("w", 0.0, 200.0)]
    assert wire.rows.of(1, "nic 0 in")[0][0] == "w"
    assert wire.env.now == 215 * US


def _kill(wire: Wire, at_us: int):  # type: ignore[no-untyped-def]
    yield wire.env.timeout(at_us * US)
    wire.hosts[0].engine.nics[0].struck("a fault", 0.0)
