"""Writes between two hosts over EFA and ConnectX-7, against the published table that gave the cards' parameters."""

from __future__ import annotations

from simulator.study.scenario import Expected, Scenario, Source
from workloads.point_to_point import POINT_TO_POINT, Knobs, Sizes

_expect = Source("TransferEngine and MoE kernels of Perplexity, arXiv 2510.27656, point-to-point table").expects
SINGLE = {"efa": (16, 54, 145, 336), "cx7": (44, 116, 245, 378)}  # Gb/s at 64 KiB, 256 KiB, 1 MiB, 32 MiB
MISSES = {
    ("cx7", "paged_8KiB_gbit_s"): "; it lies below both the rate of pages and the goodput that its neighbours show",
    ("efa", "paged_64KiB_gbit_s"): "; the goodput is that of single writes, pages reach 5% more",
}
PAGED = {"efa": (17, 138, 274, 364), "cx7": (91, 320, 367, 370)}  # Gb/s at 1, 8, 16, 64 KiB


def efa() -> Scenario:
    """Two EFA cards of 200 Gb/s."""
    return Scenario(
        title="Point-to-point writes over two EFA cards",
        machine="p5en_h200",
        model="deepseek_r1",
        kernels="pplx_2025",
        cards=2,
        batch=Sizes(),
        knobs=Knobs(),
        workload=POINT_TO_POINT,
        expected=(*_published("efa"), _aggregated()),
    )


def efa_one_card() -> Scenario:
    """One EFA card of 200 Gb/s."""
    return efa().variant(
        title="Point-to-point writes over one EFA card", machine_changes={"nic.per_die": "1"}, expected=()
    )


def cx7() -> Scenario:
    """One ConnectX-7 of 400 Gb/s."""
    return efa().variant(
        title="Point-to-point writes over one ConnectX-7", machine="h200_cx7", expected=_published("cx7")
    )


def _aggregated() -> Expected:
    return _expect("pplx.multi_nic", "paged_64KiB_gbit_s", 2.0, ": two cards of 200 Gb/s are used as one of 400",
                   against="point_to_point:efa_one_card")


def _published(nic: str) -> tuple[Expected, ...]:
    """Latency and goodput are a fit of the single writes, the time to post a page is that of 1 KiB pages."""
    sizes = Sizes()
    single = [(f"single_{kib}KiB_gbit_s", value, "fit")
              for kib, value in zip(sizes.single_kib, SINGLE[nic], strict=True)]
    paged = [(f"paged_{kib}KiB_gbit_s", value, "predict" if kib > 1 else "fit")
             for kib, value in zip(sizes.page_kib, PAGED[nic], strict=True)]
    return tuple(
        _expect(f"pplx.p2p.{nic}", metric, value, MISSES.get((nic, metric), ""), role)  # type: ignore[arg-type]
        for metric, value, role in single + paged
    )  # fmt: skip
