"""Names of the library's files, paths of a user's own, and what is said when neither exists."""

from pathlib import Path

import pytest

from simulator import paths
from simulator.errors import InputError


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two machines and one model, and no installed wheel."""
    for name in ("topologies/atlas_a3.toml", "topologies/atlas_a2.toml", "topologies/_draft.toml",
                 "topologies/notes.md", "workloads/models/tiny.toml", "workloads/a3_prefill.py",
                 "scenarios/a3_prefill.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "simulator")
    return tmp_path


def test_names_are_sorted_stems_without_private_files(library: Path) -> None:
    assert paths.names("topologies") == ["atlas_a2", "atlas_a3"]
    assert paths.names("workloads/models") == ["tiny"]
    assert paths.names("workloads") == ["a3_prefill"]


def test_an_installed_wheel_comes_before_the_checkout(library: Path) -> None:
    installed = library / "simulator" / "_data" / "topologies" / "wheel.toml"
    installed.parent.mkdir(parents=True)
    installed.touch()
    assert paths.names("topologies") == ["wheel"]
    assert paths.find("topologies", "wheel") == installed
    assert paths.names("scenarios") == ["a3_prefill"]


@pytest.mark.parametrize("name", ["atlas_a3", "atlas_a3.toml"])
def test_a_name_with_or_without_its_suffix(library: Path, name: str) -> None:
    assert paths.find("topologies", name) == library / "topologies" / "atlas_a3.toml"


def test_a_users_own_file_by_path(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = library / "mine.toml"
    mine.touch()
    monkeypatch.chdir(library)
    assert paths.find("topologies", mine) == mine
    assert paths.find("topologies", "./mine.toml") == Path("mine.toml")
    assert paths.find("topologies", "mine.toml") == Path("mine.toml")


@pytest.mark.parametrize(("name", "says"), [
    ("atlas_a33", "topologies: no 'atlas_a33' (did you mean 'atlas_a3'?); there are: atlas_a2, atlas_a3"),
    ("zzz", "topologies: no 'zzz'; there are: atlas_a2, atlas_a3 (or give the path of a .toml file)"),
    ("./atlas_a3x.toml", "'atlas_a3x.toml' does not exist (did you mean 'atlas_a3'?); the library has: atlas_a2, atl"),
    ("", "topologies: no ''"),
    ("~nobody_is_called_so/x.toml", "'~nobody_is_called_so/x.toml' does not exist"),
    ("_draft", "topologies: no '_draft'"),
])
def test_not_found_says_what_there_is(library: Path, name: str, says: str) -> None:
    with pytest.raises(paths.NotFound) as caught:
        paths.find("topologies", name)
    assert says in str(caught.value)
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, FileNotFoundError)


def test_a_folder_and_a_file_of_another_kind_are_refused(library: Path) -> None:
    with pytest.raises(paths.NotFound, match="is a folder, not a file"):
        paths.find("topologies", library / "topologies")
    with pytest.raises(paths.NotFound, match=r"is not a \.toml file"):
        paths.find("topologies", library / "topologies" / "notes.md")


def test_a_wrong_kind_is_a_programming_error(library: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'topologies'"):
        paths.names("topology")


def test_a_broken_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "simulator")
    with pytest.raises(paths.NotFound, match="is the installation complete"):
        paths.names("topologies")


def test_the_real_library_is_found() -> None:
    assert "atlas_a3" in paths.names("topologies")
    assert {"deepseek_r1", "kimi_k2"} <= set(paths.names("workloads/models"))
