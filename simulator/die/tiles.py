"""Laws of GPU library kernels whose tiles are shared out over all cores: products, attention, and how long they take.

Every argument is a number or an array of them (one element per row of a table), so that what a fit compares is what a
run costs. `v` holds the numbers of a kernel family in SI, by their names in the machine's file.

Product (stream-K: Osama et al., PPoPP 2023): output tiles of `tile_m x tile_n`, whose loop over K is cut into pieces of
at least `stream_k` elements that any core may take. A last strip of rows costs its own rows, by multiples of
`granule`::

    pieces = strips * ceil(N / tile_n) * ceil(K / stream_k)
    piece  = 2 * rows' / strips * tile_n * (K + tile_ramp) / ceil(K / stream_k) FLOP      rows': in multiples of granule

so time steps by a piece, and never by a whole wave of tiles. Latency is the floor, `serial_per_k` for up to `split_k`
elements of K, and a pass over the input at `input_rate` where the kernel quantises it first.

Worked example: M = 16, N = K = 8192, BF16, tile 128 x 256, stream_k 1024: 1 * 32 * 8 = 256 pieces of 2 * 16 * 256 *
1024 = 8.4 MFLOP; on 132 cores of 7.5 TFLOP/s two waves of 1.1 us. The 134 MB of weights take 46 us at 2.9 TB/s:
bytes bind.

Attention (split keys: Flash-Decoding, Dao et al. 2023): strips of `tile_m` rows, queries x heads that share keys. Where
strips are fewer than cores, their keys are split into pieces of `split_keys` or more, so that one wave holds them, and
a second kernel of `combine` sums up. A piece takes its arithmetic, softmax as `softmax_dims` elements more of the head
size, `tile_ramp` keys more to fill and drain it, and `tile_latency`. Keys are counted in multiples of `tile_keys`.

Time of either: latency + longer + unoverlapped * shorter, of compute (whole waves of pieces) and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel

from simulator import np
from simulator.units import Quantity

Number: TypeAlias = Any  # a float, or an array of them
Numbers: TypeAlias = Mapping[str, float]


class Tiled(NamedTuple):
    """A kernel cut in pieces: how many, how long one takes on one core, bytes through L2, and latency; in seconds."""

    pieces: Number
    piece_s: Number
    onchip_bytes: Number
    latency_s: Number


class Rows(NamedTuple):
    """Rows of a (grouped) product: all of them, strips of `tile_m` and rows in multiples of `granule`, over groups."""

    count: Number
    strips: Number
    padded: Number


class Sequences(NamedTuple):
    """Sequences of an attention kernel, summed up: strips, score elements with padded rows, keys that strips read,
    query tokens, and keys of the mean strip."""

    strips: Number
    scores: Number
    strip_keys: Number
    queries: Number


def numbers_of(kernel: BaseModel) -> dict[str, float]:
    """All numbers of a kernel family in SI, by name; those that are left out are not there."""
    return {name: one.si for name, one in kernel if isinstance(one, Quantity)}


def rows_of(rows: Number, v: Numbers) -> Rows:
    """Of each group of rows."""
    height, granule = height_of(rows, v)
    return Rows(rows, np.ceil(rows / height), np.ceil(rows / granule) * granule)


def height_of(mean_rows: Number, v: Numbers) -> tuple[Number, Number]:
    """Of a tile, and of what its rows are padded to: with `least_tile` both are the power of two from the mean rows of
    a group on, between that and `tile_m`."""
    if "least_tile" not in v:
        return v["tile_m"], v["granule"]
    height = np.clip(2.0 ** np.ceil(np.log2(np.maximum(mean_rows, 1.0))), v["least_tile"], v["tile_m"])
    return height, height


def product(rows: Rows, n: Number, k: Number, element_bytes: tuple[float, float, float], core_flops: float,
            v: Numbers) -> Tiled:
    """A (grouped) product [rows, k] x [k, n]; element_bytes: of input, weight, output; core_flops: peak of a core."""
    splits = np.ceil(k / v["stream_k"]) if "stream_k" in v else 1.0
    width = np.minimum(v["tile_n"], np.ceil(n / v["granule"]) * v["granule"])
    columns = np.ceil(n / v["tile_n"])
    height = rows.padded / np.maximum(rows.strips, 1.0)
    speed = core_flops * v.get("compute_share", 1.0)
    piece_s = 2.0 * height * width * (k + v.get("tile_ramp", 0.0)) / splits / speed
    read, stored, written = element_bytes
    onchip = rows.count * k * columns * read + n * k * rows.strips * stored + rows.count * n * written
    latency_s = v.get("floor", 0.0) + v.get("serial_per_k", 0.0) * np.minimum(k, v.get("split_k", inf))
    latency_s = latency_s + rows.count * k / v.get("input_rate", inf)
    return Tiled(rows.strips * columns * splits, piece_s, onchip, latency_s)


def sequences(queries: Number, keys: Number, causal: Number, window: Number, sharing: Number, groups: Number,
              v: Numbers) -> Sequences:
    """Of each sequence (queries, keys); window: keys that a query sees at most, 0: all; groups: of heads that share."""
    step = v.get("tile_keys", 1.0)
    seen = np.where(np.greater(window, 0), window, inf)
    rows, padded = queries * sharing, np.ceil(queries * sharing / v["granule"]) * v["granule"]
    tile = np.minimum(v["tile_m"] / sharing, queries)
    limit = np.where(causal, seen + tile, seen + (step if step > 1.0 else 0.0))
    before = keys - queries
    free = np.clip(limit - before, 0.0, queries)  # queries that see all keys before them
    capped = np.minimum(limit, keys)
    triangle = free * before + free * (free + np.minimum(tile, free)) / 2.0 + (queries - free) * capped
    mean = np.where(causal, np.minimum(triangle / np.maximum(queries, 1.0), keys), np.minimum(keys, limit))
    mean = np.ceil(mean / step) * step if step > 1.0 else mean
    strips = groups * np.ceil(rows / v["tile_m"])
    return Sequences(strips, groups * mean * padded, strips * mean, queries)


def attention(each: Sequences, mean_keys: Number, widths: tuple[Number, Number, Number], element_bytes: float,
              moved_bytes: Number, cores: tuple[float, float], v: Numbers) -> Tiled:
    """All sequences of a kernel, summed up; mean_keys: of a strip, for as many sequences as one array element holds.

    widths: head size of queries and values together, elements of a key and value, query tokens of all sequences.
    element_bytes: of the cache; moved_bytes: of queries and results; cores: how many, and the peak of one in FLOP/s.
    """
    count, core_flops = cores
    head, stored, tokens = widths
    splits: Number = 1.0
    if "split_keys" in v:
        piece = np.maximum(each.strip_keys / count, v["split_keys"])
        splits = np.maximum(np.floor(mean_keys / piece + 1e-9), 1.0)
    pieces = each.strips * splits
    flops = 2.0 * each.scores * (head + 2.0 * v.get("softmax_dims", 0.0))
    speed = core_flops * v.get("compute_share", 1.0)
    filling = 2.0 * v.get("tile_ramp", 0.0) * v["tile_m"] * head
    piece_s = (flops / np.maximum(pieces, 1.0) + filling) / speed + v.get("tile_latency", 0.0)
    latency_s = v.get("floor", 0.0) + v.get("per_query", 0.0) * tokens
    latency_s = latency_s + np.where(splits > 1.0, v.get("combine", 0.0), 0.0)
    return Tiled(pieces, piece_s, each.strip_keys * stored * element_bytes + moved_bytes, latency_s)


def alone_s(tiled: Tiled, hbm_bytes: Number, chip: Mapping[str, float], v: Numbers) -> Number:
    """How long such a kernel takes with the chip to itself, in seconds.

    chip: `cores`, `port` and `l2` in bytes/s, `hbm` and `hbm_together`, the peak and what all kernels reach of it.
    """
    wanted = np.clip(tiled.pieces, 1.0, chip["cores"])
    compute_s = np.ceil(tiled.pieces / wanted) * tiled.piece_s
    onchip_rate = np.minimum(chip["l2"], wanted * chip["port"] * v.get("port_share", 1.0))
    hbm_rate = min(chip["hbm"] * v.get("hbm_share", inf), chip["hbm_together"])
    memory_s = np.maximum(tiled.onchip_bytes / onchip_rate, hbm_bytes / hbm_rate)
    longer, shorter = np.maximum(compute_s, memory_s), np.minimum(compute_s, memory_s)
    return tiled.latency_s + longer + v.get("unoverlapped", 0.0) * shorter
