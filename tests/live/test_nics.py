"""Machines with network cards: their numbers add up to what they were derived from, and variants change only that."""

from __future__ import annotations

import pytest

from simulator.spec.load import load_machine, override
from simulator.spec.nic import NicSpec, ProxySpec
from simulator.spec.typed_toml import SpecError, quantities


def parts(name: str) -> tuple[NicSpec, ProxySpec]:
    spec = load_machine(name)
    assert spec.nic is not None
    assert spec.proxy is not None
    return spec.nic, spec.proxy


@pytest.mark.parametrize(("machine", "base_us", "goodput"), [("p5en_h200", 32.1, 43.2), ("h200_cx7", 11.2, 46.7)])
def test_a_single_write_takes_what_the_fit_of_the_published_table_says(
    machine: str, base_us: float, goodput: float
) -> None:
    nic, proxy = parts(machine)
    cards = nic.per_die.count
    threads = proxy.submit.si + proxy.dequeue.si + cards * nic.post.si + 2 * proxy.poll.si + proxy.completion.si
    assert (threads + nic.latency.si + nic.acknowledge.si) * 1e6 == pytest.approx(base_us, rel=0.005)
    assert cards * nic.goodput.si / 1e9 == pytest.approx(goodput)


def test_posting_56_writes_takes_what_is_published() -> None:
    assert 56 * parts("p5en_h200")[0].post.si * 1e6 == pytest.approx(27.9, rel=0.01)
    assert 56 * parts("h200_cx7")[0].post.si * 1e6 == pytest.approx(8.5, rel=0.02)


def test_connectx_7_changes_nothing_but_the_card() -> None:
    efa, cx7 = (dict(quantities(load_machine(name))) for name in ("p5en_h200", "h200_cx7"))
    assert {key for key in efa if efa[key] != cx7[key]} <= {key for key in efa if key.startswith("nic.")}
    assert parts("p5en_h200")[0].delivery == "unordered"
    assert parts("h200_cx7")[0].delivery == "ordered"


def test_h800_is_another_die_with_less_memory_and_nvlink() -> None:
    h200, h800 = (dict(quantities(load_machine(name))) for name in ("h200_cx7", "h800_cx7"))
    changed = {key.partition(".")[0] for key in h200 if h200[key] != h800[key]}
    assert changed == {"chip", "fabric", "collectives"}
    assert h800["chip.hbm.capacity"].si == 80e9


def test_a_machine_without_cards_has_none_and_a_wrong_number_is_refused() -> None:
    assert load_machine("atlas_a3").nic is None
    with pytest.raises(SpecError, match=r"nic\.post"):
        override(load_machine("p5en_h200"), {"nic.post": "3 GB/s"})
