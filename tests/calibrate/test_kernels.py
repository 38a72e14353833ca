"""`braid calibrate kernels` on made-up tables: how far machines are, what a fit finds, what is wrong with files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.calibrate.kernel_tables import solo_s
from simulator.die.kernels import cost_of
from simulator.model import library_kernels, ops
from simulator.spec.load import load_machine
from tests.conftest import Outcome

Braid = Callable[..., Outcome]
SIZES = [(m, n, k) for m in (64, 512, 4096) for n, k in ((512, 7168), (4096, 7168))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """GEMMs that take 1.25 times what the machine's file says."""
    machine = load_machine("h20_node")
    lines = ["m,n,k,latency_us"]
    for m, n, k in SIZES:
        cost = cost_of(ops.gemm(m, n, k, "fp8"), machine.chip, machine.kernels["sglang_2025"])
        lines.append(f"{m},{n},{k},{1.25e6 * solo_s(cost, machine.chip)}")
    (tmp_path / "infersim").mkdir()
    (tmp_path / "infersim" / "gemm.h20.data.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_it_says_how_far_the_machine_is_from_the_table(braid: Braid, folder: Path) -> None:
    done = braid("calibrate", "kernels", folder, "--machine", "h20_node")
    assert done.code == 0
    assert done.out.splitlines()[0].split(maxsplit=2) == [
        "h20_node", "gemm_fp8", "6 rows, median 20.0%, 90% within 20.0%"]
    assert "left out: no table" in done.out.splitlines()[1]


def test_a_fit_finds_numbers_that_are_nearer(braid: Braid, folder: Path) -> None:
    before, after = braid("calibrate", "kernels", folder, "--only", "gemm_fp8", "--machine", "h20_node", "--fit",
                          "--json").json[:2]
    assert after["what"] == "gemm_fp8, fitted"
    assert {"floor", "sk", "cs", "tm"} <= set(after["numbers"])
    assert "median 20.0%" in before["text"]
    assert float(after["text"].partition("median ")[2].partition("%")[0]) < 5.0


@pytest.mark.parametrize(("more", "named"), [
    (("--only", "gemm_fp9"), "no kernel family matches 'gemm_fp9' (did you mean 'gemm_fp8'?)"),
    (("--machine", "h20"), "no tables are read for machine 'h20'"),
    (("--only", "flash_attention"), "none of the tables; flash_attention left out: no table"),
])
def test_a_wrong_name_or_a_missing_table_is_one_message(
    braid: Braid, folder: Path, more: tuple[str, ...], named: str
) -> None:
    done = braid("calibrate", "kernels", folder, *more)
    assert done.is_one_clear_message(2)
    assert named in done.err


def test_a_folder_that_is_not_there(braid: Braid, tmp_path: Path) -> None:
    done = braid("calibrate", "kernels", tmp_path / "nowhere")
    assert done.is_one_clear_message(2)
    assert "is no folder of tables" in done.err


@pytest.mark.parametrize(("text", "named"), [("m,n,latency_us\n1,2,3\n", "no column or row 'k'"),
                                             ("m,n,k,latency_us\nmany,2,3,4\n", "'many'")])
def test_a_table_with_other_columns_or_words_for_numbers(braid: Braid, folder: Path, text: str, named: str) -> None:
    (folder / "infersim" / "gemm.h20.data.csv").write_text(text)
    done = braid("calibrate", "kernels", folder, "--only", "gemm_fp8")
    assert done.is_one_clear_message(2)
    assert "h20_node, gemm_fp8" in done.err
    assert named in done.err
    (folder / "aiconfigurator").mkdir()
    (folder / "aiconfigurator" / "b200_sxm.gemm.trtllm.1.3.0rc20.gemm_perf.parquet").write_text("no Parquet")
    assert "no Parquet file" in braid("calibrate", "kernels", folder, "--machine", "dgx_b200").err


@pytest.mark.parametrize(("m", "us"), [(1024, 94.2), (4096, 346.9), (16384, 1301.0)])
def test_products_of_h100_carried_to_h20_are_near_its_own_table(m: int, us: float) -> None:
    """K = 7168, N = 1536 in blocks of FP8 (InferSim, bench_data/gemm/h20/data.csv), on which none was fitted."""
    machine = load_machine("hgx_h20")
    kernels = machine.kernels["sglang"]
    cost = cost_of(library_kernels.linear(m, 1536, 7168, "fp8_block"), machine.chip, kernels)
    assert solo_s(cost, machine.chip) == pytest.approx(us / 1e6, rel=0.1)
