"""NVIDIA's machines, put together from parts: what each must have, and what is published of it."""

from __future__ import annotations

import pytest

from simulator.calibrate.collectives import simulated
from simulator.calibrate.protocol_fit import Row
from simulator.spec.load import disagreements, load_machine, override
from simulator.spec.machine import MachineSpec
from simulator.spec.protocols import ALGORITHMS_OF
from simulator.spec.typed_toml import SpecError, validate

DGX = {"dgx_a100": 8, "dgx_h100": 8, "dgx_h200": 8, "dgx_b200": 8, "gb200_nvl72": 72, "hgx_h20": 8, "h800_cluster": 8}
FITTED = [name for name in DGX if name not in ("hgx_h20", "h800_cluster")]


@pytest.mark.parametrize("name", DGX)
def test_a_machine_has_nodes_a_network_and_a_card(name: str) -> None:
    machine = load_machine(name)
    assert [level.name for level in machine.fabric] == ["node", "cluster"]
    assert machine.fabric[0].size.count == DGX[name]
    assert machine.fabric[1].size.count > 1
    assert machine.nic is not None
    assert machine.proxy is not None
    assert machine.fabric[1].link_rate.si >= machine.nic.goodput.si * machine.nic.per_die.count
    assert "nccl" in machine.collectives


@pytest.mark.parametrize("name", DGX)
def test_a_chip_computes_in_the_dtypes_that_it_has(name: str) -> None:
    peak = load_machine(name).chip.peak["sm"]
    assert peak["fp32"].si < peak["bf16"].si
    narrow = {"int8"} if name == "dgx_a100" else {"fp8"}
    assert all(peak[dtype].si == pytest.approx(2 * peak["bf16"].si, rel=0.01) for dtype in narrow)
    assert ("nvfp4" in peak) == (name in ("dgx_b200", "gb200_nvl72"))
    assert ("fp8" in peak) == (name != "dgx_a100")


@pytest.mark.parametrize("name", FITTED)
def test_weights_can_be_loaded_beside_kernels(name: str) -> None:
    chip = load_machine(name).chip
    assert {"sm", "sdma", "copy_engine"} <= set(chip.cores)
    assert set(chip.cores) == set(chip.l2.port_rate)
    assert chip.l2.rate.si > 2 * chip.hbm.peak.si
    assert 0.85 < chip.hbm.efficiency.si < 1 > chip.hbm.usable.si > 0.9


@pytest.mark.parametrize(("name", "nccl_us", "one_shot_us"), [("dgx_h200", 18.3, 3.5), ("dgx_b200", 26.6, 5.9)])
def test_the_allreduce_of_a_row_of_7168_on_8_gpus(name: str, nccl_us: float, one_shot_us: float) -> None:
    row, machine = Row(8, 2 * 7168.0, 0.0), load_machine(name)
    assert simulated(machine, "nccl", "all_reduce")(row) * 1e6 == pytest.approx(nccl_us, rel=0.1)
    own = simulated(machine, "custom_all_reduce_trtllm", "all_reduce")
    assert own(row) * 1e6 == pytest.approx(one_shot_us, rel=0.1)


@pytest.mark.parametrize("name", FITTED)
def test_a_larger_buffer_takes_longer(name: str) -> None:
    machine = load_machine(name)
    for engine, spec in machine.collectives.items():
        for kind in {protocol.kind for protocol in spec.protocols.values()}:
            seconds = simulated(machine, engine, kind)
            times = [seconds(Row(4, 4.0 ** power, 0.0)) for power in range(4, 16)]
            assert times == sorted(times), f"{engine} {kind}"


@pytest.mark.parametrize("name", ["dgx_h100", "dgx_b200"])
def test_a_slower_port_slows_large_buffers_alone(name: str) -> None:
    machine = load_machine(name)
    slow = override(machine, {"fabric.node.link_rate": "100 GB/s"})
    small, large = Row(8, 2.0**10, 0.0), Row(8, 2.0**28, 0.0)
    for engine in (engine for engine, spec in machine.collectives.items() if spec.protocols):
        times = [simulated(one, engine, "all_reduce") for one in (machine, slow)]
        assert times[1](small) == pytest.approx(times[0](small), rel=0.05)
        assert times[1](large) > 2 * times[0](large)


def test_a_protocol_of_an_algorithm_that_its_kind_lacks_is_refused() -> None:
    tables = load_machine("dgx_h100").model_dump()
    tables["collectives"]["nccl"]["protocols"]["all_gather_ring_ll"]["algorithm"] = "nvls"
    with pytest.raises(SpecError, match=r"protocols\.all_gather_ring_ll\.algorithm: got 'nvls': .* direct, ring"):
        validate(MachineSpec, tables, "dgx_h100", disagreements)
    assert "nvls" in ALGORITHMS_OF["all_reduce"]


def test_nodes_of_h20_are_h20_nodes() -> None:
    node, cluster = load_machine("h20_node"), load_machine("hgx_h20")
    assert cluster.chip == node.chip
    assert node.collectives.items() <= cluster.collectives.items()
    assert node.kernels.items() <= cluster.kernels.items()
    assert cluster.fabric[0] == node.fabric[0]
