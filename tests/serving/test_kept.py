"""Steps that were simulated before are kept on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.serving.kept import Kept
from simulator.study.kept import cache_folder
from tests.serving.services import step


def test_what_was_put_is_there_the_next_time_to_the_last_bit(tmp_path: Path) -> None:
    kept = Kept(step(), tmp_path / "new")
    assert kept.get("a") is None
    kept.put("a", 0.1 + 0.2)
    assert kept.get("a") == 0.1 + 0.2
    assert not (tmp_path / "new").exists(), "nothing is written before it is asked for"
    kept.write()
    again = Kept(step(), tmp_path / "new")
    assert (again.get("b"), again.found) == (None, set()), "what is not asked for does not count"
    assert (again.get("a"), again.get("a"), again.found) == (0.1 + 0.2, 0.1 + 0.2, {"a"})


def test_two_that_write_lose_nothing(tmp_path: Path) -> None:
    one, other = Kept(step(), tmp_path), Kept(step(), tmp_path)
    one.put("a", 1.0)
    other.put("b", 2.0)
    one.write()
    other.write()
    last = Kept(step(), tmp_path)
    assert (last.get("a"), last.get("b")) == (1.0, 2.0)


@pytest.mark.parametrize("text", ["[" * 5000, '{"a": 1' + "0" * 400 + "}", "",
                                  "{", "[1]", '{"a": "b"}', '{"a": NaN}', '{"a": -1.0}', '{"a": 0}', "\x00"])
def test_a_broken_file_is_as_none_and_is_written_again(tmp_path: Path, text: str) -> None:
    kept = Kept(step(), tmp_path)
    kept.put("a", 1.0)
    kept.write()
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    broken = Kept(step(), tmp_path)
    assert broken.get("a") is None
    broken.put("b", 2.0)
    broken.write()
    assert json.loads(file.read_text()) == {"b": 2.0}


def test_another_scenario_has_another_file(tmp_path: Path) -> None:
    others = [step(), step("tp=2"), step(layers=3), step().replace({"routing.skew": "0.5"}),
              step().replace({"machine.chip.hbm.efficiency": "0.5"})]  # fmt: skip
    for number, one in enumerate(others):
        kept = Kept(one, tmp_path)
        assert kept.get("a") is None
        kept.put("a", float(number))
        kept.write()
    assert len(list(tmp_path.iterdir())) == len(others)


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = Kept(step(), tmp_path / "file")
    kept.put("a", 1.0)
    kept.write()
    assert kept.get("a") == 1.0


def test_where_they_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRAID_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("BRAID_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.delenv("BRAID_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "braid"
