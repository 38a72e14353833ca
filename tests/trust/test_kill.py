"""A few kills of commands, as `python -m tests.trust.kill` does hundreds; what it looks at would be found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.trust import kill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")


def case(name: str) -> kill.Case:
    """One of them."""
    return next(one for one in kill.CASES if one.name == name)


@pytest.mark.slow
def test_what_is_killed_and_started_again_is_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    tallies = kill.kills([case("run again"), case("whatif")], 4, 1, tmp_path)
    assert [one.wrong for one in tallies.values()] == [[], []]
    assert [one.moments for one in tallies.values()] == [2, 2]


def test_half_a_file_is_found_and_so_is_one_of_another_run(tmp_path: Path) -> None:
    kill.put(tmp_path, {"out/a.json": b'{"x"', "out/b.json": b"{}", "out/c.json": b"1", "out/d.gz": b"half",
                        "out/e.journal": b'00 ["x", 1]\n00 [\n00 [', "cache/f.jsonl": b'{}\n{"half'})  # fmt: skip
    wrong = kill.broken(tmp_path, {"out/b.json": b"{}", "out/c.json": b"2"}, {})
    assert [text.split(" ")[0] for text in wrong] == ["out/a.json", "out/c.json", "out/d.gz", "out/e.journal"]


def test_what_is_kept_twice_or_lost_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for text, goes_on in (("1\n2\n3\n", True), ("1\n2\n1\n", False), ("2\n3\n", False)):
        path.write_text(text)
        assert kill._goes_on(path, ["1", "2"]) == goes_on
