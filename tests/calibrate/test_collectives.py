"""Fits of protocols on tables that were made from protocols, and what the command says about a machine's engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from simulator.calibrate.collectives import CHIPS, ENGINES, simulated, tables_of
from simulator.calibrate.protocol_fit import Numbers, Row, Way, fit
from simulator.collective.protocols import parts, wire_bytes
from simulator.paths import find
from simulator.spec.load import load_machine
from tests.conftest import Outcome

HOP_S, LINK = 1e-6, 450e9
ONE, TWO = Way("one_shot", "one_shot", "up_to"), Way("two_shot", "direct", "up_to")
RING, ANY = Way("ring", "ring", "above"), Way("ring", "ring")
TRUE = (Numbers(ONE, 2e-6, 0.1e-6, 250e9, 2.0**24), Numbers(TWO, 2.5e-6, 0.3e-6, 300e9, 2.0**24),
        Numbers(RING, 30e-6, 0.5e-6, 400e9, 2.0**24))  # fmt: skip
SIZES = [2.0**power for power in range(8, 31)]
FEW = 2**10, 2**16, 2**22, 2**27


def time_s(numbers: Numbers, ranks: int, size: float) -> float:
    """What one protocol says."""
    way, starts = numbers.way, parts(numbers.way.algorithm, "all_reduce")
    latency_s = HOP_S + numbers.startup_s + numbers.startup_per_peer_s * (ranks - 1)
    return starts * latency_s + wire_bytes(way.algorithm, "all_reduce", size, ranks) / numbers.rate_bytes_per_s


def fastest_s(numbers: list[Numbers] | tuple[Numbers, ...], ranks: int, size: float) -> float:
    return min(time_s(one, ranks, size) for one in numbers if one.takes(size))


def test_a_fit_finds_the_protocols_that_a_table_was_made_of() -> None:
    rows = [Row(ranks, size, fastest_s(TRUE, ranks, size)) for ranks in (2, 4, 8) for size in SIZES]
    found = fit(rows, "all_reduce", (ONE, TWO, RING), HOP_S, LINK)
    errors = sorted(abs(fastest_s(found, row.ranks, row.size_bytes) / row.seconds - 1.0) for row in rows)
    assert errors[len(errors) // 2] < 0.01
    assert errors[int(0.9 * len(errors))] < 0.05
    between = [(ranks, 1.5 * size) for ranks in (3, 6) for size in SIZES if not 2.0**23 < size < 2.0**25]
    assert max(abs(fastest_s(found, *one) / fastest_s(TRUE, *one) - 1.0) for one in between) < 0.1, "rows held back"


def test_no_protocol_is_faster_than_the_link() -> None:
    rows = [Row(ranks, size, 1e-6 + size / 900e9) for ranks in (2, 4, 8) for size in SIZES]
    found = fit(rows, "all_reduce", (ANY,), HOP_S, LINK)
    assert found[0].rate_bytes_per_s <= LINK * (1 + 1e-9)
    assert found[0].startup_s >= 0


def write_tables(folder: Path, machine: str, slower: float, sizes: tuple[int, ...] = FEW) -> None:
    """Tables in which everything takes `slower` times as long as on a machine of the library."""
    spec = load_machine(machine)
    for engine in ENGINES:
        kind, name = ("half", "nccl_perf") if engine.library == "nccl" else ("bfloat16", "custom_allreduce_perf")
        column = "nccl_dtype" if engine.library == "nccl" else "allreduce_dtype"
        seconds = simulated(spec, engine.name, "all_reduce")
        rows = [{"op_name": "all_reduce", column: kind, "num_gpus": ranks, "message_size": size // 2,
                 "latency": seconds(Row(ranks, size, 0.0)) * 1e3 * slower}
                for ranks in (2, 8) for size in sizes]  # fmt: skip
        path = folder / CHIPS[machine] / "comm" / engine.library / "1.0" / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_the_command_says_how_far_a_machine_is(braid: Callable[..., Outcome], tmp_path: Path) -> None:
    write_tables(tmp_path, "dgx_h100", 1.25)
    done = braid("calibrate", "collectives", tmp_path, "--machine", "dgx_h100", "--only", "nccl")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].split(maxsplit=3) == [
        "dgx_h100", "nccl", "all_reduce", "all                    8 rows, median 20.0%, 90% within 20.0%"]
    assert "8 KiB to 4 MiB" in done.out


def test_what_a_fit_writes_is_a_part(braid: Callable[..., Outcome], tmp_path: Path) -> None:
    write_tables(tmp_path, "dgx_h100", 1.0, tuple(map(int, SIZES)))
    fitted = braid("calibrate", "collectives", tmp_path, "--machine", "dgx_h100", "--only", "nccl", "--fit",
                   tmp_path / "own.toml")  # fmt: skip
    assert fitted.code == 0, fitted.err
    (tmp_path / "mine.toml").write_text('extends = ["h100_sxm", "hgx_nvlink4", "own.toml"]\nname = "mine"\ntitle = ""\n'
                                        'doc = ""\n')  # fmt: skip
    mine = load_machine(tmp_path / "mine.toml")
    assert list(mine.collectives) == ["nccl"]
    assert "nccl 1.0" in mine.collectives["nccl"].startup.source
    rows = tables_of(tmp_path, "h100_sxm", "nccl")["all_reduce"]
    seconds = simulated(mine, "nccl", "all_reduce")
    errors = sorted(abs(seconds(row) / row.seconds - 1.0) for row in rows)
    assert errors[len(errors) // 2] < 0.02, "the table was made of protocols: a fit must find them or their like"


def test_a_table_that_is_too_small_is_refused(braid: Callable[..., Outcome], tmp_path: Path) -> None:
    write_tables(tmp_path, "dgx_h100", 1.0)
    done = braid("calibrate", "collectives", tmp_path, "--machine", "dgx_h100", "--only", "*vllm", "--fit", "own.toml")
    assert done.is_one_clear_message(2), done
    assert "8 rows of all_reduce are too few to tell 5 protocols apart" in done.err


@pytest.mark.parametrize(("arguments", "said"), [
    (("--machine", "dgx_h10"), "no tables are read for machine 'dgx_h10' (did you mean 'dgx_h100'?)"),
    (("--machine", "dgx_h100"), "no table in"),
    (("--only", "mpi"), "no engine matches 'mpi'; there are: nccl,"),
    (("--fit", "own.toml"), "--fit needs --machine"),
])  # fmt: skip
def test_what_the_command_refuses(braid: Callable[..., Outcome], tmp_path: Path, arguments: tuple[str, ...],
                                  said: str) -> None:  # fmt: skip
    done = braid("calibrate", "collectives", tmp_path, *arguments)
    assert done.is_one_clear_message(2), done
    assert said in done.err


def test_other_dtypes_and_eager_kernels_are_left_out(tmp_path: Path) -> None:
    row = {"op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": 2, "message_size": 512, "latency": 0.5}
    path = tmp_path / "h100_sxm" / "comm" / "vllm" / "1.0" / "custom_allreduce_perf.parquet"
    path.parent.mkdir(parents=True)
    rows = [{**row, "backend": "vllm_eager"}, {**row, "backend": "vllm_graph"}, {**row, "allreduce_dtype": "fp8"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert tables_of(tmp_path, "h100_sxm", "vllm") == {"all_reduce": [Row(2, 1024.0, 0.5e-3)]}


@pytest.mark.parametrize("machine", CHIPS)
def test_every_machine_with_tables_has_every_engine(machine: str) -> None:
    assert find("topologies", machine).is_file()
    engines = load_machine(machine).collectives
    for engine in ENGINES:
        assert engines[engine.name].protocols, engine.name
