"""A device of known laws is measured: the fit gives its numbers back, and the check of two streams says what is true.

The device's streams share by code of their own (`fake.max_min`), or by another rule, which the check must show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.calibrate import library_fit, protocol_fit
from simulator.probe import part, report
from simulator.probe.kernel import Kernel
from simulator.probe.measure import measure, record_of
from simulator.probe.plan import plan
from simulator.probe.record import Record
from simulator.probe.report import Findings
from simulator.probe.streams import PLENTY, compare, given, simulated_ends
from simulator.spec.load import load_machine
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.probe import fake
from tests.probe.fake import CHIP, HBM, KERNELS, FakeDevice, by_demand, max_min


def recorded(folder: Path, rates: fake.Rates, *only: str, quick: bool = True, gpus: int = 1) -> Record:
    """What a fake device gives."""
    device, path = FakeDevice(rates, gpus), folder / "probe.json"
    record = record_of(path, device, "2026-01-31")
    return measure(device, plan(record.about, quick, only), record, path)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Findings]:
    """Of a quick probe of a device that shares max-min; the search is short, as the device has no noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_fit, "RESTARTS", 0)
        patch.setattr(library_fit, "REFINED", 1)
        yield report.findings(recorded(tmp_path_factory.mktemp("probe"), max_min))


@pytest.fixture(scope="module")
def machine(found: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("machine") / "probe.toml"
    path.write_text(found.part, encoding="utf-8")
    return path


def test_rates_and_laws_are_those_of_the_device(found: Findings) -> None:
    assert found.reached is not None
    assert found.reached.hbm_bytes_per_s == pytest.approx(HBM, rel=0.01)
    assert found.reached.core_bytes_per_s == pytest.approx(fake.LOOP_CORE, rel=0.01)
    assert 0.8 * CHIP.peak["sm"]["bf16"].si < found.reached.flops_per_s["bf16"] < CHIP.peak["sm"]["bf16"].si
    fits = {one.name: one for one in found.families if one.found}
    assert set(fits) == {"vector", "gemm_bf16", "context_attention", "generation_attention"}
    for one in fits.values():
        assert one.found is not None
        assert all(error.median < 0.04 for error in one.found.errors.values()), one
    vector = fits["vector"].found
    assert vector is not None
    assert vector.numbers["floor"] == pytest.approx(KERNELS["vector"].floor_s, rel=0.05)
    assert vector.numbers["hbm_share"] == pytest.approx(0.75, rel=0.02)


def test_the_part_is_a_machine_with_the_numbers_that_were_measured(found: Findings, machine: Path) -> None:
    spec = load_machine(machine)
    assert report.is_whole(found)
    assert spec.chip.hbm.peak.si == CHIP.hbm.peak.si
    assert spec.chip.hbm.efficiency.si == pytest.approx(0.94, rel=0.01)
    assert spec.host.launch_eager.si == pytest.approx(fake.LAUNCH_S["eager"])
    assert spec.host.launch_graph.si == pytest.approx(fake.LAUNCH_S["graph_launch"])
    gemm = spec.kernels_of(part.GENERATION)["gemm_bf16"]
    assert gemm.floor.kind == "fitted"
    assert gemm.floor.source == "braid probe on Fake H100, driver 1, cuda 13.0, 2026-01-31"


def test_other_files_extend_it_and_scenarios_run_on_it(machine: Path) -> None:
    slower = machine.with_name("slower.toml")
    slower.write_text('extends = "./probe.toml"\nname = "slower"\n[chip.hbm]\nefficiency = '
                      '{ value = 0.47, unit = "1", kind = "assumed", source = "a question" }\n', encoding="utf-8")
    times = []
    for path in (machine, slower):
        scenario = load_scenario("transformer:decode").replace(
            {"model": "llama_3_1_8b", "machine": str(path), "kernels": part.GENERATION, "cards": "1", "layout.tp": "1",
             "batch.requests": "8", "batch.context": "1024"})  # fmt: skip
        times.append(simulate(scenario, record=False).metrics["tpot_ms"])
    assert 1.6 < times[1] / times[0] < 2.1


def test_a_device_that_shares_max_min_is_predicted(found: Findings) -> None:
    assert len(found.pairs) == 6
    for pair in found.pairs:
        assert [abs(one.error) for one in pair.streams] == pytest.approx([0.0, 0.0], abs=0.02), pair.title
    assert found.errors["max-min"] < 0.005
    assert found.errors["no contention"] > found.errors["cores alone"] > 0.01
    loops = next(pair for pair in found.pairs if pair.title.startswith("two copy loops")).streams
    assert [one.uncontended_s - one.start_s for one in loops] == pytest.approx([one.alone_s[-1] for one in loops])
    assert max(one.stretch for pair in found.pairs for one in pair.streams) > 1.9


def test_a_device_that_shares_otherwise_is_not(found: Findings, machine: Path, tmp_path: Path) -> None:
    device, spec, path = FakeDevice(by_demand), load_machine(machine), tmp_path / "probe.json"
    loops = [one for one in plan(device.about(), only=("streams",)) if "blocks 8 " in one.key and "| copy" in one.key]
    record = measure(device, loops, record_of(path, device, "2026-01-31"), path)
    small, large = next(iter(compare(record, spec.chip, spec.kernels_of(part.GENERATION)))).streams
    wanted = 8 * fake.LOOP_CORE + HBM  # of half of the SMs, no more than there is
    assert small.stretch == pytest.approx(wanted / HBM, rel=0.02)  # all are slowed alike, but for its last kernel
    assert small.simulated_stretch == pytest.approx(1.0, abs=0.001)  # what asks for less than its share gets it
    assert small.error == pytest.approx(HBM / wanted - 1.0, abs=0.02)
    assert large.error > 0.01


@pytest.mark.parametrize("kernel", [
    Kernel("gemm_bf16", (4096, 4096, 4096)), Kernel("gemm_bf16", (8, 8192, 8192)), Kernel("elementwise", (2**28,)),
    Kernel("device_copy", (2**28,)), Kernel("copy_loop", (2**27, 20, 1)), Kernel("copy_loop", (2**22, 20, 30)),
    Kernel("generation_attention", (64, 4096, 32, 8, 128)), Kernel("context_attention", (1, 4096, 32, 8, 128)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("slower", [0.8, 1.0, 1.7])
def test_a_kernel_alone_takes_as_long_as_given(kernel: Kernel, slower: float) -> None:
    alone_s = slower * FakeDevice(max_min).kernel_s(kernel, 1)[0]
    one = given(kernel, alone_s, CHIP, KERNELS)
    for memory in (1.0, PLENTY):
        assert simulated_ends([[one, one]], [0.0], CHIP, memory)[0] == pytest.approx([alone_s, 2 * alone_s], rel=1e-6)


def test_pictures_show_both_streams_measured_and_simulated(found: Findings) -> None:
    text = report.markdown(found)
    lines = [line for line in text.splitlines() if line.startswith(("measured ", "simulated "))]
    assert len(lines) == 4 * len(found.pairs)
    assert len({len(line) for line in lines}) == 1
    serial = next(pair for pair in found.pairs if pair.title == "two compute-bound GEMMs")
    ahead, beside, *_ = report.picture(serial)
    drawn = ahead.partition("|")[2]
    assert {"G", "g"} < set(drawn)
    assert drawn.rstrip("| ") != beside.partition("|")[2].rstrip("| ")  # they alternate, the second behind the first


def test_what_could_not_be_measured_is_said(tmp_path: Path) -> None:
    record = recorded(tmp_path, max_min, "copy", quick=False)
    text = report.markdown(report.findings(record))
    assert "device_copy buffer_bytes 0.0625 MiB: too small for this device" in text
    assert "Too little was measured" in text
    assert not report.is_whole(report.findings(record))


def test_several_gpus_give_links_and_an_engine(tmp_path: Path, found: Findings,
                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(protocol_fit, "STARTS", 8)
    record = recorded(tmp_path, max_min, "collectives", "peers", gpus=4)
    both = replace(found, record=record)
    text = part.text(found.record.model_copy(update={
        "about": record.about, "rows": [*found.record.rows, *record.rows]}), part.chip_text(record, found.reached), [])
    path = tmp_path / "node.toml"
    path.write_text(text, encoding="utf-8")
    spec = load_machine(path)
    assert spec.fabric[0].size.count == 4
    assert spec.fabric[0].link_rate.si == pytest.approx(fake.LINK, rel=0.01)
    ring = spec.collectives["nccl"].protocols["all_gather_ring_ll"]
    assert ring.startup.si + 3 * ring.startup_per_peer.si == pytest.approx(fake.NCCL_START_S, rel=0.2)
    assert ring.rate.si == pytest.approx(fake.LINK, rel=0.05)
    assert "all_reduce of 256 B, 4 GPUs" in report.markdown(both)
