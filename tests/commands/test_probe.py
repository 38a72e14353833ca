"""`braid probe` from the command line: machine and report from a file, and what is said without PyTorch or a GPU."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from simulator import probe
from simulator.commands import probe as command
from simulator.spec.load import load_machine
from tests.conftest import Outcome
from tests.probe.fake import FakeDevice, max_min

Braid = Callable[..., Outcome]
FEW = "copy,launches,streams"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDevice:
    """What the command measures on, in a folder of its own."""
    found = FakeDevice(max_min)
    monkeypatch.setattr(command, "open_device", lambda: found)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_probe_leaves_three_files_and_goes_on_where_it_was(braid: Braid, device: FakeDevice) -> None:
    done = braid("probe", "--quick", "--only", FEW)
    assert done.code == 0, done.err
    assert {file.name for file in Path("probe").iterdir()} == {"probe.json", "probe.toml", "report.md"}
    assert "two compute-bound GEMMs" in done.out
    assert "100% measured" in done.err
    asked = device.asked
    assert braid("probe", "--quick", "--only", FEW).code == 0
    assert device.asked == asked


def test_machine_and_report_are_made_again_from_the_file(braid: Braid, device: FakeDevice, tmp_path: Path) -> None:
    braid("probe", "--quick", "--only", FEW)
    first = {name: (tmp_path / "probe" / name).read_text() for name in ("probe.toml", "report.md")}
    device.fails_after = 0
    done = braid("probe", "--from", "probe/probe.json", "--out", "again", "--json")
    assert done.code == 0, done.err
    assert {name: (tmp_path / "again" / name).read_text() for name in first} == first
    assert len(done.json["streams"]) == 6
    assert done.json["median_errors"]["max-min"] < 0.02
    assert load_machine(tmp_path / "again" / "probe.toml").chip.cores["sm"].count == 132


def test_ctrl_c_says_what_was_kept(braid: Braid, device: FakeDevice) -> None:
    device.fails_after = 5
    done = braid("probe", "--quick")
    assert done.code == 130
    assert "measurements are kept in probe/probe.json; the same command goes on from there" in done.err
    assert "Traceback" not in done.err


def test_without_pytorch_the_extra_is_named(braid: Braid, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("simulator.probe.torch")]:
        monkeypatch.delitem(sys.modules, name)
    done = braid("probe")
    assert done.is_one_clear_message(2)
    assert "pip install '.[probe]'" in done.err
    assert not list(tmp_path.iterdir())


def test_a_computer_without_a_gpu_is_told_so(braid: Braid, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    torch = MagicMock(__version__="2.11")
    torch.cuda.is_available.return_value = False
    for name in ("torch", "torch.nn", "torch.nn.attention"):
        monkeypatch.setitem(sys.modules, name, torch)
    for name in ("torch_device", "torch_group", "torch_kernels"):
        monkeypatch.delitem(sys.modules, f"simulator.probe.{name}", raising=False)
    done = braid("probe")
    assert done.is_one_clear_message(2)
    assert "PyTorch 2.11 sees no GPU here" in done.err
    for name in ("torch_device", "torch_group", "torch_kernels"):
        monkeypatch.delitem(sys.modules, f"simulator.probe.{name}", raising=False)


def test_only_what_runs_on_a_gpu_needs_the_extra() -> None:
    """Everything else of the folder works on a computer without PyTorch."""
    for file in sorted(Path(probe.__file__).parent.glob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        needs = {name.partition(".")[0] for name in names} & {"torch", "triton"}
        assert bool(needs) == (file.stem.startswith("torch_") or file.stem == "copy_loop"), file


@pytest.mark.parametrize(("words", "said"), [
    (("--only", "gem"), "no such section (did you mean 'gemm'?)"),
    (("--from", "none.json"), "cannot read 'none.json'"),
    (("--from", "none.json", "--quick"), "--from measures nothing"),
    (("--out", "there/is/no/folder"), "cannot write to"),
])  # fmt: skip
def test_mistakes_are_told(braid: Braid, device: FakeDevice, words: tuple[str, ...], said: str) -> None:
    done = braid("probe", *words)
    assert done.code == 2
    assert said in done.err


