"""Where engines stand, and what lies between them and the memories of hosts."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.serving.links import Links, memory_of
from simulator.serving.loop import Loop
from simulator.serving.settings import Service
from tests.serving.services import drawn, instances, service


def links(of: Service) -> Links:
    return Loop(of, drawn(1))._tiers.links


def test_engines_stand_one_after_the_other() -> None:
    found = links(service(instances("tp=2", count=2), prefill=instances("tp=1,dp=2")))
    assert [found.ranks_of(engine, group) for engine, group in ((0, 0), (0, 1), (1, 0), (2, 0))] == [
        range(1), range(1, 2), range(2, 4), range(4, 6)]  # fmt: skip
    assert found.ranks == 6


def test_a_pool_on_several_hosts_crosses_the_fabric() -> None:
    """Engines of eight cards, each with a host of its own: half of the pool is there, half over the network."""
    found = links(service(instances("tp=8", count=2)))
    loads, latency_s = found.to_hosts(1, 0, True, True)
    shares = {capacity.name: share for capacity, share in loads}
    assert latency_s > 0
    assert {name: share for name, share in shares.items() if "memory" in name} == {
        "memory of host 0": pytest.approx(4.0), "memory of host 1": pytest.approx(4.0)}  # fmt: skip
    assert {share for name, share in shares.items() if "host link of rank" in name} == {1.0}
    into = [share for name, share in shares.items() if " to die " in name]
    assert into == [pytest.approx(0.5)] * 8
    out, _ = found.to_hosts(1, 0, True, False)
    assert len([capacity for capacity, _ in out if capacity.name.startswith("die ")]) == 8


def test_the_own_host_is_behind_its_links_alone() -> None:
    found = links(service(instances("tp=8", count=2)))
    near, latency_s = found.to_hosts(1, 0, False, True)
    assert latency_s == 0.0
    assert {capacity.name for capacity, _ in near} == {
        "memory of host 1", *(f"host link of rank {rank}, in" for rank in range(8, 16))}  # fmt: skip
    memory = memory_of(service(instances()).engines.step.machine_spec())
    assert {capacity.rate_bytes_per_s for capacity, _ in near} == {memory.link.si, memory.rate.si}


def test_hosts_without_engines_count_as_one_with_all_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool on six hosts, engines on two: as if every host were looked at."""
    of = service(instances("tp=8", count=2), pool={"size_gib": 1.0, "hosts": 6})
    short, latency_s = links(of).to_hosts(1, 0, True, True)
    whole = links(of)
    monkeypatch.setattr(whole, "_pool", lambda _: [(host, 1, 1 / 6) for host in range(6)])
    loads, same_s = whole._to_hosts(1, 0, True, True)
    assert latency_s == same_s
    each = {capacity.name: share for capacity, share in loads}
    for capacity, share in short:
        assert share == pytest.approx(each[capacity.name]), capacity.name
    assert len(short) < len(loads)
    left_out = {name: share for name, share in each.items() if name not in {one.name for one, _ in short}}
    assert max(left_out.values()) <= max(share for one, share in short if "memory of host 2" in one.name)


def test_a_pool_on_more_hosts_than_the_machine_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"dgx_h100 has 512 dies .* were asked for: pool\.hosts"):
        links(service(pool={"size_gib": 1.0, "hosts": 1000}))


def test_a_machine_whose_file_has_no_host_memory_is_named() -> None:
    machine = instances()["step"].replace({"machine": "h20_node"}).machine_spec()
    with pytest.raises(InputError, match=r"h20_node: its file has no table \[host\.memory\] \(dies that share"):
        memory_of(machine)
