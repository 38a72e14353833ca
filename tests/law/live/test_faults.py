"""Cards that die, come back and slow down: what is counted, what it costs, and who takes over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.live.thread import Label
from simulator.spec.faults import faults_of
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.live.live_hosts import US, Wire

KB = 1000
L = Label("t")
HOSTS = 4


def sent_again(wire: Wire) -> int:
    return sum(nic.sent_again_bytes for host in wire.hosts for nic in host.engine.nics)


def wire_of(failover: bool, *faults: str, hosts: int = HOSTS, **changes: str) -> Wire:
    """1 GB/s a card, 10 us there and 5 us back; tries every 50 us, gives up after 200, uses a card 100 us after its
    return."""
    wire = Wire(hosts, **changes)
    for host in wire.hosts:
        host.engine.failover = failover
    wire.strike(*faults)
    return wire


def one_write(wire: Wire, size: int = 20 * KB) -> float:
    """From rank 0 to rank 1 over card 0; when its sender knows that it has arrived, in us."""
    host = wire.hosts[0]

    def program() -> Any:
        done = yield from host.engine.write(host.proxy, L, 1, size, "x")
        yield from host.until(done, "the write")

    return wire.run(program())


def exchange(wire: Wire, size: int, rounds: int = 1) -> float:
    """All ranks cut as many bytes over all cards for every other one, and wait for what comes, round after round."""
    def program(host: Any) -> Any:
        peers = [(host.rank + step) % len(wire.hosts) for step in range(1, len(wire.hosts))]
        for number in range(rounds):
            came = host.engine.count(L, f"{number}", len(peers) * len(host.engine.nics))
            yield from host.engine.scatter_cut(host.proxy, L, [(peer, size) for peer in peers], f"{number}")
            yield from host.until(came, "all peers")

    return wire.run(*(program(host) for host in wire.hosts))


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "ends", "again"), [
    ("0 s: link rank1.nic1 cut for 1 ms", 36, 0),         # the other card: 1 us to post, 20 us, 10 there, 5 back
    ("40 us: link rank1.nic0 cut for 1 ms", 36, 0),       # too late to strike it
    ("15 us: link rank0.nic0 cut for 10 us", 100, 20),    # lost at 15, again at 65: 35 us
    ("15 us: link rank1.nic0 cut for 10 us", 100, 20),    # as it arrives
    ("5 us: link rank1.nic0 cut for 80 us", 146, 20),     # arrives at 11 at a dead card; again at 61 and 111
    ("0 s: link rank0.nic0 cut for 8 us", 43, 0),         # waits in its card until it is back
    ("33 us: link rank0.nic0 cut for 10 us", 88, 0),      # its acknowledgement is lost: asks for it at 83
    ("0 s: link rank0.nic0 rate 0.1", 216, 0),
    ("0 s: link rank0.nic0 rate 0.1 for 11 us", 45, 0),   # 1 kB until then
    ("0 s: proxy 0 paused for 7 us", 43, 0),
    ("0 s: host 0 paused for 7 us", 43, 0),
])  # fmt: skip
def test_a_write_takes_as_long_as_its_card_makes_it(fault: str, ends: float, again: int) -> None:
    wire = wire_of(False, fault)
    assert one_write(wire) == pytest.approx(ends)
    assert sent_again(wire) == again * KB
    assert wire.hosts[1].engine.counts["x"] == 1


@pytest.mark.parametrize(("faults", "ends"), [
    (["15 us: link rank0.nic0 cut"], 251),                # lost at 15, given up at 215, posted again until 216
    (["15 us: link rank1.nic0 cut"], 251),
    (["0 s: link rank0.nic0 cut"], 237),                  # posted at 1 on a dead card
    (["15 us: link rank0.nic0 cut", "15 us: link rank1.nic1 cut for 300 us"], 361),
    (["15 us: link rank0.nic0 cut for 300 us", "15 us: link rank0.nic1 cut for 400 us"], 451),
])  # fmt: skip
def test_a_write_that_is_given_up_goes_over_the_other_card(faults: list[str], ends: float) -> None:
    """Posted at 215 us, until 216. Where that is dead as well, it is sent when both ends live: a dead peer lost it at
    226 and gets it at the next try, a dead card keeps it until it is back."""
    wire = wire_of(True, *faults)
    assert one_write(wire) == pytest.approx(ends, abs=1.1)
    assert wire.hosts[1].engine.counts["x"] == 1


def test_an_engine_as_published_posts_nothing_again() -> None:
    wire = wire_of(False, "15 us: link rank0.nic0 cut")
    with pytest.raises(AssertionError, match="waits for ever"):
        one_write(wire)
    assert [str(one) for one in wire.hosts[0].engine.nics[0].given_up] == ["write 't' from rank 0 to rank 1 (20000 B)"]
    assert wire.env.now / US == pytest.approx(215)


def test_what_arrived_and_was_not_acknowledged_is_sent_twice_by_an_engine_and_counts_once() -> None:
    wire = wire_of(True, "33 us: link rank0.nic0 cut")
    assert one_write(wire) == pytest.approx(33 + 200 + 1 + 35)
    assert sent_again(wire) == 20 * KB
    assert wire.hosts[1].engine.counts["x"] == 1


def test_a_dead_card_is_passed_over_until_it_has_been_back_for_a_while() -> None:
    """It dies at 15 us, is given up at 215 and is back at 250: what waits in it is sent; it is used from 350 us on."""
    wire = wire_of(True, "15 us: link rank0.nic0 cut for 235 us")
    host = wire.hosts[0]

    def program() -> Any:
        for _ in range(40):
            yield from host.engine.scatter(host.proxy, L, [(1, 1 * KB)], "x")
            yield wire.env.timeout(10 * US)

    wire.run(program())
    starts = [row[1] for row in wire.rows.of(0, "nic 0 out")]
    assert not [at for at in starts if 15 < at < 250]
    assert [at for at in starts if 250 <= at < 350] == [250.0 + number for number in range(17)]
    assert [at for at in starts if at > 350]
    assert wire.hosts[1].engine.counts["x"] == 40
    assert sent_again(wire) <= 2 * KB


def test_writes_that_have_no_way_wait_for_one() -> None:
    wire = wire_of(True, "0 s: link rank0.nic0 cut", "0 s: link rank0.nic1 cut for 900 us")
    assert one_write(wire) == pytest.approx(900 + 100 + 1 + 35)  # both are given up; a card is back, and used again


# --- laws -------------------------------------------------------------------------------------------------------------

CUTS = st.lists(st.tuples(st.integers(0, 600), st.integers(0, HOSTS - 1), st.integers(0, 1), st.integers(0, 400),
                          st.sampled_from(["cut", "rate 0.3", "flaps 7 us"])), max_size=5)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(CUTS, st.sampled_from(["p5en_h200", "h200_cx7"]))
def test_bytes_and_immediates_are_conserved_through_death_failover_and_return(cuts: list[Any], machine: str) -> None:
    """At random times, in any number and on both sides: what is counted is what was asked."""
    faults = [f"{at} us: link rank{rank}.nic{card} {effect} for {length} us" for at, rank, card, length, effect in cuts]
    wire = wire_of(True, *faults, machine=machine, nic__per_die="2")
    rounds, size = 4, 61 * KB
    ends = exchange(wire, size, rounds)
    whole = wire_of(True, machine=machine, nic__per_die="2")
    assert ends >= exchange(whole, size, rounds) - 1e-6
    for host in wire.hosts:
        assert dict(host.engine.counts) == {f"{number}": 2 * (HOSTS - 1) for number in range(rounds)}
        assert not host.engine.parked
        assert not any(nic.outstanding or nic.given_up for nic in host.engine.nics)
    assert wire.rows.sent_bytes - sent_again(wire) == HOSTS * (HOSTS - 1) * rounds * size == whole.rows.sent_bytes
    assert sent_again(whole) == 0


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 1.0))
def test_a_slow_card_costs_its_own_share_and_no_more_than_everything(share: float) -> None:
    """One card of two: every peer waits for half of its bytes, at the slow rate."""
    size = 100 * KB
    times = exchange(wire_of(False), size), exchange(wire_of(False, f"0 s: link rank0.nic0 rate {share}"), size)
    moved = (HOSTS - 1) * size / 1000  # us, over one card
    assert times[1] >= moved / 2 / share
    assert times[1] <= moved / share + 20
    assert times[1] - times[0] == pytest.approx(moved / 2 * (1 / share - 1), abs=5 / share)


@pytest.mark.parametrize("at_us", [0, 20, 60, 100])
def test_a_card_that_dies_costs_the_time_to_give_up_where_its_writes_are_awaited(at_us: int) -> None:
    whole = exchange(wire_of(True), 100 * KB)
    assert at_us < whole
    struck = exchange(wire_of(True, f"{at_us} us: link rank0.nic0 cut"), 100 * KB)
    assert struck >= at_us + 200


def test_on_the_card_that_is_left_everything_takes_as_long_as_on_a_gpu_with_one_card() -> None:
    """Once it is known which card is dead: rounds after the first take what they take where there is one card."""
    dead = [f"0 s: link rank{rank}.nic0 cut" for rank in range(HOSTS)]

    def two_rounds(*faults: str, cards: str = "2") -> float:
        first, all_of = (exchange(wire_of(True, *faults, nic__per_die=cards), 200 * KB, rounds) for rounds in (2, 4))
        return all_of - first

    left, one, two = two_rounds(*dead), two_rounds(cards="1"), two_rounds()
    assert left == pytest.approx(one, rel=0.03)
    assert left > 1.8 * two


def test_a_fault_of_no_length_and_one_after_the_end_move_nothing() -> None:
    scenario = load_scenario("pplx:efa_ep16").replace({"batch.per_rank": "16"})
    none = simulate(scenario)
    faults = ["10 us: link rank0.nic0 cut for 0 s", "20 us: link rank3.nic1 rate 0.1 for 0 s",
              "6 us: proxy 0 paused for 0 s", "7 us: host 2 paused for 0 s", "10 s: link rank0.nic0 cut",
              "10 s: proxy 1 paused for 1 ms"]  # fmt: skip
    struck = simulate(scenario.variant(faults=faults_of(faults)))
    assert struck.makespan_ps == none.makespan_ps
    for name in ("start_ps", "end_ps", "rank", "task", "wire_bytes"):
        assert np.array_equal(struck.columns[name], none.columns[name]), name
