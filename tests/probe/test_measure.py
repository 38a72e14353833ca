"""A probe that is interrupted keeps what it has and goes on from there; files that are not its own are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import InputError, Interrupted
from simulator.probe import record as records
from simulator.probe.device import About
from simulator.probe.kernel import SIZES, Kernel
from simulator.probe.measure import measure, record_of
from simulator.probe.plan import SECTIONS, plan
from tests.probe.fake import FakeDevice, max_min

ABOUT = FakeDevice(max_min).about()


def test_a_plan_covers_its_sections_and_leaves_out_what_does_not_fit() -> None:
    whole, quick = plan(ABOUT), plan(ABOUT, quick=True)
    assert {one.section for one in whole} == set(SECTIONS) - {"collectives", "peers"}
    assert len({one.key for one in whole}) == len(whole)
    assert len(quick) < len(whole) / 3
    several = ABOUT.model_copy(update={"gpus": 4, "dtypes": ("bf16", "fp8")})
    assert {one.section for one in plan(several)} == set(SECTIONS)
    assert any(one.key.startswith("gemm_fp8") for one in plan(several))
    small = ABOUT.model_copy(update={"memory_bytes": 2e9})
    assert len(plan(small)) < len(whole)
    assert {one.section for one in plan(ABOUT, only=("copy",))} == {"copy"}
    with pytest.raises(InputError, match=r"no such section \(did you mean 'streams'\?\); there are gemm, attention"):
        plan(ABOUT, only=("stream",))


def test_ctrl_c_keeps_what_was_measured_and_the_next_probe_goes_on(tmp_path: Path) -> None:
    path, stopped = tmp_path / "probe.json", FakeDevice(max_min, fails_after=7)
    wanted = plan(ABOUT, True, ("gemm", "launches"))
    with pytest.raises(Interrupted, match=rf"7 of {len(wanted)} measurements are kept in .*probe\.json; the same"):
        measure(stopped, wanted, record_of(path, stopped, "2026-01-31"), path)
    assert len(records.read(path).rows) == 7
    assert [file.name for file in tmp_path.iterdir()] == ["probe.json"]
    again, told = FakeDevice(max_min), []
    record = measure(again, wanted, record_of(path, again, "2026-02-01"), path, lambda share, what: told.append(share))
    assert again.asked == len(wanted) - 7
    assert (told[0], told[-1]) == (7 / len(wanted), 1.0)
    assert record.keys == {one.key for one in wanted}
    assert records.read(path) == record
    assert record.date == "2026-01-31"


def test_what_was_left_out_is_tried_again(tmp_path: Path) -> None:
    path, device = tmp_path / "probe.json", FakeDevice(max_min)
    wanted = plan(ABOUT, False, ("copy",))
    measure(device, wanted, record_of(path, device, "2026-01-31"), path)
    again = FakeDevice(max_min)
    record = measure(again, wanted, record_of(path, again, "2026-01-31"), path)
    assert again.asked == 1
    assert len(record.rows) == len(wanted)


def test_measurements_of_another_device_are_not_mixed(tmp_path: Path) -> None:
    path, device = tmp_path / "probe.json", FakeDevice(max_min)
    records.write(records.Record(date="2026-01-31", about=ABOUT.model_copy(update={"name": "Other"})), path)
    with pytest.raises(InputError, match=r"another device or software \(name Other there, Fake H100 here\)"):
        record_of(path, device, "2026-01-31")


@pytest.mark.parametrize(("text", "said"), [
    ("{", "not JSON"), ("[]", "format is None"), ('{"format": "braid probe 0"}', "this Braid reads 'braid probe 1'"),
    ('{"format": "braid probe 1", "date": "today"}', "about: Field required"),
    ('{"format": "braid probe 1", "date": "today", "about": {"name": "x", "sms": 1, "memory_bytes": 1, "l2_bytes": 1}, '
     '"rows": [{"section": "gemm", "key": "a", "seconds": []}]}', r"rows\[0\]: kernel, seconds: missing or empty"),
    ('{"format": "braid probe 1", "date": "today", "about": {"name": "x", "sms": 1, "memory_bytes": 1, "l2_bytes": 1}, '
     '"rows": [{"section": "gemm", "key": "a", "kernel": 3, "seconds": [1]}]}', r"kernel: got 3: must be dict"),
    ('{"format": "braid probe 1", "date": "today", "about": {"name": "x", "sms": 1, "memory_bytes": 1, "l2_bytes": 1}, '
     '"rows": [{"section": "gemm", "key": "a", "kernel": {"a": 1}, "seconds": ["x"]}]}', r"got .'x'.: must be times"),
])  # fmt: skip
def test_files_that_are_no_measurements_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "probe.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        records.read(path)
    with pytest.raises(InputError, match="cannot read"):
        records.read(tmp_path / "none.json")


def test_the_file_explains_itself(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    records.write(records.Record(date="2026-01-31", about=About(name="x", sms=1, memory_bytes=1, l2_bytes=1)), path)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["format"] == "braid probe 1"
    assert "together" in written["schema"]["streams"]
    assert written["rows"] == []


@pytest.mark.parametrize("family", SIZES)
def test_kernels_come_back_from_their_objects(family: str) -> None:
    kernel = Kernel(family, tuple(range(2, 2 + len(SIZES[family]))))
    assert Kernel.of(kernel.as_object()) == kernel
    with pytest.raises(InputError, match="missing or wrong"):
        Kernel.of({"family": family})
