"""Numbers that a machine's file leaves out: the term is not there, as with the number that makes it nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator import paths
from simulator.calibrate.library_toml import Table, tables_of, text_of
from simulator.collective.lowering import Lowering
from simulator.die.kernels import cost_of
from simulator.fabric.graph import Fabric
from simulator.model import ops
from simulator.program.task import Collective
from simulator.spec.load import load_machine, override
from simulator.spec.machine import CollectiveSpec, MachineSpec
from simulator.spec.parts import PARTS, whole_tables
from simulator.spec.typed_toml import SpecError, quantities, read, validate
from tests.die.machines import number

TINY_FILE = Path("tests/data/tiny.toml")
NOTHING = {"floor": "us", "unoverlapped": "1", "serial_per_k": "us", "score_bytes": "1", "startup": "us",
           "startup_per_peer": "us", "copy_bytes": "1"}  # fmt: skip
"""Numbers that say nothing where they are 0, with a unit of theirs."""
WORKS = (ops.gemm(400, 200, 500), ops.gemm(400, 200, 500, dtype="bf16"), ops.passes(3e6, 1e6))


def says_nothing(key: str, value: Any) -> bool:
    """Whether it is a number that changes nothing."""
    if not isinstance(value, dict) or "unit" not in value:
        return False
    return value["value"] == 1 if key == "weight" else key in NOTHING and value["value"] == 0


def without(tables: Any, gone: set[str]) -> Any:
    """The same tables without what makes a term nothing."""
    if not isinstance(tables, dict):
        return [without(one, gone) for one in tables] if isinstance(tables, list) else tables
    kept = {}
    for key, value in tables.items():
        if says_nothing(key, value):
            gone.add(key)
        else:
            kept[key] = without(value, gone)
    return kept


@pytest.fixture
def bare() -> MachineSpec:
    """The tiny machine without the zeros that its file writes."""
    gone: set[str] = set()
    found = validate(MachineSpec, without(whole_tables(TINY_FILE), gone), "bare")
    assert {"floor", "unoverlapped", "serial_per_k", "startup_per_peer", "copy_bytes", "weight"} <= gone
    return found


def test_a_kernel_costs_the_same_without_terms_that_are_0(bare: MachineSpec) -> None:
    given = load_machine(TINY_FILE)
    for work in WORKS:
        one, other = (cost_of(work, spec.chip, spec.kernels["round"]) for spec in (given, bare))
        assert repr(one) == repr(other)
    shown = [key for key, _ in quantities(bare)]
    assert "kernels.round.vector.unoverlapped" not in shown
    assert len(shown) < len(list(quantities(given)))


def test_latencies_and_scores_that_are_left_out_take_nothing() -> None:
    machine = load_machine("h800_cluster")
    kernels = machine.kernels_of("sglang_2025")
    assert any(one.law == "attention" and one.score_bytes is None for one in kernels.values())
    for name, one in kernels.items():
        if one.law in ("attention", "split_attention"):
            attention = ops.Work(name, "attention", "bf16", scores=((1, 4096, False),) * 4, heads=16, kv_heads=1,
                                 kv_dim=576, qk_dim=576, v_dim=512, streamed_bytes=1e6)  # fmt: skip
            zeros = {key: number(0, unit) for key, unit in NOTHING.items()
                     if key in type(one).model_fields and getattr(one, key) is None}  # fmt: skip
            said = type(one).model_validate({**one.model_dump(exclude_none=True), **zeros})
            assert zeros
            assert repr(cost_of(attention, machine.chip, {name: said})) == repr(
                cost_of(attention, machine.chip, kernels))


@pytest.mark.parametrize(("kind", "algorithm"), [
    ("all_to_all", "direct"), ("all_to_all", "pairwise"), ("all_gather", "direct"), ("all_gather", "ring"),
    ("reduce_scatter", "hierarchical"), ("all_reduce", "ring"), ("all_reduce", "hierarchical")])
def test_a_collective_takes_the_same_without_terms_that_are_0(kind: str, algorithm: str) -> None:
    machine = load_machine("dgx_h100")
    rate = {"default": [{"rate": number(100, "GB/s")}]}
    sized = {"default": [{"rate": number(100, "GB/s"), "bytes_per_peer": number(1, "MiB")}]}
    short = {"cores": {"sm": number(4)}, "transfer_bytes": number(2), "ladder": rate}
    long = {**short, "ladder": sized, "weight": number(1),
            **{name: number(0, NOTHING[name]) for name in ("startup", "startup_per_peer", "copy_bytes")}}
    call = Collective(kind, "world", "own", 2**20, algorithm=algorithm)  # type: ignore[arg-type]

    def phases(tables: dict[str, Any]) -> str:
        engine = validate(CollectiveSpec, tables, "a test")
        return repr(Lowering(Fabric(machine, 16), {"own": engine}).lower(call, tuple(range(16))))

    assert phases(short) == phases(long)


def test_a_curve_of_one_point_needs_no_size() -> None:
    def curve(*points: dict[str, Any]) -> dict[str, Any]:
        return {"cores": {}, "transfer_bytes": number(2), "ladder": {"default": list(points)}}

    one = validate(CollectiveSpec, curve({"rate": number(7, "GB/s")}), "a test")
    assert [one.rate_bytes_per_s("send", size) for size in (1.0, 2.0**20, 1e12)] == [7e9] * 3


def test_of_several_points_each_says_its_size(tmp_path: Path) -> None:
    text = TINY_FILE.read_text(encoding="utf-8").replace("{ bytes_per_peer = { value = 10, unit = \"kB\", kind = "
                                                         "\"assumed\", source = \"made for tests\" }, ", "{ ")
    with pytest.raises(SpecError, match=r"ladder.default: got '2 points': bytes_per_peer may be left out of the only"):
        load_machine(written(tmp_path, text))


def test_pieces_of_element_wise_work_are_the_chips_where_a_family_has_none(tmp_path: Path) -> None:
    text = TINY_FILE.read_text(encoding="utf-8")
    line = re.search(r"^tile_bytes = .*\n", text, re.MULTILINE)
    assert line is not None
    bare = text.replace(line[0], "")
    with pytest.raises(SpecError) as caught:
        load_machine(written(tmp_path, bare))
    wanted = "a number of bytes is wanted here, or as tile_bytes of kernels.round.vector"
    assert caught.value.lines[0].endswith(f"chip.tile_bytes: got None: {wanted}")
    of_chip = load_machine(written(tmp_path, re.sub(r"^clock = ", line[0] + "clock = ", bare, flags=re.MULTILINE)))
    given = load_machine(TINY_FILE)
    assert of_chip.chip.tile_bytes == given.kernels["round"]["vector"].tile_bytes  # type: ignore[union-attr]
    one, other = (cost_of(WORKS[2], spec.chip, spec.kernels["round"]) for spec in (given, of_chip))
    assert repr(one) == repr(other)


def written(folder: Path, text: str) -> Path:
    path = folder / f"machine_{len(list(folder.iterdir()))}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_number_that_is_left_out_can_be_set() -> None:
    machine = load_machine("dgx_h100")
    key = "kernels.vllm.vector.unoverlapped"
    assert key not in dict(quantities(machine))
    found = dict(quantities(override(machine, {key: "0.5"})))[key]
    assert (found.si, found.kind, found.source, found.note) == (0.5, "assumed", "command line", "instead of none")
    work = replace(ops.passes(1e8, 1e8), family="vector")
    slower = override(machine, {key: "0.5"})
    assert cost_of(work, slower.chip, slower.kernels["vllm"]).unoverlapped > 0.0


@pytest.mark.parametrize(("key", "text", "says"), [
    ("kernels.vllm.vector.unoverlaped", "0.5", "(did you mean 'unoverlapped'?)"),
    ("kernels.vllm.vector.colour", "1", "keys there are cores, floor, hbm_share, unoverlapped, compute_share"),
    ("kernels.vllm.vector.unoverlapped", "2", "must be between 0 and 1"),
    ("kernels.vllm.vector.compute_share", "1e-400", "must be above 0, at most 1"),
    ("kernels.vllm.vector.unoverlapped.si", "0.5", "no key 'unoverlapped'"),
    ("kernels.vllm.vector.unoverlapped", "1 us", "'us' is a time"),
])
def test_what_setting_a_left_out_number_refuses(key: str, text: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        override(load_machine("dgx_h100"), {key: text})
    assert says in str(caught.value)


def test_a_fit_writes_no_number_for_a_term_that_is_not_there() -> None:
    numbers = {"floor": 2e-5, "per_slot": 1e-8, "hbm_share": 0.8, "unoverlapped": 0.0, "vector_share": 0.5}
    table = Table("grouped_gemm_bf16", "stream_gemm", numbers, "a table", "10 rows")
    text = text_of("vllm", "a test", list(tables_of(table)))
    assert "assumed" not in text
    sort, product, passes = (text.split(f"kernels.vllm.{name}_bf16]")[1].split("[kernels")[0]
                             for name in ("experts_sort", "grouped_gemm", "experts_sum"))  # fmt: skip
    assert "floor" in sort
    assert "floor" not in product + passes
    assert "unoverlapped" not in sort + passes
    assert 'unoverlapped = { value = 0, unit = "1", kind = "fitted"' in product  # where a fit ended is known


def assumed_nothings(tables: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Keys of what is assumed to be the same as if it were left out."""
    for key, value in tables.items():
        if says_nothing(key, value) and value["kind"] == "assumed":
            yield (*above, key)
        elif isinstance(value, dict) and "unit" not in value:
            yield from assumed_nothings(value, (*above, key))


@pytest.mark.parametrize("folder", ["topologies", PARTS])
def test_no_file_assumes_what_it_can_leave_out(folder: str) -> None:
    """Where another file gives a number, it takes a number to say that there is none."""
    for name in paths.names(folder):
        path = paths.find(folder, name)
        for key in assumed_nothings(read(path)):
            assert key in {("collectives", "nccl", "startup_per_peer")}, f"{path}: {'.'.join(key)}"
