"""Machines put together from parts: what agrees, what is refused, and which file wins."""

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator import paths
from simulator.errors import InputError
from simulator.spec.load import load_machine
from simulator.spec.parts import part_names, whole_tables
from simulator.spec.typed_toml import SpecError

Write = Callable[..., Path]


def number(value: float, unit: str, source: str = "a table") -> str:
    return f'{{ value = {value}, unit = "{unit}", kind = "assumed", source = "{source}" }}'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes NAME.toml, which extends some others, and gives its path."""

    def file(name: str, text: str, *extends: str) -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(f"extends = {list(extends)}\n{text}" if extends else text, encoding="utf-8")
        return path

    return file


def level(name: str, latency_us: float) -> str:
    return f'[[fabric]]\nname = "{name}"\nlatency = {number(latency_us, "us")}\n'


def test_parts_fill_each_other_in(write: Write) -> None:
    write("chip", f"[chip.hbm]\npeak = {number(3, 'TB/s')}\n[chip.cores]\nsm = {number(132, '1')}\n")
    write("stack", f"[kernels.vllm.gemm]\nfloor = {number(2, 'us')}\n[chip.hbm]\nusable = {number(0.9, '1')}\n")
    tables = whole_tables(write("mine", "name = 'mine'\n", "chip.toml", "stack.toml"))
    assert list(tables) == ["chip", "kernels", "name"]
    assert tables["chip"]["hbm"].keys() == {"peak", "usable"}
    assert tables["kernels"]["vllm"]["gemm"]["floor"]["value"] == 2


def test_levels_of_parts_lie_inside_out_in_their_order(write: Write) -> None:
    write("node", level("node", 1))
    write("nic", level("cluster", 5))
    both = whole_tables(write("mine", "", "node.toml", "nic.toml"))["fabric"]
    assert [one["name"] for one in both] == ["node", "cluster"]
    own = whole_tables(write("own", level("box", 2), "node.toml", "nic.toml"))["fabric"]
    assert [one["name"] for one in own] == ["box"], "lists of a machine's own file are taken whole"


def test_a_part_of_a_part(write: Write) -> None:
    write("chip", f"[chip.hbm]\npeak = {number(3, 'TB/s')}\n")
    write("better", f"[chip.hbm]\npeak = {number(4, 'TB/s')}\n", "chip.toml")
    assert whole_tables(write("mine", "", "better.toml"))["chip"]["hbm"]["peak"]["value"] == 4


@pytest.mark.parametrize(("one", "other", "key", "said"), [
    (f"[chip.hbm]\npeak = {number(3, 'TB/s')}", f"[chip.hbm]\npeak = {number(4, 'TB/s')}", "chip.hbm.peak",
     ("3 TB/s", "4 TB/s")),
    (level("node", 1), level("node", 2), "fabric.node.latency", ("1 us", "2 us")),
    ("title = 'one'", "title = 'two'", "title", ("'one'", "'two'")),
    ("[chip]\nhbm = 3", f"[chip.hbm]\npeak = {number(4, 'TB/s')}", "chip.hbm", ("3", "a table")),
    (f"[chip.hbm]\npeak = {number(4, 'TB/s')}", "[chip]\nhbm = 3", "chip.hbm", ("a table", "3")),
    ("[a]\nladder = [1, 2]", "[a]\nladder = [1, 3]", "a.ladder", ("a list of 2", "a list of 2")),
])  # fmt: skip
def test_parts_that_disagree_are_refused(write: Write, one: str, other: str, key: str, said: tuple[str, str]) -> None:
    first, second = write("first", one), write("second", other)
    mine = write("mine", "name = 'mine'\n", "first.toml", "second.toml")
    with pytest.raises(SpecError) as caught:
        whole_tables(mine)
    assert caught.value.lines == (f"{mine}: {key}: {first} gives {said[0]}, {second} gives {said[1]}: "
                                  "write it in this file, or leave one of them out",)  # fmt: skip


def test_a_machines_own_file_decides_between_its_parts(write: Write) -> None:
    write("first", f"[chip.hbm]\npeak = {number(3, 'TB/s')}\n")
    write("second", f"[chip.hbm]\npeak = {number(4, 'TB/s')}\n")
    mine = write("mine", f"[chip.hbm]\npeak = {number(5, 'TB/s')}\n", "first.toml", "second.toml")
    assert whole_tables(mine)["chip"]["hbm"]["peak"]["value"] == 5


def test_the_same_number_from_two_sources_is_no_disagreement(write: Write) -> None:
    write("first", f"[chip.hbm]\npeak = {number(3, 'TB/s', 'a datasheet')}\n")
    write("second", f"[chip.hbm]\npeak = {number(3, 'TB/s', 'a blog')}\n")
    tables = whole_tables(write("mine", "", "first.toml", "second.toml"))
    assert tables["chip"]["hbm"]["peak"]["source"] == "a datasheet"


@pytest.mark.parametrize(("extends", "said"), [
    ("['h100_sxn']", "extends: no machine or part 'h100_sxn' (did you mean 'h100_sxm'?); machines: atlas_a2,"),
    ("['zzz']", "parts: a100_sxm,"),
    ("['h100_sxm', 'h100_sxm']", "extends: got 'h100_sxm, h100_sxm': each of them once"),
    ("['h100_sxm', 3]", "extends: got 3: the name of a machine or part, the path of a .toml file, or a list of them"),
    ("['./none.toml']", "none.toml' does not exist"),
    ("['mine.toml']", "extends: leads back to"),
])  # fmt: skip
def test_parts_that_cannot_be(tmp_path: Path, extends: str, said: str) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(f"extends = {extends}\n")
    with pytest.raises(InputError) as caught:
        whole_tables(mine)
    assert str(caught.value).startswith(f"{mine}: ")
    assert said in str(caught.value)


def test_parts_are_no_machines() -> None:
    assert not set(paths.names("topologies")) & set(paths.names("topologies/parts"))
    with pytest.raises(paths.NotFound, match="h100_sxm"):
        load_machine("h100_sxm")


@pytest.mark.parametrize("name", paths.names("topologies"))
def test_every_machine_of_the_library_loads(name: str) -> None:
    assert load_machine(name).name == name


def test_every_part_is_used() -> None:
    files = [paths.find(kind, name) for kind in ("topologies", "topologies/parts") for name in paths.names(kind)]
    used = {part for file in files for part in part_names(file)}
    assert set(paths.names("topologies/parts")) <= used
