"""The kernel families of a library: each with its table, its law over columns, and where the search begins.

Rows whose weights or cache may have stayed in L2 between repetitions are warm: the search tries up to which share of
L2 that is so (`warm`, which is no number of the family). Families have the names that `model.library_kernels` uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from simulator import np
from simulator.calibrate import library_tables as tables
from simulator.calibrate.library_fit import Family, Numbers
from simulator.calibrate.library_tables import Columns, Library, where
from simulator.die import tiles as laws
from simulator.die.kernels import ELEMENT_BYTES
from simulator.model.library_kernels import BF16, QUANTISATIONS, Quantisation
from simulator.spec.machine import ChipSpec

ENGINE = "sm"
PRODUCTS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "sq": "int8", "int4_wo": "int4",
            "nvfp4": "nvfp4"}  # fmt: skip
CACHES = {"bfloat16": "bf16", "fp8": "fp8"}
DECODE = 256  # tokens, requests: at most
LATENT, LATENT_VALUES, HEAD_KEYS, HEAD_VALUES = 576, 512, 192, 128  # of DeepSeek's MLA

GEMM_TILES = ((128, 128), (128, 256), (256, 128), (256, 256), (64, 128))
EXPERT_TILES = ((64, 16), (64, 64), (128, 16), (128, 64), (128, 128))
MEAN_TILES = ((8, 64), (8, 128), (16, 64), (16, 128), (32, 128))
SIDES = (8, 16, 32, 64, 128)
GEMM = {"floor": 3e-6, "serial_per_k": 3e-10, "split_k": 4096.0, "hbm_share": 0.85, "compute_share": 0.8,
        "tile_ramp": 256.0, "stream_k": 512.0, "port_share": 0.6, "unoverlapped": 0.05, "granule": 16.0}  # fmt: skip
ROUTED = {"floor": 2e-5, "per_slot": 1e-8, "per_row": 1e-10, "per_copy": 5e-9, "serial_per_k": 1e-10, "hbm_share": 0.8,
          "compute_share": 0.6, "tile_ramp": 128.0, "vector_share": 0.5, "unoverlapped": 0.05, "port_share": 1.0,
          "tile_n": 128.0, "warm": 0.5}  # fmt: skip
DECODING = {"floor": 8e-6, "tile_latency": 2e-6, "compute_share": 0.5, "hbm_share": 0.9, "unoverlapped": 0.2,
            "split_keys": 128.0, "combine": 2e-6, "port_share": 2.0, "tile_ramp": 50.0,
            "softmax_dims": 10.0}  # fmt: skip
PROMPTS = {"floor": 1e-5, "tile_latency": 2e-6, "compute_share": 0.7, "hbm_share": 0.5, "unoverlapped": 0.4,
           "softmax_dims": 20.0, "per_query": 3e-10, "port_share": 2.0, "tile_ramp": 20.0}  # fmt: skip


def families(library: Library, chip: ChipSpec) -> Iterator[tuple[str, str, Callable[[], Family | None]]]:
    """(name, source, what makes it) of every family that the chip could have; None: the table has no such rows."""
    gemm = library.source("gemm", "gemm_perf")
    peaks = chip.peak[ENGINE]
    for name, dtype in PRODUCTS.items():
        yield f"gemm_{dtype}", gemm, partial(_gemm, library, chip, name, QUANTISATIONS[dtype])
    for phase in ("context", "generation"):
        source = library.source("attention", f"{phase}_attention_perf")
        for name, dtype in CACHES.items():
            if dtype in peaks:
                end = "" if dtype == "bf16" else f"_{dtype}"
                yield f"{phase}_attention{end}", source, partial(_attention, library, chip, phase, name)
    for dtype in tables.EXPERTS:
        yield f"grouped_gemm_{dtype}", tables.experts_source(library, dtype), partial(_experts, library, chip, dtype)


def mla_families(library: Library, chip: ChipSpec) -> Iterator[tuple[str, str, Callable[[], Family | None]]]:
    """The same of MLA, whose tables are TensorRT-LLM's alone."""
    source = f"ai-dynamo/aiconfigurator at 095f58a, {library.mla_chip} trtllm 1.3.0rc20 "
    yield "context_mla", source + "context_mla_perf", partial(_mla, library, chip, "context", "bfloat16")
    yield "generation_mla", source + "generation_mla_perf", partial(_mla, library, chip, "generation", "bfloat16")
    yield "generation_mla_fp8", source + "generation_mla_perf", partial(_mla, library, chip, "generation", "fp8")
    yield "batched_gemm_bf16", source + "mla_bmm_perf", partial(_absorbed, library, chip)


def chip_numbers(chip: ChipSpec) -> dict[str, float]:
    """What `die.tiles.alone_s` asks of a chip, and its `l2_bytes`."""
    return {"cores": chip.cores[ENGINE].count, "port": chip.l2.port_rate[ENGINE].si, "l2": chip.l2.rate.si,
            "hbm": chip.hbm.peak.si, "hbm_together": chip.hbm.peak.si * chip.hbm.efficiency.si,
            "l2_bytes": chip.l2.capacity.si}  # fmt: skip


def _gemm(library: Library, chip: ChipSpec, name: str, q: Quantisation) -> Family | None:
    columns = tables.products(library, name)
    if not len(columns["m"]) or q.arithmetic not in chip.peak[ENGINE]:
        return None
    return product_family(columns, chip, q)


def product_family(columns: Columns, chip: ChipSpec, q: Quantisation) -> Family:
    """Products of `m`, `n`, `k` that took `seconds`."""
    start, free = dict(GEMM), ["floor", "serial_per_k", "split_k", "hbm_share", "compute_share", "tile_ramp",
                               "stream_k", "port_share", "unoverlapped"]
    if q.weight_bytes <= 1.0 and q.activation_bytes < BF16:
        start["input_rate"], free = 1e12, [*free, "input_rate"]
    tried = tuple({"tile_m": float(m), "tile_n": float(n), "stream_k": k, "warm": warm}
                  for m, n in GEMM_TILES for k in (512.0, 65536.0) for warm in (0.0, 1 / 6))  # fmt: skip
    law = partial(_product_s, _chip(chip, q.arithmetic), q)
    return Family("", columns, law, start, tuple(free), tried, columns["m"], columns["m"] <= DECODE)


def _chip(chip: ChipSpec, arithmetic: str) -> dict[str, float]:
    """With the peak of a core as `flops`, and the `element` of its data type in bytes."""
    cores = chip.cores[ENGINE].count
    return {**chip_numbers(chip), "flops": chip.peak[ENGINE][arithmetic].si / cores,
            "element": ELEMENT_BYTES[arithmetic]}  # fmt: skip


def _product_s(chip: dict[str, float], q: Quantisation, columns: Columns, v: Numbers) -> Any:
    m, n, k = columns["m"], columns["n"], columns["k"]
    tiled = laws.product(laws.rows_of(m, v), n, k, (chip["element"], q.weight_bytes, BF16), chip["flops"], v)
    weights = n * k * q.weight_bytes
    cold = np.where(weights < v["warm"] * chip["l2_bytes"], 0.0, weights)
    return laws.alone_s(tiled, cold + m * k * q.activation_bytes + m * n * BF16, chip, v)


def _attention(library: Library, chip: ChipSpec, phase: str, cache: str) -> Family | None:
    columns = tables.attention(library, phase, cache)
    return attention_family(columns, chip, CACHES[cache], phase == "context") if len(columns["seconds"]) else None


def attention_family(columns: Columns, chip: ChipSpec, cache: str, prompt: bool) -> Family:
    """Attention of `batch_size` sequences, causal over prompts of `isl` tokens or of one token each (`isl` = 1), after
    `step` cached ones, with `num_heads`, `kv_heads`, `head_dim` and `window_size`, that took `seconds`."""
    element = ELEMENT_BYTES[cache]
    head, batch = columns["head_dim"], columns["batch_size"]
    queries = columns["isl"]
    keys = columns["step"] + queries
    columns = {**columns, "queries": queries, "keys": keys, "heads": columns["num_heads"], "width": 2.0 * head,
               "stored": 2.0 * head, "window": columns["window_size"], "batch": batch,
               "causal": np.full(len(head), prompt)}  # fmt: skip
    seen = np.where(columns["window"] > 0, np.minimum(keys, columns["window"]), keys)
    new = batch * queries if prompt else 0.0
    kv = 2.0 * head * columns["kv_heads"]
    columns["moved"] = BF16 * 2.0 * batch * queries * columns["heads"] * head + new * kv * (BF16 + element)
    columns["streamed"] = batch * kv * element * (keys if prompt else seen)
    return _searched(columns, _chip(chip, cache), element, prompt)


def _searched(columns: Columns, chip: dict[str, float], element: float, prompt: bool) -> Family:
    start = dict(PROMPTS if prompt else DECODING)
    tried: tuple[Numbers, ...]
    if prompt:
        tried = tuple({"tile_m": tile, "granule": granule, "warm": 0.0, **sharing} for tile in (128.0, 256.0)
                      for granule in (16.0, tile) for sharing in ({}, {"sharing": 1.0}))  # fmt: skip
    else:
        tried = tuple({"tile_m": tile, "granule": tile, "tile_keys": keys, "warm": warm}
                      for tile in (8.0, 16.0, 64.0, 128.0) for keys in (64.0, 128.0) for warm in (0.0, 0.8))
    tokens = columns["batch"] * columns["queries"]
    size = columns["batch"] * columns["keys"]
    law = partial(_attention_s, chip, element)
    return Family("", columns, law, start, tuple(start), tried, size, tokens <= DECODE)


def _attention_s(chip: dict[str, float], element: float, columns: Columns, v: Numbers) -> Any:
    sharing = np.minimum(columns["heads"] / columns["kv_heads"], v.get("sharing", np.inf))
    one = laws.sequences(columns["queries"], columns["keys"], columns["causal"], columns["window"], sharing,
                         columns["heads"] / sharing, v)
    each = laws.Sequences(*(columns["batch"] * part for part in one))
    widths = columns["width"], columns["stored"], each.queries
    tiled = laws.attention(each, each.strip_keys / each.strips, widths, element, columns["moved"],
                           (chip["cores"], chip["flops"]), v)
    streamed = columns["streamed"]
    cold = np.where(streamed < v["warm"] * chip["l2_bytes"], 0.0, streamed)
    return laws.alone_s(tiled, cold + columns["moved"], chip, v)


def _mla(library: Library, chip: ChipSpec, phase: str, cache: str) -> Family | None:
    table = library.older("mla", f"{phase}_mla_perf")
    columns = tables.floats(where(table, table["kv_cache_dtype"] == cache), "batch_size", "isl", "num_heads", "step")
    prompt, element = phase == "context", ELEMENT_BYTES[CACHES[cache]]
    heads, batch, queries = columns["num_heads"], columns["batch_size"], columns["isl"]
    keys = columns["step"] + queries
    qk, v_dim = (HEAD_KEYS, HEAD_VALUES) if prompt else (LATENT, LATENT_VALUES)
    kept = (queries > 1) | (not prompt)
    columns = {**columns, "queries": queries, "keys": keys, "heads": heads, "batch": batch,
               "window": np.zeros(len(keys)),
               "kv_heads": heads if prompt else np.ones(len(keys)), "width": np.full(len(keys), float(qk + v_dim)),
               "stored": np.full(len(keys), float(qk + v_dim if prompt else qk)), "causal": np.full(len(keys), prompt),
               "moved": BF16 * batch * queries * heads * (qk + v_dim)}
    columns["streamed"] = batch * keys * element * columns["kv_heads"] * columns["stored"]
    return _searched(where(columns, kept), _chip(chip, CACHES[cache]), element, prompt)


def _absorbed(library: Library, chip: ChipSpec) -> Family:
    table = library.older("mla_bmm", "mla_bmm_perf")
    columns = tables.floats(where(table, table["bmm_dtype"] == "bfloat16"), "num_tokens", "num_heads")
    pre = columns["op_name"] == "mla_gen_pre"
    columns = {**columns, "m": columns["num_tokens"], "groups": columns["num_heads"],
               "n": np.where(pre, 512.0, 128.0), "k": np.where(pre, 128.0, 512.0)}  # fmt: skip
    start = {**GEMM, "warm": 0.5}
    tried = tuple({"tile_m": float(m), "tile_n": float(n)} for m, n in GEMM_TILES)
    free = ("floor", "serial_per_k", "hbm_share", "compute_share", "tile_ramp", "port_share", "unoverlapped")
    return Family("", columns, partial(_absorbed_s, _chip(chip, "bf16")), start, free, tried, columns["m"],
                  columns["m"] <= DECODE)


def _absorbed_s(chip: dict[str, float], columns: Columns, v: Numbers) -> Any:
    m, n, k, groups = columns["m"], columns["n"], columns["k"], columns["groups"]
    rows = laws.Rows(*(groups * part for part in laws.rows_of(m, v)))
    tiled = laws.product(rows, n, k, (BF16, BF16, BF16), chip["flops"], v)
    weights = groups * n * k * BF16
    cold = np.where(weights < v["warm"] * chip["l2_bytes"], 0.0, weights)
    return laws.alone_s(tiled, cold + BF16 * groups * m * (n + k), chip, v)


def _experts(library: Library, chip: ChipSpec, dtype: str) -> Family | None:
    q = QUANTISATIONS[dtype]
    columns = tables.experts(library, dtype)
    if not len(columns["seconds"]) or q.arithmetic not in chip.peak[ENGINE]:
        return None
    columns = {**columns, **_counted(columns["local"]), "tokens": columns["num_tokens"],
               "width": columns["inter_size"] / columns["moe_tp_size"], "hidden": columns["hidden_size"],
               "copies": columns["num_tokens"] * columns["topk"]}  # fmt: skip
    tiles = [{"tile_m": float(m), "granule": float(g)} for m, g in EXPERT_TILES]
    tiles += [{"tile_m": float(m), "granule": 16.0, "least_tile": float(least)} for least, m in MEAN_TILES]
    tried = tuple({**tile, **stream} for tile in tiles for stream in ({}, {"stream_k": 1024.0}))
    free = ("warm", "floor", "per_slot", "per_row", "per_copy", "serial_per_k", "hbm_share", "compute_share",
            "tile_ramp", "vector_share", "unoverlapped", "port_share")
    law = partial(_routed_s, _chip(chip, q.arithmetic), q)
    return Family("", columns, law, dict(ROUTED), free, tried, columns["tokens"], columns["tokens"] <= DECODE)


def _counted(local: Any) -> Columns:
    """Of local experts' rows: how many, of how many groups and slots, strips and padded rows of every tile tried."""
    known: dict[int, tuple[float, ...]] = {}
    for one in local:
        if id(one) not in known:
            each = one.each.astype(float)
            known[id(one)] = (each.sum(), float(np.count_nonzero(each)), len(each),
                              *(np.ceil(each / side).sum() for side in SIDES))  # fmt: skip
    counted = np.array([known[id(one)] for one in local], dtype=float).reshape(-1, 3 + len(SIDES)).T
    names = ("rows", "groups", "slots", *(f"strips{side}" for side in SIDES))
    return dict(zip(names, counted, strict=True))


def _strips(columns: Columns, height: Any) -> Any:
    """Strips of that height, one of those counted, over all groups."""
    if np.ndim(height) == 0:
        return columns[f"strips{height:.0f}"]
    return sum(np.where(height == side, columns[f"strips{side}"], 0.0) for side in SIDES)


def _routed_s(chip: dict[str, float], q: Quantisation, columns: Columns, v: Numbers) -> Any:
    """The chain of `model.library_kernels.routed`."""
    rows, hidden, width, up = columns["rows"], columns["hidden"], columns["width"], columns["up"]
    height, granule = laws.height_of(rows / np.maximum(columns["groups"], 1.0), v)
    counted = laws.Rows(rows, _strips(columns, height), _strips(columns, granule) * granule)
    weights = columns["groups"] * (1.0 + up) * hidden * width * q.weight_bytes
    cold = np.where(weights < v["warm"] * chip["l2_bytes"], 0.0, 1.0)
    passed = (BF16 * (2.0 * columns["tokens"] + rows) * hidden + BF16 * up * rows * width
              + q.activation_bytes * rows * (hidden + width))
    rate = min(chip["l2"], chip["hbm_together"], chip["hbm"] * v["vector_share"])
    total = v["floor"] + v.get("per_slot", 0.0) * columns["slots"] + v.get("per_row", 0.0) * rows + passed / rate
    total = total + v.get("per_copy", 0.0) * (columns["copies"] - rows)
    inner = {**v, "floor": 0.0}
    for n, k in ((up * width, hidden), (hidden, width)):
        tiled = laws.product(counted, n, k, (chip["element"], q.weight_bytes, BF16), chip["flops"], inner)
        moved = rows * (k * q.activation_bytes + n * BF16)
        stored = columns["groups"] * n * k * q.weight_bytes
        total = total + laws.alone_s(tiled, cold * stored + moved, chip, inner)
    return total
