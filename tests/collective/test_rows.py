"""Rows that cores handle one by one: what bounds a put of them, and what is left to do when they have come."""

from __future__ import annotations

import pytest

from simulator.collective.one_sided import mean_latency_s, received_s, rows_limit_bytes_per_s
from simulator.fabric.graph import Fabric
from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.spec.load import load_machine
from simulator.spec.machine import RowsSpec
from tests.replay.small import run, tiny

NUMBERS = {"send": (5, "us"), "core_rate": (1, "GB/s"), "latencies": (1, "1"), "in_flight": (1, "1"),
           "receive": (2, "us")}  # fmt: skip


def machine(**changes: tuple[float, str]):  # type: ignore[no-untyped-def]
    """`tiny`, whose vector cores handle rows."""
    quantities = {name: {"value": value, "unit": unit, "kind": "assumed", "source": "made for tests"}
                  for name, (value, unit) in (NUMBERS | changes).items()}
    spec = tiny({})
    engine = spec.collectives["aiv"].model_copy(update={"rows": RowsSpec.model_validate(quantities)})
    return spec.model_copy(update={"collectives": spec.collectives | {"aiv": engine}})


def rows(sent: int, received: int, size: int = 3_000_000):  # type: ignore[no-untyped-def]
    """A put of so many rows of 3 kB, and its collect."""

    def program(npu: Rank) -> None:
        npu.launch(Collective("put", "world", "aiv", sent_bytes=size, received_bytes=size, rows=sent), "out")
        npu.launch(Collective("collect", "world", "aiv", rows=received), "in")

    return program


def limit(sent_rows: int, cores: int, mean_s: float = 0.75e-6, **changes: tuple[float, str]) -> float:
    put = Collective("put", "world", "aiv", sent_bytes=3000 * sent_rows, rows=sent_rows)
    return rows_limit_bytes_per_s(machine(**changes).collectives["aiv"], put, cores, mean_s)


def test_the_worked_example() -> None:
    assert 3e6 / limit(1000, 8) == pytest.approx(125 * 8.75e-6)


def test_two_in_flight_hide_latencies_but_not_what_a_core_writes() -> None:
    assert 3e6 / limit(1000, 8, in_flight=(2, "1")) == pytest.approx(125 * 4.375e-6)
    assert 3e6 / limit(1000, 8, in_flight=(100, "1")) == pytest.approx(125 * 3e-6)


def test_the_busiest_core_decides() -> None:
    assert 3e3 * 9 / limit(9, 8) == pytest.approx(2 * 8.75e-6)
    assert 3e3 * 16 / limit(16, 8) == pytest.approx(2 * 8.75e-6)


def test_without_rows_nothing_is_bound() -> None:
    assert limit(0, 8) == float("inf")
    assert received_s(tiny({}).collectives["aiv"], Collective("collect", "world", "aiv", rows=9), 4) == 0.0


def test_rows_bound_the_put_and_what_has_come_takes_its_own_time() -> None:
    """1000 rows on 4 cores: 250 x 8.75 us after the start-up of 4 us, where the wire needs 3 ms at 1 GB/s."""
    ran = run(rows(1000, 7), 4, machine=machine())
    assert ran.us("out") == (0.0, 3004.0)  # the wire decides
    assert ran.us("in") == (3004.0, 3005.0 + 2 * 2)
    slow = run(rows(1000, 7), 4, machine=machine(send=(20, "us")))
    assert slow.us("out") == (0.0, pytest.approx(4 + 250 * 23.75))


def test_without_an_engine_of_rows_or_without_rows_fewer_cores_are_slower_in_proportion() -> None:
    """2 of 4 cores write 3 MB at 0.5 GB/s, in 6 ms; rows of an engine that handles them keep the whole wire busy."""

    def program(npu: Rank, count: int) -> None:
        npu.confine("moe", {"vector": 2})
        with npu.stream("moe"):
            rows(count, count)(npu)

    whole_us, free = 6004.0, machine(send=(0, "us"))
    for spec, count, end_us in ((tiny({}), 1000, whole_us), (machine(), 0, whole_us), (free, 100, 3004.0)):
        assert run(lambda npu, count=count: program(npu, count), 4, machine=spec).us("out")[1] == end_us


def test_the_mean_latency_counts_a_rank_itself_as_no_distance() -> None:
    assert mean_latency_s(Fabric(tiny({}), 4), (0, 1, 2, 3)) == pytest.approx(0.75e-6)


def test_it_is_that_of_all_routes() -> None:
    fabric = Fabric(load_machine("cloudmatrix384"), 64)
    members = tuple(range(0, 64, 2))
    by_route = sum(fabric.route(a, b).latency_s for a in members for b in members if a != b) / len(members) ** 2
    assert mean_latency_s(fabric, members) == pytest.approx(by_route)


def test_it_grows_with_every_level_that_is_crossed() -> None:
    fabric = Fabric(load_machine("cloudmatrix384"), 256)
    means = [mean_latency_s(fabric, tuple(range(n))) for n in (2, 8, 16, 32, 64, 256)]
    assert means == sorted(means)
    assert means[-1] < 2.1e-6
