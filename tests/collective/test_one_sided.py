"""Puts and collects: nobody waits to write, everybody waits for the slowest writer, and only where it collects."""

from __future__ import annotations

import gc
import weakref

import pytest

from simulator.collective.lowering import Lowering
from simulator.collective.one_sided import keys_of, latency_s, mean_latency_s, ports_of
from simulator.errors import InputError, RunError
from simulator.fabric.graph import Fabric
from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.spec.load import load_machine, override
from tests.die.machines import gpu_nodes
from tests.replay.small import passes_mb, run, tiny

# 4 ranks; aiv: start-up 4 us, 1 GB/s with 4 of 8 vector cores at 1 MB per peer; 1 us across the switch


def exchange(npu: Rank, sent: float = 3e6, received: float = 3e6) -> None:
    npu.group("world").put("out", int(sent), int(received), "aiv")
    npu.group("world").collect("in", "aiv")


def late(npu: Rank) -> None:
    """Rank 3 works 11 us before it writes."""
    if npu.rank == 3:
        npu.launch(passes_mb(1), "work")
    exchange(npu)
    npu.launch(passes_mb(1), "after")


def test_everybody_at_once() -> None:
    ran = run(exchange, 4)
    assert ran.us("out") == (0.0, 3004.0)
    assert ran.us("in") == (3004.0, 3005.0)
    assert ran.row("in")["ready_ps"] == ran.row("in")["start_ps"]


def test_a_fabric_is_forgotten_by_whoever_asked_it() -> None:
    gc.freeze()  # what other tests left is not looked through
    fabric = Fabric(tiny({}), 4)
    everybody = (0, 1, 2, 3)
    assert keys_of(fabric, everybody, 1) == keys_of(fabric, everybody, 1)
    assert latency_s(fabric, everybody) == 1e-6
    seen = weakref.ref(fabric)
    del fabric
    gc.collect()
    gc.unfreeze()
    assert seen() is None


@pytest.mark.parametrize("fold", [False, True])
def test_nothing_is_left_of_an_exchange_that_all_have_collected(fold: bool) -> None:
    def program(npu: Rank) -> None:
        exchange(npu)
        npu.group("world").put("nobody collects this", 1000, 1000, "aiv")

    assert len(run(exchange, 4, fold=fold).replay.meetings.mailboxes) == 0
    assert len(run(program, 4, fold=fold).replay.meetings.mailboxes) == 1


def test_a_late_rank_makes_the_others_wait_where_they_collect_and_nowhere_else() -> None:
    ran = run(late, 4)
    assert ran.us("out", 0) == (0.0, 3004.0)
    assert ran.us("out", 3) == (11.0, 3015.0)
    assert {ran.us("in", rank) for rank in range(4)} == {(3015.0, 3016.0)}
    assert ran.row("in", 0)["ready_ps"] == 3004 * 10**6  # the wait, not the work, is longer
    assert ran.row("out", 0)["bound_by"] == "engine"


def test_who_waits_where_it_collects_knows_for_whose_put() -> None:
    ran = run(late, 4)
    index = ran.row("out", 3)["task"]
    late_by = [(ran.row("in", rank)["late_rank"], ran.row("in", rank)["late_task"]) for rank in range(4)]
    assert late_by == [(3, index)] * 3 + [(-1, -1)]


def test_a_rank_that_receives_more_drains_longer_than_it_sends() -> None:
    """9 MB arrive through a port of 2 GB/s while 3 MB leave at 1 GB/s."""

    def program(npu: Rank) -> None:
        exchange(npu, received=9e6 if npu.rank == 0 else 1e6)

    ran = run(program, 4)
    assert ran.us("in", 0) == (4504.0, 4505.0)
    assert ran.us("in", 1) == (3004.0, 3005.0)


def test_fewer_cores_in_its_partition_make_it_slower_in_proportion() -> None:
    def program(npu: Rank) -> None:
        npu.confine("moe", {"cube": 1, "vector": 2})
        with npu.stream("moe"):
            exchange(npu)

    assert run(program, 4).us("out") == (0.0, 6004.0)


def test_an_engine_without_cores_moves_at_its_own_rate() -> None:
    machine = tiny({"fabric.box.link_rate": "100 GB/s"})
    own = machine.collectives["aiv"].model_copy(update={"cores": {}})
    machine = machine.model_copy(update={"collectives": {**machine.collectives, "aiv": own}})
    ran = run(exchange, 4, machine=machine)
    assert ran.us("out") == (0.0, 4.0 + 3000.0)
    assert ran.row("out")["bound_by"] == "engine"


def test_bytes_are_those_asked_for_at_both_ends() -> None:
    ran = run(exchange, 4)
    for rank in range(4):
        assert ran.moved["hbm", rank] == pytest.approx(6e6, rel=1e-6)
        assert ran.hbm_asked(rank) == pytest.approx(6e6)
        assert ran.moved["link", f"die {rank}", "box 0"] == pytest.approx(3e6, rel=1e-6)
        assert ran.moved["link", "box 0", f"die {rank}"] == pytest.approx(3e6, rel=1e-6)


def test_nothing_to_send_costs_the_start_up_and_a_rank_alone_costs_nothing() -> None:
    assert run(lambda npu: exchange(npu, 0, 0), 4).us("in") == (4.0, 5.0)
    assert run(exchange, 1).us("in") == (0.0, 0.0)


def test_two_roles_folded_give_the_unfolded_run() -> None:
    def program(npu: Rank) -> None:
        exchange(npu, received=9e6 if npu.coordinate("role") else 1e6)
        npu.launch(passes_mb(2), "after")

    def place(rank: int) -> dict[str, object]:
        return {"role": rank >= 6}

    folded, unfolded = run(program, 8, place=place, fold=True), run(program, 8, place=place)
    assert len(folded.roles.leaders) == 2
    assert all(unfolded.times()[key] == times for key, times in folded.times().items())


def test_a_collect_that_nobody_puts_for_names_who_is_missing() -> None:
    def program(npu: Rank) -> None:
        if npu.rank:
            npu.group("world").put("out", 1000, 1000, "aiv")
        npu.group("world").collect("in", "aiv")

    with pytest.raises(RunError, match=r"waits for ranks \[0\] of group 'world'"):
        run(program, 4)


def test_ports_of_a_die_reach_all_the_others() -> None:
    fabric = Fabric(load_machine("atlas_a3"), 32)
    ports = ports_of(fabric, tuple(range(32)), 5)
    assert [(out, count) for out, _, count in ports] == [
        (("die 5", "die 4"), 1), (("die 5", "node 0"), 14), (("die 5", "node 0"), 16),
    ]  # fmt: skip


def test_a_narrow_second_level_is_refused() -> None:
    spec = override(load_machine("atlas_a3"), {"fabric.supernode.link_rate": "1 TB/s"})
    with pytest.raises(InputError, match="narrower than the ports"):
        ports_of(Fabric(spec, 32), tuple(range(32)), 0)


def test_a_missing_link_is_gone_around_through_the_port() -> None:
    fabric = Fabric(override(load_machine("atlas_a3"), {"fabric.cut": "die 0 - die 1"}), 4)
    assert ports_of(fabric, (0, 1, 2, 3), 0) == ((("die 0", "node 0"), ("node 0", "die 0"), 3),)


def test_bytes_that_pass_through_other_dies_are_refused() -> None:
    fabric = Fabric(override(load_machine("atlas_a3"), {"fabric.cut": "die 1 - node 0"}), 4)
    with pytest.raises(InputError, match="bytes from die 1 to die 2 pass through other dies"):
        ports_of(fabric, (0, 1, 2, 3), 0)


def test_a_slow_link_between_switches_is_refused() -> None:
    """16 of the 30 peers behind a port are in the other node, so the uplink carries 53% of all ports below it."""
    members = tuple(range(32))
    for share, narrow in ((0.6, False), (0.4, True)):
        spec = override(load_machine("atlas_a3"), {"fabric.slow": f"node 0 - supernode 0: {share}"})
        if narrow:
            with pytest.raises(InputError, match="the link node 0 to supernode 0 is narrower than the ports below it"):
                ports_of(Fabric(spec, 32), members, 0)
        else:
            assert ports_of(Fabric(spec, 32), members, 0) == ports_of(Fabric(load_machine("atlas_a3"), 32), members, 0)


@pytest.mark.parametrize(("name", "ranks"), [("atlas_a3", 40), ("h800_cx7", 24), ("atlas_a2", 24), ("dgx_b200", 8),
                                             ("gpu_nodes", 24)])  # the last with switches further off than cards
def test_ports_from_levels_are_those_of_the_routes(name: str, ranks: int) -> None:
    machine = gpu_nodes() if name == "gpu_nodes" else load_machine(name)
    described, drawn = Fabric(machine, ranks), Fabric(machine, ranks)
    assert drawn.graph.number_of_nodes() >= ranks  # from now on the graph counts
    for members in (tuple(range(ranks)), tuple(range(1, ranks, 3)), (ranks - 1, 0)):
        for rank in members:
            assert ports_of(described, members, rank) == ports_of(drawn, members, rank)
        assert latency_s(described, members) == pytest.approx(latency_s(drawn, members), rel=1e-12)


def test_ways_around_a_missing_link_count_in_the_mean_latency() -> None:
    """Dies 0 and 1 of a package of Atlas A3 go by the switch of the node, 0.7 us instead of 0.2; own rows have none."""
    cut = Fabric(override(load_machine("atlas_a3"), {"fabric.cut": "die 0 - die 1"}), 32)
    assert mean_latency_s(Fabric(load_machine("atlas_a3"), 32), (0, 1)) == pytest.approx(0.2e-6 / 2)
    assert mean_latency_s(cut, (0, 1)) == pytest.approx(0.7e-6 / 2)
    assert latency_s(cut, (0, 1)) == pytest.approx(0.7e-6)


def test_links_exactly_as_wide_as_all_ports_behind_them_are_allowed() -> None:
    """From routes: all 16 ports of a node of 392 GB/s each, where all peers but one are in the other node."""
    machine = override(load_machine("atlas_a3"), {"fabric.cut": "die 2 - die 3"})
    fabric, members = Fabric(machine, 17), (0, 16)
    assert not fabric.as_described
    rate = fabric.link_rate("die 0", "node 0")
    fabric.graph.edges["node 0", "supernode 0"]["rate_bytes_per_s"] = rate
    assert ports_of(fabric, members, 0) == ((("die 0", "node 0"), ("node 0", "die 0"), 1),)
    fabric = Fabric(machine, 17)
    fabric.graph.edges["node 0", "supernode 0"]["rate_bytes_per_s"] = rate * 0.999
    with pytest.raises(InputError, match="narrower than the ports"):
        ports_of(fabric, members, 0)


def test_a_put_is_what_leaves_everybody_after_the_start_up_and_then_what_comes() -> None:
    machine = tiny({})
    put = Collective("put", "world", "aiv", sent_bytes=3000, received_bytes=6000)
    leaving, arriving = Lowering(Fabric(machine, 4), machine.collectives).lower(put, (0, 1, 2, 3))
    assert (leaving.latency_s, arriving.latency_s) == (4e-6, 0.0)
    assert [(one.size_bytes, one.ranks) for one in leaving.transfers] == [(3000, (rank,)) for rank in range(4)]
    assert [one.size_bytes for one in arriving.transfers] == [6000] * 4
    assert dict(leaving.transfers[2].loads) == {("hbm", 2): 3000, ("l2", 2): 3000, ("link", "die 2", "box 0"): 3000}
    assert dict(arriving.transfers[2].loads) == {("hbm", 2): 6000, ("l2", 2): 6000, ("link", "box 0", "die 2"): 6000}


def test_a_narrower_port_bounds_it() -> None:
    ran = run(exchange, 4, machine=tiny({"fabric.box.link_rate": "0.5 GB/s"}))
    assert ran.us("out") == (0.0, 6004.0)
    assert ran.row("out")["bound_by"] == "link box"
