"""Tables of measured library kernels as columns, from systems/CHIP/KIND/FRAMEWORK/VERSION of ai-dynamo/aiconfigurator.

Kept are sizes that transformers have (products at least 128 wide and deep), and of several kernel sources the
framework's usual one, which most rows have: in attention others serve head sizes of their own, in routed experts models
of their own. Tables of MLA are TensorRT-LLM's, CHIP.KIND.trtllm.VERSION.*.parquet.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, TypeAlias

from simulator import np
from simulator.calibrate.kernel_tables import TableMissing
from simulator.errors import InputError

Columns: TypeAlias = dict[str, Any]  # arrays of one length by name; `seconds` is what was measured
LEAST_SIDE = 128
MOST_SHARING = 16  # query heads of a key head; beyond, libraries fall back to kernels without tensor cores
EVEN_TOKENS = 2  # tables of skewed routing: rows of so few tokens take as long as those of even routing
EXPERTS = {"bf16": ("bfloat16",), "fp8": ("fp8",), "fp8_block": ("fp8_block",), "int4": ("int4_wo",),
           "mxfp4": ("w4a16_mxfp4",), "mxfp4_marlin": ("w4a16_mxfp4", "int4_wo"), "mxfp4_fp8": ("w4a8_mxfp4_mxfp8",),
           "nvfp4": ("nvfp4",)}  # fmt: skip
"""A table's data types of routed experts by ours. Marlin's are one kernel for weights of four bits."""
WHOLE = ("mxfp4_marlin",)
"""Of which no rows of expert parallelism are kept: what Marlin needs for each expert goes by those of all ranks."""
BACKENDS = {("trtllm", "nvfp4"): ("trtllm", "moe_torch_flow_min_latency"),
            ("trtllm", "fp8_block"): ("vllm", "_flashinfer_trtllm_"),
            ("vllm", "mxfp4_marlin"): ("vllm", "_marlin_")}  # fmt: skip
"""Kernel source of routed experts where it is not the one with most rows, and the framework in whose table it is.
TensorRT-LLM's own kernels for Blackwell (backend TRTLLM), which its deployment guides set for tensor-parallel experts;
of those for blocks of FP8 its table has none, and vLLM's has, which calls the same ones. Marlin serves MXFP4 in vLLM
where VLLM_MXFP4_USE_MARLIN is set."""
UNGATED = {(2688, 1856, 128, 6), (8192, 5120, 512, 22), (2048, 5120, 512, 22), (1024, 2688, 512, 22)}
"""Hidden size, intermediate size, experts, experts per token where experts have one product up (Nemotron)."""
MODEL = ("hidden_size", "inter_size", "num_experts", "topk")


@dataclass(frozen=True)
class Library:
    """A framework's tables for a chip, in a folder that has aiconfigurator/."""

    folder: Path
    chip: str
    framework: str
    version: str | None = None

    def source(self, kind: str, name: str) -> str:
        """What a number that was fitted on this table gives as its source."""
        there = self.version or next(reversed(self._there(kind)), "")
        return f"ai-dynamo/aiconfigurator at 095f58a, {self.chip} {self.framework} {there} {name}"

    def table(self, kind: str, name: str) -> Columns:
        """All columns of systems/CHIP/KIND/FRAMEWORK/VERSION/NAME.parquet; TableMissing if it is not there."""
        return _read(self._versions(kind) / self._version(kind) / f"{name}.parquet")

    @property
    def mla_chip(self) -> str:
        """The chip in whose tables MLA is: its own, or B200, which has the same die, for GB200."""
        return {"gb200": "b200_sxm"}.get(self.chip, self.chip)

    def older(self, kind: str, name: str) -> Columns:
        """All columns of CHIP.KIND.trtllm.VERSION.NAME.parquet; TableMissing if it is not there."""
        found = sorted((self.folder / "aiconfigurator").glob(f"{self.mla_chip}.{kind}.trtllm.*.{name}.parquet"))
        if not found:
            raise TableMissing(f"no table {self.mla_chip}.{kind}.trtllm.*.{name}.parquet")
        return _read(found[-1])

    def is_there(self) -> bool:
        """Whether the folder has any table of it."""
        return any(self.has(kind) for kind in ("gemm", "attention", "moe"))

    def has(self, kind: str) -> bool:
        """Whether the folder has a table of this kind."""
        return bool(self._there(kind))

    def _versions(self, kind: str) -> Path:
        return self.folder / "aiconfigurator" / "systems" / self.chip / kind / self.framework

    def _there(self, kind: str) -> list[str]:
        return sorted(path.name for path in self._versions(kind).glob("*") if path.is_dir())

    def _version(self, kind: str) -> str:
        there = self._there(kind)
        if not there:
            raise TableMissing(f"no table {self._versions(kind)}")
        if self.version is None:
            return there[-1]
        if self.version not in there:
            raise InputError(f"{self._versions(kind)} has no version '{self.version}': there is {', '.join(there)}")
        return self.version


@lru_cache(maxsize=8)
def _read(path: Path) -> Columns:
    import pyarrow
    import pyarrow.parquet as parquet

    if not path.is_file():
        raise TableMissing(f"no table {path}")
    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: no Parquet file: {error}") from None
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    return {**columns, "seconds": columns["latency"].astype(float) / 1e3}


def where(columns: Columns, kept: Any) -> Columns:
    """The rows of a mask, or at places."""
    return {name: column[kept] for name, column in columns.items()}


def floats(columns: Columns, *names: str) -> Columns:
    """With these columns as floats."""
    return {**columns, **{name: columns[name].astype(float) for name in names}}


def products(library: Library, dtype: str) -> Columns:
    """m, n, k of one data type."""
    table = library.table("gemm", "gemm_perf")
    kept = (table["gemm_dtype"] == dtype) & (table["n"] >= LEAST_SIDE) & (table["k"] >= LEAST_SIDE)
    return floats(where(table, kept), "m", "n", "k")


def attention(library: Library, phase: str, cache: str) -> Columns:
    """phase: "context" or "generation"; cache: data type of keys and values, "bfloat16" or "fp8".

    Of arithmetic in FP8 and in BF16 over an FP8 cache, the former. Prompts of one token are decode. Heads with keys of
    their own are left out of TensorRT-LLM's decode: a kernel without tensor cores serves them.
    """
    table = library.table("attention", f"{phase}_attention_perf")
    table = {"window_size": np.zeros(len(table["seconds"])), **table}  # older releases were measured without
    kept = table["kv_cache_dtype"] == cache
    if cache == "fp8" and phase == "context" and (table["attn_dtype"][kept] == "fp8").any():
        kept &= table["attn_dtype"] == "fp8"
    kv_heads = np.where(table["num_key_value_heads"] == 0, table["num_heads"], table["num_key_value_heads"])
    kept &= table["num_heads"] <= MOST_SHARING * kv_heads
    if phase == "context":
        kept &= table["isl"] > 1
    elif library.framework == "trtllm":
        kept &= table["num_heads"] > kv_heads
    if not kept.any():
        return where(table, kept)
    usual = Counter(table["kernel_source"][kept].tolist()).most_common(1)[0][0]
    names = ("batch_size", "isl", "num_heads", "kv_heads", "head_dim", "step", "window_size")
    return floats(where({**table, "kv_heads": kv_heads}, kept & (table["kernel_source"] == usual)), *names)


def experts(library: Library, dtype: str) -> Columns:
    """Routed experts of one data type, a key of EXPERTS, on the fullest rank, by the source that serves most rows, or
    that of BACKENDS.

    Others are kept for shapes that it does not have, of models that it serves. `local`: rows of every local expert;
    `up`: how many products lead up.
    """
    kept = _of_backend(library, dtype)
    if kept is None:
        rows = _of_dtype(library, dtype)
        kept = _usual_models(rows) if dtype not in WHOLE else where(rows, slice(0))
    chosen = _one_each(kept)
    keys = ("num_tokens", "num_experts", "topk", "distribution", "moe_ep_size")
    shapes, place = np.unique(np.array([chosen[key].astype(str) for key in keys]), axis=1, return_inverse=True)
    local = [fullest(int(tokens), int(count), int(topk), str(kind), int(ranks))
             for tokens, count, topk, kind, ranks in shapes.T]  # fmt: skip
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    gated = [(h, i, e, t) not in UNGATED for h, i, e, t in
             zip(*(chosen[key].tolist() for key in MODEL), strict=True)]
    return {**floats(chosen, *names), "local": np.array(local, dtype=object)[place.ravel()],
            "up": np.where(gated, 2.0, 1.0)}  # fmt: skip


def experts_source(library: Library, dtype: str) -> str:
    """The table in which `experts` finds them."""
    of_backend = _of_backend(library, dtype) is not None
    return (_with_backend(library, dtype)[0] if of_backend else library).source("moe", "moe_perf")


def _with_backend(library: Library, dtype: str) -> tuple[Library, str]:
    framework, source = BACKENDS.get((library.framework, dtype), (library.framework, ""))
    return (library if framework == library.framework else Library(library.folder, library.chip, framework)), source


def _of_backend(library: Library, dtype: str) -> Columns | None:
    """Rows of the kernel source that BACKENDS names; None if it names none, or the table has no such rows."""
    other, source = _with_backend(library, dtype)
    if not source or not other.has("moe"):
        return None
    table = _of_dtype(other, dtype)
    if not len(table["seconds"]):
        return None
    named = np.array([source in one for one in table["kernel_source"].tolist()])
    kept = where(table, named & ((table["moe_ep_size"] == 1) | (dtype not in WHOLE)))
    return kept if len(kept["seconds"]) else None


def _of_dtype(library: Library, dtype: str) -> Columns:
    table = library.table("moe", "moe_perf")
    return where(table, np.isin(table["moe_dtype"].astype(str), EXPERTS[dtype]))


def _usual_models(table: Columns) -> Columns:
    """Without kernel sources of which no model is one of those that the most used source serves."""
    if not len(table["seconds"]):
        return table
    models = list(zip(*(table[key].tolist() for key in MODEL), strict=True))
    sources = table["kernel_source"].tolist()
    usual = Counter(sources).most_common(1)[0][0]
    served = {model for model, source in zip(models, sources, strict=True) if source == usual}
    kept = {source for model, source in zip(models, sources, strict=True) if model in served}
    return where(table, np.array([source in kept for source in sources]))


def _one_each(table: Columns) -> Columns:
    """One row for each shape: of the source that serves most rows where it has it, else the fastest."""
    keys = (*MODEL, "num_tokens", "moe_tp_size", "moe_ep_size", "distribution")
    served = Counter(table["kernel_source"].tolist())
    rank = np.array([-served[source] for source in table["kernel_source"].tolist()])
    order = np.lexsort((table["seconds"], rank))
    shapes = list(zip(*(table[key][order].tolist() for key in keys), strict=True))
    first = {shape: place for place, shape in reversed(list(enumerate(shapes)))}
    return where(table, order[sorted(first.values())])


@lru_cache(maxsize=65536)
def fullest(tokens: int, experts_: int, topk: int, distribution: str, ranks: int) -> Rows:
    """Rows of every local expert, on the first rank of even routing, and on the one with most rows otherwise."""
    rows = _rows(tokens, experts_, topk, "balanced" if tokens <= EVEN_TOKENS else distribution)
    blocks = rows.reshape(ranks, -1)
    return Rows(blocks[0] if distribution == "balanced" else blocks[blocks.sum(axis=1).argmax()])


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of local experts."""

    each: Any


@lru_cache(maxsize=4096)
def _rows(tokens: int, count: int, topk: int, distribution: str) -> Any:
    """Rows of every expert as the tables' authors assign them (aiconfigurator, collector/helper.py).

    balanced: a token's experts are evenly spread, and the next token's are their neighbours. power_law_S: rows have the
    density x ** -S between 1 and 0.8 tokens (0.01 and 2 where rows are fewer than experts); the draw is our own.
    """
    if distribution == "balanced":
        stride, token = ceil(count / topk), np.arange(tokens)[:, None]
        start = token if tokens >= stride else token * stride / tokens
        chosen = np.floor(start + np.arange(topk)[None, :] * stride).astype(int) % count
        return np.bincount(chosen.ravel(), minlength=count)
    power = 1.0 - float(distribution.rpartition("_")[2])
    least, most = (1.0, 0.8 * tokens) if tokens * topk > count else (0.01, 2.0)
    random = np.random.default_rng((tokens, count, topk, round(-100 * power)))
    drawn = ((most**power - least**power) * random.random(count) + least**power) ** (1.0 / power)
    rows = np.minimum(np.round(drawn / drawn.sum() * tokens * topk).astype(int), tokens)
    order, place = np.argsort(-rows, kind="stable"), 0
    while (missing := tokens * topk - int(rows.sum())) != 0:
        expert = order[place % count] if missing > 0 else order[-1 - place % count]
        if missing > 0 and rows[expert] < tokens:
            rows[expert] += 1
        elif missing < 0 and rows[expert] > 0:
            rows[expert] -= 1
        place += 1
    return rows
