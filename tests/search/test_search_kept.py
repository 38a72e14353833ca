"""What is put is there: after a kill at any moment, on a full disk, beside broken rows, before another search."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.search import kept
from simulator.search.kept import JOURNAL, TABLE, Kept
from simulator.search.kept_table import read_rows, write_rows
from tests.commands.processes import environment

Tells = list[str]


def row(number: int) -> dict[str, Any]:
    """One of its own for each number, of all types."""
    return {"requests": number, "tpot_ms": number / 7, "mesh": f"tp{number}", "exact": bool(number % 2), "why": None,
            "axes": [number, {"ep": number}]}  # fmt: skip


def keep(folder: Path, numbers: range) -> None:
    with Kept(folder, pytest.fail) as rows:
        for number in numbers:
            rows.put(f"n{number}", row(number))


def known(folder: Path, numbers: range, tells: Tells) -> list[int]:
    """Those whose rows are there, and as they were put."""
    with Kept(folder, tells.append) as rows:
        found = {number: one for number in numbers if (one := rows.get(f"n{number}")) is not None}
    assert all(one == row(number) for number, one in found.items())
    return list(found)


def names_in(folder: Path) -> list[str]:
    """As another tool finds them in the table."""
    from pyarrow import parquet

    names: list[str] = parquet.read_table(folder / TABLE).column("hash").to_pylist()
    return names


def test_what_is_put_is_known_at_once_and_later(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with Kept(folder, pytest.fail) as rows:
        assert rows.get("n1") is None
        rows.put("n1", row(1))
        assert rows.get("n1") == row(1)
        with (folder / JOURNAL).open("rb") as file:
            assert b"tp1" in file.read(), "what was put is not on disk yet"
    keep(folder, range(2, 4))
    tells: Tells = []
    assert known(folder, range(9), tells) == [1, 2, 3]
    assert (tells, names_in(folder)) == ([], ["n1", "n2", "n3"])


def test_without_a_folder_rows_are_kept_as_long_as_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Kept(None, pytest.fail) as rows:
        rows.put("n1", row(1))
        assert (rows.get("n1"), rows.get("n2")) == (row(1), None)
    assert list(tmp_path.iterdir()) == []


def test_a_name_has_one_row_the_last(tmp_path: Path) -> None:
    for tpot_ms in (1.0, 2.0):
        with Kept(tmp_path, pytest.fail) as rows:
            rows.put("n1", {"tpot_ms": -tpot_ms})
            rows.put("n1", {"tpot_ms": tpot_ms})
    with Kept(tmp_path, pytest.fail) as rows:
        assert rows.get("n1") == {"tpot_ms": 2.0}
    assert names_in(tmp_path) == ["n1"]


VALUES = (st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
          | st.lists(st.integers(), max_size=2))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1), st.dictionaries(st.sampled_from("xyz"), VALUES), min_size=1))
def test_a_table_gives_the_rows_that_were_written(tmp_path_factory: pytest.TempPathFactory,
                                                  rows: dict[str, dict[str, Any]]) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.parquet"
    write_rows(path, rows)
    keys = {key for one in rows.values() for key in one}
    assert read_rows(path) == {name: dict.fromkeys(keys) | one for name, one in rows.items()}


FORKS = """
import os, random, signal, sys, time
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet

from simulator.search import kept
from simulator.search.kept import Kept

FOLDER = Path(sys.argv[1])


def search(say, most, numbers):
    with Kept(FOLDER, lambda text: say("told " + text)) as rows:
        say("open")
        unknown = [number for number in numbers if rows.get(f"n{number}") is None]
        for number in unknown[:most]:
            rows.put(f"n{number}", {"requests": number})
            say(f"put {number}")
        say("closes")


def begin(work):
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.close(here)
        work(lambda text: os.write(there, f"{text}\\n".encode()))
        os._exit(0)
    os.close(there)
    return child, os.fdopen(here)
"""

KILLS = """
moments = random.Random(17)
kills = 0
while kills < 20:
    child, said = begin(lambda say: search(say, 30, range(10**4)))
    for _ in range(moments.randrange(34)):
        print(said.readline(), end="")
    time.sleep(moments.choice([0.0, moments.uniform(0.0, 3e-3)]))
    os.kill(child, signal.SIGKILL)
    print(said.read(), end="")
    kills += os.waitpid(child, 0)[1] == signal.SIGKILL
"""

STEPS = """
steps = 0


def ends_at(step, name, place):
    before = getattr(place, name)

    def counted(*those, **named):
        global steps
        steps += 1
        if steps == step:
            os._exit(9)
        return before(*those, **named)

    setattr(place, name, counted)


def until(step, say):
    for name, place in [("open", os), ("write", os), ("ftruncate", os), ("pwrite", os), ("write_rows", kept),
                        ("replace", Path), ("unlink", Path)]:
        ends_at(step, name, place)
    search(say, 2, range(10**4))
    say("over")


step, over = 0, False
while not over:
    step += 1
    child, said = begin(lambda say: until(step, say))
    lines = said.read()
    over = "over" in lines
    print(lines, end="")
    os.waitpid(child, 0)
    child, said = begin(lambda say: search(say, 1, range(10**4)))
    print(said.read(), end="")
    os.waitpid(child, 0)
    assert not list(FOLDER.glob(".*")), "a temporary file is left"
print(step, file=sys.stderr)
"""
forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes that are killed are forks")


def of_forks(script: str, folder: Path) -> tuple[list[str], str]:
    """What the searches of a script said, and what it said itself."""
    done = subprocess.run([sys.executable, "-c", FORKS + script, str(folder)], env=environment(), capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def put_by(said: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in said if line.startswith("put ")]


@forked
def test_kills_at_twenty_random_moments_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """Whatever is said to be put is there, and is computed by no later search; all is told in one line each."""
    said, _ = of_forks(KILLS, tmp_path)
    put = put_by(said)
    assert len(put) == len(set(put)), "a result that was kept was computed again"
    assert len(put) > 20, "nothing was done between the kills"
    told = [line for line in said if line.startswith("told ")]
    assert all(" rows are broken" in line for line in told), "but for a line that was half written nothing is amiss"
    with Kept(tmp_path, pytest.fail) as rows:
        assert [rows.get(f"n{number}") for number in put] == [{"requests": number} for number in put]
    names = names_in(tmp_path)
    assert len(names) == len(set(names)) >= len(put)
    assert {file.name for file in tmp_path.iterdir()} == {TABLE, JOURNAL, kept.LOCK}


@forked
def test_a_search_that_ends_before_any_step_of_its_writing_loses_nothing(tmp_path: Path) -> None:
    said, steps = of_forks(STEPS, tmp_path)
    assert int(steps) > 8, "there are no such steps to end before"
    put = put_by(said)
    assert len(put) == len(set(put)) > int(steps), "a result that was kept was computed again"
    assert not any(line.startswith("told ") for line in said)
    with Kept(tmp_path, pytest.fail) as rows:
        assert [rows.get(f"n{number}") for number in put] == [{"requests": number} for number in put]
    names = names_in(tmp_path)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("change", [lambda line: line[:-9], lambda line: line.replace(b'"tp2"', b'"tp3"'),
                                    lambda line: b"\xff\x00 nothing", lambda line: b"7",
                                    lambda line: b"%08x %s" % (zlib.crc32(b"[" * 5000), b"[" * 5000)])  # fmt: skip
def test_a_broken_row_of_the_journal_is_told_and_the_others_are_there(
        tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    rows = Kept(tmp_path, pytest.fail)
    for number in range(4):
        rows.put(f"n{number}", row(number))
    lines = (tmp_path / JOURNAL).read_bytes().split(b"\n")
    rows.close()
    (tmp_path / TABLE).unlink()
    at = next(place for place, line in enumerate(lines) if b'"tp2"' in line)
    lines[at] = change(lines[at])
    (tmp_path / JOURNAL).write_bytes(b"\n".join(lines))
    tells: Tells = []
    assert known(tmp_path, range(4), tells) == [0, 1, 3]
    assert tells == [f"'{tmp_path / JOURNAL}': 1 of 4 rows are broken and computed anew"]
    tells.clear()
    assert (known(tmp_path, range(4), tells), tells) == ([0, 1, 3], []), "it is told once"


@pytest.mark.parametrize("change", [lambda whole: whole[:-30], lambda whole: b"", lambda whole: b"PAR1" * 9,
                                    lambda whole: whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]])  # fmt: skip
def test_a_broken_table_is_told_and_kept_under_another_name(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    keep(tmp_path, range(3))
    broken = change((tmp_path / TABLE).read_bytes())
    for number in (1, 2):
        (tmp_path / TABLE).write_bytes(broken)
        tells: Tells = []
        assert known(tmp_path, range(9), tells) == []
        [told] = tells
        assert told.startswith(f"'{tmp_path / TABLE}' is broken, is 'layouts.broken-{number}.parquet' now, and all ")
        assert "\n" not in told
        assert (tmp_path / f"layouts.broken-{number}.parquet").read_bytes() == broken
    keep(tmp_path, range(3))
    assert known(tmp_path, range(9), tells) == [0, 1, 2]


def test_a_table_of_another_program_is_broken_too(tmp_path: Path) -> None:
    from pyarrow import parquet, table

    parquet.write_table(table({"x": [1]}), tmp_path / TABLE)
    tells: Tells = []
    assert known(tmp_path, range(9), tells) == []
    assert len(tells) == 1
    assert "it has no column 'hash'" in tells[0]


FULL = """
import resource, sys
from pathlib import Path
from simulator.search.kept import Kept

folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # of a file; beyond, a part is written and then nothing
with Kept(folder, print) as rows:
    for number in range(60):
        rows.put(f"n{number}", {"requests": number})
    assert all(rows.get(f"n{number}") == {"requests": number} for number in range(60))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limits")
def test_a_journal_that_cannot_grow_is_told_once_and_keeps_what_it_has(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], env=environment(), capture_output=True,
                          text=True, check=True)
    [told] = done.stdout.splitlines()
    assert told.startswith(f"results are not kept from here on: cannot write '{tmp_path / JOURNAL}': ")
    with Kept(tmp_path, pytest.fail) as rows:
        there = [number for number in range(60) if rows.get(f"n{number}") is not None]
    assert there == list(range(len(there))), "the first ones are there"
    assert 5 < len(there) < 60


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_once_and_the_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, range(2))
    tells: Tells = []
    with Kept(tmp_path, tells.append) as rows:
        rows.put("n2", row(2))
        with monkeypatch.context() as disk:
            disk.setattr(os, "write", full)
            rows.put("n3", row(3))
        rows.put("n4", row(4))
        assert [rows.get(f"n{number}") for number in range(5)] == [row(number) for number in range(5)]
    assert tells == [f"results are not kept from here on: cannot write '{tmp_path / JOURNAL}':"
                     f" {os.strerror(errno.ENOSPC)}"]  # fmt: skip
    assert known(tmp_path, range(9), tells) == [0, 1, 2]
    assert len(tells) == 1


def test_a_table_for_which_there_is_no_room_leaves_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, range(2))
    tells: Tells = []
    with Kept(tmp_path, tells.append) as rows:
        rows.put("n2", row(2))
        monkeypatch.setattr(kept, "write_rows", full)
    assert tells == [f"results are not kept from here on: cannot write '{tmp_path / TABLE}':"
                     f" {os.strerror(errno.ENOSPC)}"]  # fmt: skip
    monkeypatch.undo()
    assert known(tmp_path, range(9), tells) == [0, 1, 2]
    assert len(tells) == 1


def test_a_folder_that_cannot_be_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tells: Tells = []
    with Kept(tmp_path / "file" / "folder", tells.append) as rows:
        rows.put("n1", row(1))
        assert rows.get("n1") == row(1)
    [told] = tells
    assert told.startswith(f"results are not kept from here on: cannot write '{tmp_path / 'file' / 'folder'}': ")


def test_what_a_folder_that_cannot_be_written_to_has_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, range(2))
    monkeypatch.setattr(os, "open", full)
    tells: Tells = []
    assert known(tmp_path, range(9), tells) == [0, 1]
    assert len(tells) == 1


def test_a_second_search_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with Kept(tmp_path, pytest.fail) as rows:
        rows.put("n1", row(1))
        with pytest.raises(InputError) as refused:
            Kept(tmp_path, pytest.fail)
        assert str(tmp_path) in str(refused.value)
        assert f"process {os.getpid()} " in str(refused.value)
        assert "\n" not in str(refused.value)
        rows.put("n2", row(2))
    assert known(tmp_path, range(9), []) == [1, 2]


def test_a_name_of_the_column_of_names_is_no_key(tmp_path: Path) -> None:
    with Kept(tmp_path, pytest.fail) as rows, pytest.raises(ValueError, match="'hash'"):
        rows.put("n1", {"hash": 1})
