"""Loading, overriding and walking a machine file, and everything that it refuses."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator import paths
from simulator.errors import InputError
from simulator.spec.kernels import GemmKernel
from simulator.spec.load import load_machine, override
from simulator.spec.machine import CollectiveSpec
from simulator.spec.typed_toml import SpecError, quantities, type_of, validate
from simulator.units import BytesPerSecond, FlopsPerSecond, PositiveCount, Quantity, Seconds, Share, units_of
from tests.die.machines import level, machine, number

A3_TEXT = paths.find("topologies", "atlas_a3").read_text(encoding="utf-8")
A3 = load_machine("atlas_a3")
REST = 'kind = "published", source = "..."}'
GENERATION = "kernels.cann_recipes_2025"
TRANSFER = A3.collectives["sdma"].transfer_bytes
PER_PEER = A3.collectives["sdma"].startup_per_peer
SCORE = dict(quantities(A3))[f"{GENERATION}.flash_attention_ntd.score_bytes"]
Loader = Callable[[str], list[str]]


@pytest.fixture
def mistakes(tmp_path: Path) -> Loader:
    """Loads a text as a machine file and gives the lines of the refusal, without the file's name."""
    file = tmp_path / "mine.toml"

    def load(text: str) -> list[str]:
        file.write_text(text, encoding="utf-8")
        with pytest.raises(SpecError) as caught:
            load_machine(file)
        assert all(line.startswith(f"{file}: ") for line in caught.value.lines)
        assert str(caught.value) == "\n".join(caught.value.lines)
        assert "pydantic" not in str(caught.value)
        return [line.removeprefix(f"{file}: ") for line in caught.value.lines]

    return load


@pytest.mark.parametrize(("old", "new", "says"), [
    ("size = { value = 8,", "size = { value = 1e18,", "fabric.box.size: got 1e+18: so small that the machine has at"),
    ('kind = "switch"\nsize = { value = 8,', 'kind = "mesh"\nsize = { value = 2000,', "fabric.box.size: got 2000: so"),
    ('unit = "GHz"', 'unit = ["GHz"]', "chip.clock.unit: got a list of 1: must be a valid string"),
    ('name = "tiny"\n', 'name = 0x' + "f" * 4000 + "\n", "name: got a number of thousands of digits"),
    ('name = "tiny"\n', "name = " + "1" * 5000 + "\n", "not valid TOML: Exceeds the limit"),
    ('name = "tiny"\n', "name = " + "[" * 5000 + "\n", "not valid TOML: its lists or tables are nested too deeply"),
    ("clock = { value = 1,", "clock = { value = 1" + "0" * 400 + ",", "chip.clock.value: got 1000"),
])
def test_absurd_sizes_types_and_depths_are_refused_with_file_and_key(
    old: str, new: str, says: str, mistakes: Loader
) -> None:
    text = Path("tests/data/tiny.toml").read_text(encoding="utf-8")
    assert any(line.startswith(says) for line in mistakes(text.replace(old, new, 1)))


def changed(old: str, new: str) -> str:
    """Atlas A3's file with the first match of a pattern replaced."""
    text, count = re.subn(old, new, A3_TEXT, count=1, flags=re.MULTILINE)
    assert count == 1
    return text


def test_a_users_own_copy_is_the_same_machine(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(A3_TEXT, encoding="utf-8")
    assert load_machine(tmp_path / "mine.toml") == A3


def test_types_of_the_parts() -> None:
    gemm = A3.kernels["cann_recipes_2025"]["gemm_int8"]
    assert isinstance(gemm, GemmKernel)
    assert (gemm.tile_m.count, gemm.tile_n.count, gemm.floor_s) == (128, 256, 1e-5)
    assert list(gemm.cores) == ["cube", "vector"]
    with pytest.raises(ValueError, match="frozen"):
        A3.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(("old", "new", "line"), [
    (r"^launch_graph = .*", "launch_graph = 24",
     f'host.launch_graph: got 24: a bare number is refused; write {{value = 24, unit = "us", {REST}'),
    (r"^cube = \{.*", "cube = 24",
     f'chip.cores.cube: got 24: a bare number is refused; write {{value = 24, unit = "1", {REST}'),
    (r"^usable = \{", "usabel = {",
     'chip.hbm.usable: is missing: write {value = ..., unit = "...", kind = "...", source = "..."}'),
    (r"^usable = \{", "usabel = {",
     f"chip.hbm.usabel: got {A3.chip.hbm.usable}: no such key (did you mean 'usable'?); keys are capacity, peak,"),
    (r"^\[host\]", "[hosts]", "host: is missing: this key is required"),
    (r'value = 1.6, unit = "TB/s"', 'value = 1.6, unit = "TB"',
     "chip.hbm.peak: got 1.6 TB: 'TB' is an amount of bytes, wanted is a rate of bytes: one of B/s, kB/s"),
    (r'unit = "GHz"', 'unit = "Ghz"', "chip.clock.unit: got 'Ghz': 'Ghz' is no unit (did you mean 'GHz'?); units are"),
    (r'value = 1.85', 'value = "fast"', "chip.clock.value: got 'fast': must be a valid number"),
    (r'value = 1.85', "value = nan", "chip.clock.value: got nan: must be a number"),
    (r"^usable = \{ value = [\d.]+", "usable = { value = 1.94", "chip.hbm.usable: got 1.94: must be between 0 and 1"),
    (r"value = 24, ", "value = 2.5, ", "chip.cores.cube: got 2.5: must be a whole number, 1 or more"),
    (r'"GHz", kind = "published"', '"GHz", kind = "publishd"',
     "chip.clock.kind: got 'publishd': must be one of published, derived, fitted, assumed (did you mean 'published'?)"),
    (r'^startup_per_peer = (.*), expression = "[^"]*"', r"startup_per_peer = \1",
     f'collectives.sdma.startup_per_peer: got {PER_PEER}: a derived number needs `expression = "..."`'),
    (r'^transfer_bytes = (.*), fitted_on = "[^"]*"', r"transfer_bytes = \1",
     f'collectives.sdma.transfer_bytes: got {TRANSFER}: a fitted number needs `fitted_on = "..."`'),
    (r'source = "published nowhere"', 'source = ""',
     "chip.cores.sdma.source: got '': text must have at least 1 character"),
    (r'kind = "mesh"', 'kind = "meshed"',
     "fabric[0].kind: got 'meshed': must be one of mesh, switch, rails, torus, dragonfly (did you mean 'mesh'?)"),
    (r'law = "gemm"', 'law = "gem"',
     f"{GENERATION}.gemm_int8.law: got 'gem': must be one of gemm, attention, stream_gemm, split_attention, vector, "
     "loop, fused (did you mean 'gemm'?)"),
    (r'law = "gemm"', "",
     f"{GENERATION}.gemm_int8.law: is missing: must be one of gemm, attention, stream_gemm, split_attention, vector, "
     "loop, fused"),
    (r"^score_bytes = ", "score_byte = ",
     f"{GENERATION}.flash_attention_ntd.score_byte: got {SCORE}: no such key (did you mean 'score_bytes'?); keys are"),
    (r'law = "vector"', 'law = "vector"\ntile_m = 3', f"{GENERATION}.vector.tile_m: got 3: no such key"),
    (r"ladder.default\]\]", "ladder.defaults]]", "collectives.sdma.ladder.default: is missing: this key is required"),
    (r"ladder.all_gather\]\]", "ladder.allgather]]",
     "collectives.sdma.ladder.allgather: got a list of 1: no such key (did you mean 'all_gather'?); keys are"),
    (r'^name = "atlas_a3"', "name = 3", "name: got 3: must be a valid string"),
    (r"^\[chip.hbm\]", "[chip]\nhbm = 3\n[chip.hbn]", "not valid TOML: Cannot declare ('chip',) twice (at line"),
])
def test_one_mistake_one_line(mistakes: Loader, old: str, new: str, line: str) -> None:
    lines = mistakes(changed(old, new))
    assert any(each.startswith(line) for each in lines), lines


def test_all_mistakes_are_said_at_once(mistakes: Loader) -> None:
    text = changed(r"^launch_graph = .*", "launch_graph = 24").replace("[chip.l2]", "[chip.l3]", 1)
    text = text.replace('kind = "switch"', 'kind = "swich"', 1).replace('unit = "GHz"', 'unit = "B"')
    keys = [line.split(": ")[0] for line in mistakes(text)]
    assert keys == ["chip.clock", "chip.l2.capacity", "chip.l2.rate", "chip.l3", "host.launch_graph", "fabric[1].kind"]


def test_what_contradicts_itself_is_said_beside_what_is_wrong(mistakes: Loader) -> None:
    text = changed(r'unit = "GHz"', 'unit = "Ghz"')
    text = text.replace("[collectives.sdma.cores]\nsd", "[collectives.sdma.cores]\nsn")
    text = text.replace('kind = "mesh"', 'kind = "mesh"\nports = "die"', 1).replace("usable = {", "usabel = {")
    keys = [line.split(": ")[0] for line in mistakes(text)]
    assert keys == ["chip.clock.unit", "chip.hbm.usable", "chip.hbm.usabel", "fabric[0].ports",
                    "collectives.sdma.cores.snma"]


@pytest.mark.parametrize(("text", "line"), [
    ("a = [1,\n b = 3", "not valid TOML: Invalid value (at line 2"),
    ("", "name: is missing: this key is required"),
])
def test_broken_and_empty_files(mistakes: Loader, text: str, line: str) -> None:
    assert mistakes(text)[0].startswith(line)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(SpecError, match="not UTF-8 at byte 8"):
        load_machine(tmp_path / "mine.toml")


def test_a_missing_file_and_a_wrong_name(tmp_path: Path) -> None:
    with pytest.raises(paths.NotFound, match=r"did you mean 'atlas_a3'\?"):
        load_machine("atlas_b3")
    with pytest.raises(paths.NotFound, match="does not exist"):
        load_machine(tmp_path / "none.toml")
    assert issubclass(SpecError, InputError)


@pytest.mark.parametrize(("old", "new", "line"), [
    (r"^\[collectives.aiv.cores\]\nvector = \{ value = 24", "[collectives.aiv.cores]\nvector = { value = 49",
     "collectives.aiv.cores.vector: got 49: the chip has 24 cube, 48 vector, 16 sdma"),
    (r"^\[collectives.sdma.cores\]\nsdma", "[collectives.sdma.cores]\nsdna",
     "collectives.sdma.cores.sdna: got 1: the chip has 24 cube, 48 vector, 16 sdma (did you mean 'sdma'?)"),
    (r"^\[chip.peak.vector\]", "[chip.peak.vectors]",
     f"{GENERATION}.vector.cores: got 'vector': the first pool computes, but chip.peak has only cube, vectors"),
    (r"^\[chip.l2.port_rate\]\ncube", "[chip.l2.port_rate]\ncubes",
     "kernels.cann_recipes_2025.gemm_int8.cores.cube: got 'cube': chip.l2.port_rate has only cubes, vector"),
    (r'^name = "node"', 'name = "package"', "fabric[1].name: got 'package': every level needs a name of its own"),
    (r'value = 2.1, unit = "us"', 'value = 0.5, unit = "us"',
     "fabric.supernode.latency: got 0.5 us: at least 0.7 us: the way leads through 'node'"),
    (r'^ports = "die"', 'ports = "switch"',
     'fabric.node.ports: got \'switch\': no switch lies below this level; write "die"'),
    (r'^kind = "mesh"', 'kind = "mesh"\nports = "die"',
     "fabric[0].ports: got 'die': no such key; keys are name, size, link_rate, latency, note, kind"),
    (r'^kind = "switch"\nports = "die"', 'kind = "mesh"',
     "fabric.node.kind: got 'mesh': a mesh joins dies: only the innermost level can be one"),
])
def test_parts_that_contradict_each_other(mistakes: Loader, old: str, new: str, line: str) -> None:
    lines = mistakes(changed(old, new))
    assert any(each.startswith(line) for each in lines), lines


def test_override_replaces_numbers_and_says_so() -> None:
    other = override(A3, {"chip.hbm.peak": "3.2 TB/s", "chip.l2.rate": "inf B/s", "fabric.node.link_rate": "392 GB/s",
                          "fabric.0.latency": "1 us", "collectives.sdma.ladder.default.0.rate": "130 GB/s"})
    peak, old = other.chip.hbm.peak, A3.chip.hbm.peak
    assert (peak.si, peak.kind, peak.source, peak.note) == (3.2e12, "assumed", "command line", f"instead of {old}")
    assert other.chip.l2.rate.si == math.inf
    assert (other.fabric[1].link_rate.si, other.fabric[0].latency.si) == (392e9, 1e-6)
    assert other.collectives["sdma"].rate_bytes_per_s("all_to_all", 1e6) == 130e9
    assert A3.chip.hbm.peak.si == 1.6e12
    assert override(A3, {}) is A3
    assert dict(quantities(override(A3, {"host.launch_eager": "53 us"}))).keys() == dict(quantities(A3)).keys()


def test_override_takes_a_quantity_as_it_is() -> None:
    mine = Quantity(value=2, unit="TB/s", kind="fitted", fitted_on="my table", source="my table")
    assert override(A3, {"chip.hbm.peak": mine}).chip.hbm.peak == mine


@pytest.mark.parametrize(("key", "text", "says"), [
    ("chip.hbm.peek", "3 TB/s",
     "got '3 TB/s': no key 'peek' (did you mean 'peak'?); keys there are capacity, peak, efficiency, usable"),
    ("chop.hbm", "1", "no key 'chop' (did you mean 'chip'?); keys there are"),
    ("fabric.nod.latency", "1 us", "no key 'nod' (did you mean 'node'?); keys there are package, node, supernode"),
    ("fabric.3.latency", "1 us", "no key '3'; keys there are package, node, supernode"),
    ("chip.hbm", "1", "this is a table of numbers, not one; keys in it are capacity, peak, efficiency, usable"),
    ("chip.hbm.peak.value", "1", "'chip.hbm.peak' is a number; write no '.value' behind it"),
    ("name", "1", "no key 'name'; keys there are"),
    ("", "1", "no key ''"),
    ("chip.hbm.peak", "3.2 GB", "got '3.2 GB': 'GB' is an amount of bytes, wanted is a rate of bytes"),
    ("chip.hbm.peak", "3.20", "got '3.20': a plain number, wanted is a rate of bytes: one of B/s"),
    ("chip.hbm.peak", "fast", "'fast' is no quantity: write a number and a unit"),
    ("chip.hbm.peak", "3 tb/s", "did you mean 'TB/s'?"),
    ("chip.hbm.peak", "-3 TB/s", "must be more than 0"),
    ("chip.cores.cube", "inf", "must be a whole number, 1 or more"),
    ("host.launch_eager", "inf s", "must be a finite time"),
    ("chip.cores.vector", "12", "collectives.aiv.cores.vector: got 24: the chip has 24 cube, 12 vector, 16 sdma"),
])
def test_what_an_override_refuses(key: str, text: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        override(A3, {key: text})
    assert says in str(caught.value)
    assert all(line.startswith("atlas_a3: ") for line in caught.value.lines)


def test_an_override_says_all_mistakes_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        override(A3, {"x": "1", "chip.y": "1", "host.launch_eager": "1 parsec", "chip.hbm.peak": "-1 TB/s"})
    keys = [line.split(": ")[1] for line in caught.value.lines]
    assert keys == ["x", "chip.y", "host.launch_eager", "chip.hbm.peak"]


def test_all_mistakes_of_one_value_are_said_at_once(mistakes: Loader) -> None:
    wrong = '{ value = 1.6, unit = "TB", kind = "derived", colour = 3 }'
    lines = mistakes(changed(r"^peak = \{ value = 1.6.*", f"peak = {wrong}"))
    keys = "value, unit, kind, source, confidence, expression, fitted_on, note"
    assert lines == [
        'chip.hbm.peak.source: is missing: this key is required',
        f"chip.hbm.peak.colour: got 3: no such key; keys are {keys}",
        'chip.hbm.peak: got 1.6 TB: a derived number needs `expression = "..."`',
        f"chip.hbm.peak: got 1.6 TB: 'TB' is an amount of bytes, wanted is a rate of bytes: one of "
        f"{', '.join(units_of('B/s'))}",
    ]


def collective(**ladder: list[tuple[float, float]]) -> CollectiveSpec:
    """A collective with (MiB per peer, GB/s) rungs by kind."""
    rungs = {kind: [{"bytes_per_peer": number(size, "MiB"), "rate": number(rate, "GB/s")} for size, rate in steps]
             for kind, steps in ladder.items()}
    return validate(CollectiveSpec, {**A3.collectives["sdma"].model_dump(), "ladder": rungs}, "a test")


@pytest.mark.parametrize(("mib", "gb_s"), [(0, 10), (0.5, 10), (1, 10), (2, 20), (4, 30), (8, 40), (16, 50), (64, 50)])
def test_ladders_are_linear_in_the_logarithm_of_the_size(mib: float, gb_s: float) -> None:
    one = collective(default=[(1, 10), (4, 30), (16, 50)])
    assert one.rate_bytes_per_s("all_to_all", mib * 2**20) == pytest.approx(gb_s * 1e9)


def test_a_kind_with_its_own_ladder_uses_it() -> None:
    one = collective(default=[(1, 10)], all_gather=[(1, 99)])
    assert one.rate_bytes_per_s("all_gather", 1.0) == 99e9
    assert one.rate_bytes_per_s("reduce_scatter", 1.0) == 10e9


def test_rungs_must_rise(mistakes: Loader) -> None:
    rung = re.search(r"^\[\[collectives.sdma.ladder.default\]\]\n.*\n", A3_TEXT, re.MULTILINE)
    assert rung
    sized = f'{rung[0]}bytes_per_peer = {{ value = 1, unit = "MiB", kind = "assumed", source = "this test" }}\n'
    lines = mistakes(A3_TEXT.replace(rung[0], sized * 2))
    assert lines == ["collectives.sdma.ladder.default: got 1 MiB, 1 MiB: bytes_per_peer must rise from rung to rung"]


def test_an_engine_stays_within_a_level_that_there_is(mistakes: Loader) -> None:
    lines = mistakes(A3_TEXT.replace("[collectives.sdma]", '[collectives.sdma]\nwithin = "rack"', 1))
    assert lines == ["collectives.sdma.within: got 'rack': the fabric has package, node, supernode"]


def test_numbers_of_a_machine_by_their_keys() -> None:
    numbers = dict(quantities(machine("box", level("box", "switch", 4, 100, 1.0))))
    assert numbers["fabric.box.link_rate"].si == 100e9
    assert numbers["chip.peak.cube.int8"].si == 752e12


def test_every_number_can_be_overridden_by_its_key() -> None:
    numbers = dict(quantities(A3))
    assert override(A3, {key: str(number) for key, number in numbers.items()}) != A3  # now all from the command line
    assert override(A3, numbers) == A3


@pytest.mark.parametrize(("key", "wanted"), [
    ("chip.cores.cube", PositiveCount), ("chip.hbm.efficiency", Share), ("fabric.package.link_rate", BytesPerSecond),
    ("collectives.sdma.ladder.default.0.rate", BytesPerSecond), ("collectives.sdma.startup", Seconds),
    ("collectives.sdma.step_latencies", PositiveCount), ("host.launch_eager", Seconds),
    (f"{GENERATION}.gemm_int8.tile_m", PositiveCount), ("chip.peak.cube.int8", FlopsPerSecond)])  # fmt: skip
def test_what_a_number_has_to_be_is_known_by_its_key(key: str, wanted: Any) -> None:
    assert type_of(A3, key) == wanted
