"""A library's tables, made from a known law: the search finds the law again, and the command writes it as a part."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest
from pydantic import TypeAdapter

from simulator import np, paths
from simulator.calibrate import library_families as families
from simulator.calibrate.library import calibrate, chip_of
from simulator.calibrate.library_fit import fit
from simulator.calibrate.library_tables import Library, _read, experts, fullest
from simulator.die.coverage import outside
from simulator.model import library_kernels as lib
from simulator.model.library_kernels import QUANTISATIONS
from simulator.spec.kernels import KernelSpec
from simulator.spec.parts import PARTS
from tests.conftest import Outcome

Braid = Callable[..., Outcome]
CHIP = "h100_sxm"
LAW = {"floor": 2.5e-6, "serial_per_k": 6e-10, "split_k": 4096.0, "hbm_share": 0.8, "compute_share": 0.7,
       "tile_ramp": 200.0, "stream_k": 512.0, "unoverlapped": 0.1, "tile_m": 128.0, "tile_n": 256.0, "granule": 16.0,
       "warm": 0.0}  # fmt: skip
DECODE = {"floor": 9e-6, "hbm_share": 0.85, "compute_share": 0.5, "unoverlapped": 0.1, "tile_m": 64.0, "granule": 64.0,
          "tile_keys": 128.0, "split_keys": 128.0, "combine": 2e-6, "tile_latency": 2e-6, "warm": 0.0}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Products in BF16 of vLLM 1.0 on H100 as LAW has them."""
    sizes = [(m, n, k) for m in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
             for n in (256, 1024, 4096, 8192, 28672) for k in (512, 2048, 4096, 8192, 28672)]  # fmt: skip
    m, n, k = np.array(sizes, dtype=float).T
    core = families._chip(chip_of(CHIP), "bf16")
    seconds = families._product_s(core, QUANTISATIONS["bf16"], {"m": m, "n": n, "k": k}, LAW)
    put(tmp_path, "gemm", "gemm_perf", {
        "gemm_dtype": ["bfloat16"] * len(m), "kernel_source": ["cublas"] * len(m), "m": m.astype(int),
        "n": n.astype(int), "k": k.astype(int), "latency": 1e3 * seconds})  # fmt: skip
    return tmp_path


def put(folder: Path, kind: str, name: str, columns: dict) -> None:
    place = folder / "aiconfigurator" / "systems" / CHIP / kind / "vllm" / "1.0"
    place.mkdir(parents=True)
    parquet.write_table(pyarrow.table(columns), place / f"{name}.parquet")


def test_products_of_a_known_law_are_found_again(folder: Path) -> None:
    lines = {line.family: line for line in calibrate(Library(folder, CHIP, "vllm"))}
    found = lines["gemm_bf16"].found
    assert found is not None
    for errors in (*found.errors.values(),):
        assert errors.rows
        assert errors.median < 0.03
        assert errors.ninth_decile < 0.1
    assert max(found.held_back.values()) < 0.08
    assert found.numbers["floor"] == pytest.approx(LAW["floor"], rel=0.15)
    assert found.numbers["hbm_share"] == pytest.approx(LAW["hbm_share"], rel=0.05)
    assert found.numbers["compute_share"] == pytest.approx(LAW["compute_share"], rel=0.15)
    assert "left out: no table" in lines["generation_attention"].why
    assert "left out: not in the table" in lines["gemm_fp8"].why


def test_decode_attention_of_a_known_law_is_found_again(tmp_path: Path) -> None:
    rows = [(b, heads, kv, keys) for b in (1, 4, 16, 64, 256) for heads, kv in ((8, 1), (32, 8), (64, 8))
            for keys in (2, 128, 1024, 4096, 16384, 65536)]  # fmt: skip
    batch, heads, kv_heads, keys = np.array(rows).T
    put(tmp_path, "attention", "generation_attention_perf", {
        "attn_dtype": ["bfloat16"] * len(rows), "kv_cache_dtype": ["bfloat16"] * len(rows),
        "kernel_source": ["one"] * len(rows), "batch_size": batch, "isl": [1] * len(rows), "num_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": [128] * len(rows), "step": keys - 1,
        "window_size": [0] * len(rows), "latency": [1.0] * len(rows)})  # fmt: skip
    family = families._attention(Library(tmp_path, CHIP, "vllm"), chip_of(CHIP), "generation", "bfloat16")
    assert family is not None
    family.columns["seconds"] = family.simulated(family.columns, DECODE)
    found = fit(family)
    assert found.errors["decode sizes"].median < 0.03
    assert found.numbers["floor"] == pytest.approx(DECODE["floor"], rel=0.15)
    longer = {**family.columns, "keys": 4 * family.columns["keys"], "streamed": 4 * family.columns["streamed"]}
    off = family.simulated(longer, found.numbers) / family.simulated(longer, DECODE) - 1.0
    assert abs(off).max() < 0.15
    assert np.median(abs(off)) < 0.05


def test_the_command_writes_a_part(braid: Braid, folder: Path, tmp_path: Path) -> None:
    written = tmp_path / "h100_sxm.vllm.toml"
    done = braid("calibrate", "kernels", folder, "--chip", CHIP, "--framework", "vllm", "--write", written)
    assert done.code == 0
    line = next(line for line in done.out.splitlines() if line.startswith("gemm_bf16"))
    assert "decode sizes" in line
    assert "held back: without the largest" in line
    tables = tomllib.loads(written.read_text())["kernels"]["vllm"]
    assert set(tables) == {"vector", "phase", "gemm_bf16"}
    family = TypeAdapter(KernelSpec).validate_python(tables["gemm_bf16"])
    assert family.floor.source == "ai-dynamo/aiconfigurator at 095f58a, h100_sxm vllm 1.0 gemm_perf"
    assert outside(lib.linear(16384, 256, 512), family) is None
    assert outside(lib.linear(16385, 256, 512), family) == "m = 16385, measured 1..16384"


@pytest.mark.parametrize(("more", "named"), [
    (("--chip", "h100"), "--chip and --framework go together"),
    (("--chip", "h100", "--framework", "vllm"), "no chip 'h100' (did you mean 'h100_sxm'?)"),
    (("--chip", CHIP, "--framework", "vlm"), "no framework 'vlm' (did you mean 'vllm'?)"),
    (("--chip", CHIP, "--framework", "vllm", "--version", "2"), "has no version '2': there is 1.0"),
    (("--chip", CHIP, "--framework", "sglang"), "has no table of sglang on h100_sxm"),
    (("--write", "x.toml"), "go with --chip and --framework"),
])
def test_what_is_wrong_is_one_message(braid: Braid, folder: Path, more: tuple[str, ...], named: str) -> None:
    done = braid("calibrate", "kernels", folder, *more)
    assert done.is_one_clear_message(2)
    assert named in done.err


def test_a_table_with_other_columns(braid: Braid, folder: Path) -> None:
    put(folder, "moe", "moe_perf", {"latency": [1.0], "moe_dtype": ["bfloat16"]})
    done = braid("calibrate", "kernels", folder, "--chip", CHIP, "--framework", "vllm")
    assert done.code == 2
    assert "the table of grouped_gemm_bf16 has no column 'hidden_size'" in done.err


def test_a_table_launched_by_the_host_takes_another_frameworks_numbers(folder: Path) -> None:
    path = folder / "aiconfigurator" / "systems" / CHIP / "gemm" / "vllm" / "1.0" / "gemm_perf.parquet"
    table = parquet.read_table(path).to_pydict()
    other = folder / "aiconfigurator" / "systems" / CHIP / "gemm" / "sglang" / "1.0"
    other.mkdir(parents=True)
    parquet.write_table(pyarrow.table(table), other / "gemm_perf.parquet")
    slow = {**table, "latency": [max(one, 0.06) for one in table["latency"]]}
    parquet.write_table(pyarrow.table(slow), path)
    line = next(line for line in calibrate(Library(folder, CHIP, "vllm")) if line.family == "gemm_bf16")
    assert line.table is not None
    assert "launched by the host, 60 us each" in line.table.assumed
    assert "h100_sxm sglang" in line.table.source
    assert line.table.numbers["floor"] == pytest.approx(LAW["floor"], rel=0.15)


def experts_of(folder: Path, dtype: str, framework: str, sources: dict[str, tuple[str, int, int]]) -> np.ndarray:
    """Seconds of what is kept of a table with a row for each kernel source: (data type, experts, ranks of them)."""
    place = folder / "aiconfigurator" / "systems" / "b200_sxm" / "moe" / "vllm" / "1.0"
    place.mkdir(parents=True, exist_ok=True)
    given, count = list(sources.values()), len(sources)
    parquet.write_table(pyarrow.table({
        "moe_dtype": [dtype for dtype, _, _ in given], "kernel_source": list(sources), "hidden_size": [1024] * count,
        "inter_size": [512] * count, "num_experts": [experts for _, experts, _ in given], "topk": [2] * count,
        "num_tokens": [4] * count, "moe_tp_size": [1] * count, "moe_ep_size": [ranks for _, _, ranks in given],
        "distribution": ["balanced"] * count, "latency": [float(place) for place in range(count)]}),
        place / "moe_perf.parquet")  # fmt: skip
    _read.cache_clear()
    return sorted(1e3 * experts(Library(folder, "b200_sxm", framework), dtype)["seconds"])


def test_kernels_that_another_framework_s_table_has(tmp_path: Path) -> None:
    """TensorRT-LLM's own for blocks of FP8 are in vLLM's table, which calls them."""
    sources = {"x_flashinfer_trtllm_a": ("fp8_block", 8, 1), "triton": ("fp8_block", 8, 1),
               "x_flashinfer_trtllm_b": ("fp8_block", 16, 2)}  # fmt: skip
    assert experts_of(tmp_path, "fp8_block", "trtllm", sources) == [0.0, 2.0]


def test_marlin_is_one_kernel_for_four_bits_and_counts_all_experts(tmp_path: Path) -> None:
    sources = {"a_marlin_b": ("w4a16_mxfp4", 8, 1), "c_marlin_d": ("int4_wo", 16, 1), "triton": ("w4a16_mxfp4", 8, 1),
               "e_marlin_f": ("int4_wo", 16, 2)}  # fmt: skip
    assert experts_of(tmp_path, "mxfp4_marlin", "vllm", sources) == [0.0, 1.0]
    assert experts_of(tmp_path, "mxfp4_marlin", "vllm", {"triton": ("w4a16_mxfp4", 8, 1)}) == []


def test_a_product_in_blocks_is_two_kernels_and_no_more(folder: Path) -> None:
    """A table of 12 us was launched by the host, if it is of products in blocks."""
    path = folder / "aiconfigurator" / "systems" / CHIP / "gemm" / "vllm" / "1.0" / "gemm_perf.parquet"
    table = parquet.read_table(path).to_pydict()
    latency = [max(one, 0.012) for one in table["latency"]]
    for dtype, left_out in (("fp8", False), ("fp8_block", True)):
        parquet.write_table(pyarrow.table({**table, "gemm_dtype": [dtype] * len(latency), "latency": latency}), path)
        _read.cache_clear()
        line = next(line for line in calibrate(Library(folder, CHIP, "vllm")) if line.family == f"gemm_{dtype}")
        assert ("launched by the host, 12 us each" in line.why) == left_out


def test_routing_of_the_tables() -> None:
    assert fullest(4, 8, 2, "balanced", 1).each.tolist() == [1, 1, 1, 1, 1, 1, 1, 1]
    assert fullest(1, 256, 8, "balanced", 8).each.sum() == 1  # a token's experts are spread over all ranks
    skewed = fullest(64, 128, 8, "power_law_1.2", 4).each
    assert len(skewed) == 32
    assert skewed.sum() > 64 * 8 / 4  # the fullest of four ranks
    assert skewed.max() <= 64  # no token takes an expert twice
    assert fullest(2, 128, 8, "power_law_1.2", 1).each.sum() == 16


LIBRARIES = [name for name in paths.names(PARTS) if name.endswith((".vllm", ".sglang", ".trtllm"))]


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_in_the_tree_are_whole(name: str) -> None:
    """A library part has only kernels, which its chip can run, and a table's range for each that was fitted."""
    chip, _, framework = name.partition(".")
    tables = tomllib.loads(paths.find(PARTS, name).read_text())
    assert set(tables) == {"kernels"}
    assert set(tables["kernels"]) == {framework}
    peaks = chip_of(chip).peak["sm"]
    for family, table in tables["kernels"][framework].items():
        kernel = TypeAdapter(KernelSpec).validate_python(table)
        assert next(iter(kernel.cores)) == "sm"
        if kernel.law == "stream_gemm":
            assert QUANTISATIONS.get(family.split("gemm_")[1], QUANTISATIONS["bf16"]).arithmetic in peaks
        assert (kernel.covers is None) == (kernel.law == "vector")
    assert {"vector", "gemm_bf16", "context_attention", "generation_attention", "grouped_gemm_bf16"} <= set(
        tables["kernels"][framework])
