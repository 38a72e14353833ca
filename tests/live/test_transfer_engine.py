"""The engine by hand: sharding over cards, doorbells, counters without order, templates, barriers, pages, messages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.live.thread import Label
from tests.live.live_hosts import US, Wire

KB = 1000
L = Label("t")


def sent(wire: Wire, rank: int = 0) -> list[int]:
    """Writes that left through each card."""
    return [len(wire.rows.of(rank, f"nic {nic.number} out")) for nic in wire.hosts[rank].engine.nics]


def posts(wire: Wire, rank: int = 0) -> list[tuple[float, float]]:
    return [(row[4], row[5]) for row in wire.rows.rows if row[:3] == (rank, "engine", "post")]


def test_a_small_write_uses_one_card_and_a_large_one_all() -> None:
    for size, cards in ((63 * KB, [1, 0]), (64 * KB, [1, 1])):
        wire = Wire(2)
        host = wire.hosts[0]

        def program(host=host, size=size):  # type: ignore[no-untyped-def]
            done = yield from host.engine.write(host.proxy, L, 1, size)
            yield from host.until(done, "the write")

        ended = wire.run(program())
        assert sent(wire) == cards
        assert ended == pytest.approx(1 + 10 + 5 + (63 if cards[1] == 0 else 1 + 32))


def test_a_scatter_spreads_its_peers_over_the_cards_and_posting_overlaps_the_wire() -> None:
    wire = Wire(5)
    host = wire.hosts[0]
    wire.run(host.engine.scatter(host.proxy, L, [(peer, 10 * KB) for peer in (1, 2, 3, 4)], "x"))
    assert sent(wire) == [2, 2]
    assert posts(wire) == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
    assert wire.rows.of(0, "nic 0 out") == [("t", 1.0, 11.0), ("t", 11.0, 21.0)]
    assert [wire.hosts[peer].engine.counts["x"] for peer in (1, 2, 3, 4)] == [1, 1, 1, 1]


def test_chained_doorbells_let_several_writes_go_at_once() -> None:
    wire = Wire(7, "h200_cx7")
    host = wire.hosts[0]
    wire.run(host.engine.scatter(host.proxy, L, [(peer, 0) for peer in range(1, 7)], "x"))
    assert posts(wire) == [(0.0, 4.0), (4.0, 6.0)]
    assert wire.rows.of(0, "nic 0 out")[0][1] == 4.0


def test_without_templates_every_peer_is_submitted_and_dequeued_by_itself() -> None:
    times = {}
    for templates in (True, False):
        wire = Wire(5, templates=templates, proxy__submit="1 us", proxy__dequeue="2 us")
        host = wire.hosts[0]
        wire.run(host.engine.barrier(host.proxy, L, [1, 2, 3, 4], "x"))
        times[templates] = posts(wire)[-1][1]
    assert times == {True: 1 + 2 + 4, False: 1 + 4 * (2 + 1)}


def test_a_counter_sets_the_flag_of_the_gpu_at_its_count_and_not_before() -> None:
    wire = Wire(3)
    event = wire.hosts[2].engine.count(L, "x", 2, gpu_flag="go")
    for rank, size in ((0, 10 * KB), (1, 30 * KB)):
        host = wire.hosts[rank]
        wire.env.process(host.engine.scatter(host.proxy, L, [(2, size)], "x"))
    wire.env.run()
    assert event.triggered
    assert wire.seen == [(2, "go", 1 + 10 + 10 + 30 + 1.0)]  # posted, flown, behind the first one at the port, PCIe


def test_immediates_may_come_before_anybody_waits_for_them() -> None:
    wire = Wire(2)
    host, peer = wire.hosts

    def late():  # type: ignore[no-untyped-def]
        yield wire.env.timeout(100 * US)
        yield from peer.until(peer.engine.count(L, "x", 1), "x")

    assert wire.run(host.engine.scatter(host.proxy, L, [(1, 0)], "x"), late()) == 100.0


def test_a_write_is_received_by_its_counter() -> None:
    wire = Wire(2)
    host, peer = wire.hosts

    def receiver():  # type: ignore[no-untyped-def]
        yield from peer.until(peer.engine.count(L, "hello", 1), "a message")

    ended = wire.run(host.engine.write(host.proxy, L, 1, 20 * KB, "hello"), receiver())
    assert ended == 1 + 10 + 20


def test_a_cut_scatter_is_a_write_on_every_card_and_has_an_immediate_with_each() -> None:
    wire = Wire(3)
    host = wire.hosts[0]
    wire.run(host.engine.scatter_cut(host.proxy, L, [(1, 11 * KB), (2, 0)], "x"))
    wire.env.run()
    assert sent(wire) == [2, 2]
    assert [wire.hosts[rank].engine.counts["x"] for rank in (1, 2)] == [2, 2]
    posted = [row[5] - row[4] for row in wire.rows.rows if row[2] == "post"]
    assert sum(posted) == pytest.approx(4.0)  # each is posted


def test_pages_are_posted_one_by_one_and_acknowledged_together() -> None:
    wire = Wire(2)
    host, peer = wire.hosts

    def program():  # type: ignore[no-untyped-def]
        done = yield from host.engine.paged(host.proxy, L, 1, 100, 1 * KB, "page")
        yield from host.until(done, "pages")

    ended = wire.run(program())
    assert sent(wire) == [50, 50]
    assert peer.engine.counts["page"] == 100
    assert ended == pytest.approx(100 + 1 + 10 + 5, abs=1)  # posting takes longest: a page each microsecond


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(4)), st.sampled_from(["p5en_h200", "h200_cx7"]))
def test_what_is_counted_does_not_depend_on_the_order_of_arrival(order: list[int], machine: str) -> None:
    wire = Wire(5, machine, nic__standing_queue="40 kB")
    wire.hosts[4].engine.count(L, "x", 8, gpu_flag="go")
    for place, rank in enumerate(order):
        host = wire.hosts[rank]
        parts = [(4, (place + 1) * 13 * KB), (4, 1 * KB)]
        wire.env.process(host.engine.scatter(host.proxy, L, parts, "x"))
    wire.env.run()
    assert [flag for _, flag, _ in wire.seen] == ["go"]
    assert wire.hosts[4].engine.counts["x"] == 8


def test_a_thread_that_is_away_starts_nothing() -> None:
    wire = Wire(2)
    host = wire.hosts[0]
    host.proxy.deschedule(100e-6)
    assert wire.run(host.engine.scatter(host.proxy, L, [(1, 0)], "x")) == 100.0
