"""What network cards move shares memory, PCIe and links with everything else on a run's network, as max-min says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simulator.live.host import Host
from simulator.live.thread import Label
from simulator.live.write import Write
from simulator.model import ops
from simulator.physics.flows import Flow
from simulator.program.rank import Rank
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Workload
from simulator.study.simulate import Result, simulate
from tests.law.timeline_laws import check_timeline
from tests.live.live_hosts import US, Wire

KB = 1000


def post(wire: Wire, source: int, target: int, card: int = 0, size: int = 20 * KB) -> None:
    wire.hosts[source].engine.nics[card].post(Write(Label(f"{source}"), source, target, size, "x"))


def sent_us(wire: Wire, rank: int, card: int = 0) -> float:
    """When the last byte left a card."""
    return wire.rows.of(rank, f"nic {card} out")[-1][2]


# --- by hand: 1 GB/s a card, 10 us latency ----------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "writes"), [("sender", [(0, 1, 0), (0, 2, 1)]), ("receiver", [(0, 2, 0), (1, 2, 1)])])
def test_two_cards_of_one_die_share_its_pcie_link(side: str, writes: list[tuple[int, int, int]]) -> None:
    """1.25 GB/s for two cards of 1 GB/s: 20 kB take 32 us through each, and 20 us through one alone."""
    for number, length in ((1, 20), (2, 32)):
        wire = Wire(3, nic__pcie="1.25 GB/s")
        for source, target, card in writes[:number]:
            post(wire, source, target, card)
        wire.env.run()
        assert wire.env.now / US == pytest.approx(10 + length + 5, abs=0.1)  # a GPU's second write starts 0.1 us later
        assert sent_us(wire, 0) == pytest.approx(length if side == "sender" else 20, abs=0.1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_write_and_a_kernel_share_memory_at_either_end(rank: int) -> None:
    """1.5 GB/s of memory: the kernel gets 0.75 while the write is there (0.75 GB/s as well), and all of it before and
    after. The write alone takes 20 us, and so 26.67 here."""
    wire = Wire(2, chip__hbm__peak="1.5 GB/s", chip__hbm__efficiency="1")
    post(wire, 0, 1)
    ended: list[float] = []
    kernel = Flow(60 * KB, [(wire.capacities["hbm", rank], 1.0)])
    wire.network.start(kernel, lambda _: ended.append(wire.env.now / US))
    wire.env.run()
    assert ended == pytest.approx([(60 + 20) / 1.5])
    assert wire.rows.of(1, "nic 0 in")[0][2] == pytest.approx(10 + 80 / 3)
    assert sent_us(wire, 0) == pytest.approx(20 if rank else 80 / 3)


def test_links_of_the_fabric_carry_what_leaves_a_node_and_nothing_else() -> None:
    for target, length in ((1, 20), (8, 40)):
        wire = Wire(9, fabric__cluster__link_rate="0.5 GB/s")
        post(wire, 0, target)
        wire.env.run()
        assert wire.env.now == (10 + length + 5) * US


def test_nothing_arrives_before_it_has_left() -> None:
    """A slow card's write has all its bytes there when the last one has crossed, and leaves the port to others."""
    wire = Wire(3)
    wire.hosts[0].engine.nics[0].struck("a fault", 0.1)
    post(wire, 0, 2)
    post(wire, 1, 2)
    wire.env.run()
    assert [row[2] for row in wire.rows.of(2, "nic 0 in")] == [50.0, 210.0]


# --- in a run: kernels of the GPU beside writes of its host ----------------------------------------------------------


def _beside(size: int) -> Result:
    """A kernel bound by HBM on each of 16 ranks, and a write from rank 0 to rank 8."""

    def program(npu: Rank, case: Case) -> None:
        npu.program.captured = True
        npu.set_flag("ask", "asked")
        npu.launch(ops.copy(2e9), "kernel")

    def live(host: Host, case: Case) -> Any:
        seen = yield from host.until_flag("asked")
        yield host.env.timeout(100 * US)  # the kernel is in memory by then
        if size and not host.rank:
            done = yield from host.engine.write(host.proxy, Label("write"), 8, size, because=seen)
            yield from host.until(done, "the write")

    nothing: Callable[..., Any] = lambda *_: {}  # noqa: E731
    workload = Workload(program, nothing, nothing, lambda _: [], lambda _, s: {"latency_ms": s * 1e3}, live)
    return simulate(load_scenario("pplx:efa_ep16").variant(name="beside", cards=16, expected=(), workload=workload))


def test_a_write_lengthens_a_kernel_by_the_time_of_its_bytes_in_memory() -> None:
    """Max-min gives the cards all they can drive, and the kernel the rest of HBM."""
    alone, result = _beside(0), _beside(8_000_000)
    check_timeline(result.columns)
    hbm = result.machine.chip.hbm
    longer = np.subtract(*((one.columns["end_ps"] - one.columns["start_ps"])[one.columns["name"] == "kernel"]
                           for one in (result, alone)))
    expected = np.zeros(16)
    expected[[0, 8]] = 8e6 / (hbm.peak.si * hbm.efficiency.si) * 1e12
    assert longer == pytest.approx(expected, abs=2)
