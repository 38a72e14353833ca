"""What is read once is read again when a file of it has changed, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.spec.load import load_machine
from simulator.spec.typed_toml import SpecError

OWN = 'extends = "mine_chip.toml"\nname = "mine"\n'


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine of one's own that is a changed chip of another file, which changes one of the library's."""
    (tmp_path / "mine_chip.toml").write_text('extends = "dgx_h100"\n')
    (tmp_path / "mine.toml").write_text(OWN)
    return tmp_path / "mine.toml"


def test_a_machine_is_put_together_once(machine: Path) -> None:
    assert load_machine(machine) is load_machine(str(machine))
    assert load_machine("dgx_h100") is load_machine("dgx_h100")
    assert load_machine(machine).name == "mine"


@pytest.mark.parametrize("file", ["mine.toml", "mine_chip.toml"])
def test_a_file_that_changes_is_read_again(machine: Path, file: str) -> None:
    before = load_machine(machine)
    changed = machine.parent / file
    changed.write_text(changed.read_text() + 'title = "another"\n')
    assert (before.title, load_machine(machine).title) == ("NVIDIA DGX H100", "another")


def test_the_same_path_from_another_folder_is_another_file(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = machine.parent / "other"
    other.mkdir()
    (other / "mine.toml").write_text('extends = "dgx_h200"\nname = "theirs"\n')
    found = []
    for folder in (machine.parent, other):
        monkeypatch.chdir(folder)
        found.append(load_machine("./mine.toml").name)
    assert found == ["mine", "theirs"]


def test_what_is_wrong_is_said_every_time(machine: Path) -> None:
    machine.write_text(OWN + "colour = 1\n")
    for _ in range(2):
        with pytest.raises(SpecError, match="colour"):
            load_machine(machine)
