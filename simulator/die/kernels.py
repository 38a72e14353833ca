"""What a kernel costs: a law per kernel family, from shapes to latency, cores and bytes.

A law turns a `Work` (shapes and bytes, never time) into a `Cost`, which the NPU spends in the three ways that exist:

* latency: ``floor + serial_per_k * k`` (the launch inside the device and the serial depth of one tile's loop);
* cores: ``want`` units of some cores each, kept from start to end. On ``u`` units the compute time is
  ``ceil(tiles / u) * tile_s``: whole waves of tiles on *padded* tiles;
* bytes: one flow of the on-chip (L2) bytes, with the HBM bytes as a load on HBM, whose limit is bytes / compute time.

On-chip bytes of a GEMM whose output is cut in tiles of ``tm x tn`` (every tile reads its strip of A and of B)::

    onchip = M*K*ceil(N/tn)*a + K*N*ceil(M/tm)*b + M*N*c           a, b, c: bytes per element

A core overlaps the loads of one tile with the compute of another, so the *unoverlapped share* u of the shorter of
compute and memory time is that of a single wave; of w waves it is u / w: kernel time = longer + u / w * shorter.

Worked example: INT8, M = N = K = 8192, tile 128 x 256: 2*8192**3 = 1.10 TFLOP and 8192**3*(1/128 + 1/256) + 0.13e9 =
6.58 GB on chip. At 752 TOPS the compute takes 1.46 ms, at 3.5 TB/s the bytes take 1.88 ms: 0.78 of peak, by bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

from simulator import np
from simulator.die import tiles as laws
from simulator.die.key_plan import plan
from simulator.spec.kernels import (
    AttentionKernel,
    FusedKernel,
    GemmKernel,
    KernelSpec,
    LoopKernel,
    SplitAttentionKernel,
    StreamGemmKernel,
    VectorKernel,
)
from simulator.spec.machine import ChipSpec

ELEMENT_BYTES = {"int8": 1.0, "fp8": 1.0, "fp16": 2.0, "bf16": 2.0, "fp32": 4.0, "int32": 4.0, "fp4": 0.5,
                 "nvfp4": 0.5625}  # nvfp4: a scale of one byte for 16 elements
FREE = "free of cost"
"""The family of a kernel that takes no time, no bytes and no cores, on any machine; it leaves nothing in L2."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one kernel has to do. Sizes only: what it costs is the machine's business.

    family: kernel family, by its name in the machine file. kind: the word that reports use.
    dtype: data type of the arithmetic; out_dtype of a GEMM's result.
    rows: rows of each group of a (grouped) GEMM; n, k: its other two sizes. causal attention: see `scores`.
    scores: score elements per head of an attention kernel, sequence by sequence: (queries, keys, causal).
    heads, qk_dim, v_dim: its head count and sizes; kv_heads: how many have keys of their own (the others share them);
    kv_dim: elements read per key and such head. read_bytes, write_bytes: activations from and to HBM.
    streamed_bytes: read once from HBM without staying in L2 (a KV cache). cached_bytes: activations that an earlier
    kernel left in L2, or that stay there.
    weight_bytes: weights read from HBM unless they lie in L2 under the name `weights`.
    window: keys that a query sees at most (0: all). stored_bytes: of one weight, or of one element of a cache (0: as
    dtype has it). vector_flops: arithmetic of the vector part. parts: kernels that this one fuses, with one launch and
    one floor. calls: of framework operators that launch it eagerly, a kernel each (0: the call before launches it too).
    """

    family: str
    kind: str
    dtype: str = "bf16"
    out_dtype: str = "bf16"
    rows: tuple[int, ...] = ()
    n: int = 0
    k: int = 0
    scores: tuple[tuple[int, int, bool], ...] = ()
    heads: int = 0
    kv_heads: int = 0
    kv_dim: int = 0
    qk_dim: int = 0
    v_dim: int = 0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    streamed_bytes: float = 0.0
    cached_bytes: float = 0.0
    weight_bytes: float = 0.0
    weights: str = ""
    vector_flops: float = 0.0
    parts: tuple[Work, ...] = ()
    window: int = 0
    stored_bytes: float = 0.0
    calls: int = 1

    @property
    def flops(self) -> float:
        """Useful operations (no padding), cube and vector together."""
        gemm = 2.0 * sum(self.rows) * self.n * self.k
        seen = sum(score_elements(one, window=self.window) for one in self.scores)
        attention = 2.0 * self.heads * (self.qk_dim + self.v_dim) * seen
        return gemm + attention + self.vector_flops + sum(part.flops for part in self.parts)

    @property
    def hbm_bytes(self) -> float:
        """Bytes from and to HBM when nothing of it lies in L2."""
        own = self.read_bytes + self.write_bytes + self.streamed_bytes + self.weight_bytes
        return own + sum(part.hbm_bytes for part in self.parts)


def score_elements(sequence: tuple[int, int, bool], tile: int = 1, window: int = 0) -> float:
    """Score elements of one head: queries x keys, or the causal part of it in steps of `tile` query rows; window: keys
    that a query sees at most (0: all)."""
    queries, keys, causal = sequence
    if not causal:
        return float(queries) * (min(keys, window) if window else keys)
    before = keys - queries  # keys that every query sees (a prefix)
    if window and keys > window:
        free = max(window - before, 0)  # queries that see all keys before them
        return free * before + free * (free + 1) / 2.0 + (queries - free) * float(window)
    return float(queries) * before + queries * (queries + min(tile, queries)) / 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Cost:
    """What a kernel spends on one kind of chip. `need`: cores of each pool per unit; see the module's text.

    prologue_s: the part of the latency that needs nothing from the kernel before. kept_bytes: how much of its weights
    lies in L2 when it has ended (their name makes no difference to cost). latency_name, compute_name, ports_name,
    share_name: what to call its latency, its arithmetic, the ports of its cores and its way of reading HBM where they
    bound it.
    """

    latency_s: float
    need: tuple[tuple[str, int], ...]
    want: int
    tiles: int
    tile_s: float
    onchip_bytes: float
    hbm_bytes: float
    unit_rate_bytes_per_s: float = inf
    hbm_rate_bytes_per_s: float = inf
    unoverlapped: float = 0.0
    at_least: int = 1
    weight_bytes: float = 0.0
    kept_bytes: float = 0.0
    allocates_bytes: float = 0.0
    prologue_s: float = 0.0
    latency_name: str = "latency"
    compute_name: str = "compute"
    ports_name: str = "L2 ports"
    share_name: str = "HBM share"

    def compute_s(self, units: int) -> float:
        """Compute time on `units` units of cores, in seconds."""
        return ceil(self.tiles / units) * self.tile_s

    def limit_bytes_per_s(self, units: int, hbm_load: float) -> float:
        """On-chip bytes/s that `units` units can ask for while computing; hbm_load: HBM bytes per such byte."""
        compute_s = self.compute_s(units)
        limit = self.memory_limit_bytes_per_s(units, hbm_load)
        return min(limit, self.onchip_bytes / compute_s) if compute_s else limit

    def memory_limit_bytes_per_s(self, units: int, hbm_load: float) -> float:
        """The same without compute: what the ports of its cores and its way of reading HBM allow."""
        core_rate = units * self.unit_rate_bytes_per_s
        return min(core_rate, self.hbm_rate_bytes_per_s / hbm_load) if hbm_load else core_rate

    def limited_by(self, units: int, hbm_load: float) -> str:
        """What `limit_bytes_per_s` is the rate of, by its name."""
        memory, compute_s = self.memory_limit_bytes_per_s(units, hbm_load), self.compute_s(units)
        if compute_s and self.onchip_bytes / compute_s <= memory:
            return self.compute_name
        return self.ports_name if memory == units * self.unit_rate_bytes_per_s else self.share_name


FREE_COST = Cost(latency_s=0.0, need=(), want=1, tiles=1, tile_s=0.0, onchip_bytes=0.0, hbm_bytes=0.0)


def cost_of(work: Work, chip: ChipSpec, kernels: dict[str, KernelSpec]) -> Cost:
    """The cost of `work` on `chip` with one generation's kernel families; KeyError, with those there are: not in it."""
    kernel = kernels.get(work.family)
    if kernel is None:
        begin = work.family.partition("_")[0]
        near = [one for one in sorted(kernels) if one.partition("_")[0] == begin] or sorted(kernels)
        raise KeyError(f"no kernel family '{work.family}': this generation has {', '.join(near)}")
    if kernel.law == "gemm":
        return _gemm(work, chip, kernel)
    if kernel.law == "attention":
        return _attention(work, chip, kernel)
    if kernel.law == "stream_gemm":
        return _stream_gemm(work, chip, kernel)
    if kernel.law == "split_attention":
        return _split_attention(work, chip, kernel)
    if kernel.law == "loop":
        return _loop(work, chip, kernel)
    if kernel.law == "fused":
        return _fused(work, chip, kernel, [cost_of(part, chip, kernels) for part in work.parts])
    return _vector(work, chip, kernel)


def units_of(chip: ChipSpec, kernel: KernelSpec) -> int:
    """How many units (one cube core and two vector cores, say) the whole chip has for this kernel."""
    return min(int(chip.cores[pool].si) // int(count.si) for pool, count in kernel.cores.items())


def _gemm(work: Work, chip: ChipSpec, kernel: GemmKernel) -> Cost:
    units = units_of(chip, kernel)
    tile_m, tile_n = _tile(work, kernel, units)
    strips = [ceil(rows / tile_m) for rows in work.rows]
    columns = ceil(work.n / tile_n)
    tiles = sum(strips) * columns
    depth = work.k + (kernel.tile_ramp.count if kernel.tile_ramp else 0)
    a_bytes = ELEMENT_BYTES[work.dtype]
    rereads = sum(work.rows) * work.k * columns * a_bytes + work.n * work.k * sum(strips) * a_bytes
    out_bytes = sum(work.rows) * work.n * ELEMENT_BYTES[work.out_dtype]
    serial = min(work.k, kernel.split_k.count) if kernel.split_k else work.k
    serial_s = kernel.serial_per_k.si * serial if kernel.serial_per_k else 0.0
    latency_s = kernel.floor_s + serial_s + _bookkeeping_s(work, kernel)
    tile_s = 2.0 * tile_m * tile_n * depth / (_peak(chip, kernel, work.dtype) / units)
    return _cost(work, chip, kernel, latency_s, tiles, tile_s, rereads + out_bytes)


def _bookkeeping_s(work: Work, kernel: GemmKernel | VectorKernel) -> float:
    """Sorting rows by group before a grouped product and summing them after it, in seconds."""
    counts = ((kernel.per_row, sum(work.rows)), (kernel.per_group, sum(map(bool, work.rows))),
              (kernel.per_slot, len(work.rows)))  # fmt: skip
    return sum(each.si * count for each, count in counts if each is not None)


def _tile(work: Work, kernel: GemmKernel, units: int) -> tuple[int, int]:
    """The output tile: the family's, or cut in granules to few rows (then wider) and to few tiles (then narrower)."""
    tile_m, tile_n = kernel.tile_m.count, kernel.tile_n.count
    if kernel.granule is None or not any(work.rows):
        return tile_m, tile_n
    granule, rows = kernel.granule.count, max(work.rows)
    if rows <= 2 * tile_m:
        area, tile_m = tile_m * tile_n, ceil(rows / granule) * granule
        tile_n = max(area // tile_m // granule, 1) * granule
    strips = sum(ceil(rows / tile_m) for rows in work.rows)
    waves = ceil(strips * ceil(work.n / tile_n) / units)
    columns = max(waves * units // strips, 1)  # as many as these waves have room for
    return tile_m, min(tile_n, ceil(work.n / columns / granule) * granule)


def _attention(work: Work, chip: ChipSpec, kernel: AttentionKernel) -> Cost:
    tile_m, units = kernel.tile_m.count, units_of(chip, kernel)
    sharing = work.heads // work.kv_heads  # heads whose queries meet the same keys are rows of one tile
    scores, tiles = 0.0, 0
    for queries, keys, causal in work.scores:
        strips = ceil(queries * sharing / tile_m)
        pieces = ceil(keys / kernel.tile_keys.count) if kernel.tile_keys else 1
        tiles += work.kv_heads * strips * pieces
        whole = strips * tile_m * keys
        own = score_elements((queries, keys, causal), tile_m) * sharing if causal else whole
        scores += work.kv_heads * own
    compute_s = 2.0 * scores * (work.qk_dim + work.v_dim) / _peak(chip, kernel, work.dtype)
    tile_s = compute_s * units / max(tiles, 1)
    if kernel.plan_keys:  # tiles are the shares of busy cores, all as long as the busiest one's
        requests = [(queries * sharing, keys) for queries, keys, _ in work.scores] * work.kv_heads
        tiles, keys = plan(requests, tile_m, units, kernel.plan_keys.count)
        tile_s = 2.0 * tile_m * keys * (work.qk_dim + work.v_dim) / (_peak(chip, kernel, work.dtype) / units)
    # every strip of tile_m rows reads its keys again; score tiles cross L2 between cube and vector cores
    score_bytes = kernel.score_bytes.si if kernel.score_bytes else 0.0
    onchip = scores * (score_bytes + work.kv_dim * ELEMENT_BYTES[work.dtype] / tile_m) + work.write_bytes
    return _cost(work, chip, kernel, kernel.floor_s, tiles, tile_s, onchip)


def _stream_gemm(work: Work, chip: ChipSpec, kernel: StreamGemmKernel) -> Cost:
    v, units = laws.numbers_of(kernel), units_of(chip, kernel)
    groups = np.array(work.rows or (0.0,), dtype=float)
    height, granule = laws.height_of(groups.mean(), v)
    rows = laws.Rows(groups.sum(), np.ceil(groups / height).sum(), np.ceil(groups / granule).sum() * granule)
    element = ELEMENT_BYTES[work.dtype]
    each = (element, work.stored_bytes or element, ELEMENT_BYTES[work.out_dtype])
    tiled = laws.product(rows, work.n, work.k, each, _raw_peak(chip, kernel, work.dtype) / units, v)
    return _tiled_cost(work, chip, kernel, tiled)


def _split_attention(work: Work, chip: ChipSpec, kernel: SplitAttentionKernel) -> Cost:
    v, units = laws.numbers_of(kernel), units_of(chip, kernel)
    queries, keys, causal = np.array(work.scores, dtype=float).reshape(-1, 3).T
    sharing = min(work.heads / work.kv_heads, v.get("sharing", inf))
    parts = laws.sequences(queries, keys, causal, work.window, sharing, work.heads / sharing, v)
    whole = laws.Sequences(*(float(each.sum()) for each in parts))
    moved = work.read_bytes + work.write_bytes
    widths = (work.qk_dim + work.v_dim, work.kv_dim, whole.queries)
    stored = work.stored_bytes or ELEMENT_BYTES[work.dtype]
    mean_keys = whole.strip_keys / max(whole.strips, 1.0)
    cores = (units, _raw_peak(chip, kernel, work.dtype) / units)
    return _tiled_cost(work, chip, kernel, laws.attention(whole, mean_keys, widths, stored, moved, cores, v))


def _tiled_cost(work: Work, chip: ChipSpec, kernel: StreamGemmKernel | SplitAttentionKernel, tiled: laws.Tiled) -> Cost:
    """With what all families have in common; `unoverlapped` is that of the whole kernel."""
    pieces = max(ceil(float(tiled.pieces)), 1)
    share = kernel.port_share.si if kernel.port_share else 1.0
    return _cost(work, chip, kernel, float(tiled.latency_s), pieces, float(tiled.piece_s), float(tiled.onchip_bytes), 1,
                 share)


def _vector(work: Work, chip: ChipSpec, kernel: VectorKernel) -> Cost:
    units = units_of(chip, kernel)
    compute_s = work.vector_flops / _peak(chip, kernel, "fp32") if work.vector_flops else 0.0
    onchip_bytes = work.hbm_bytes + work.cached_bytes
    tile = kernel.tile_bytes or chip.tile_bytes
    assert tile is not None, "a machine without either is refused"
    tiles = max(1, ceil(onchip_bytes / tile.si))
    latency_s = kernel.floor_s + _bookkeeping_s(work, kernel)
    return _cost(work, chip, kernel, latency_s, tiles, compute_s * units / tiles, onchip_bytes)


def _loop(work: Work, chip: ChipSpec, kernel: LoopKernel) -> Cost:
    """Groups of rows are dealt to as few units as need be for each to have as many; these stay, and share the rows.

        turns = rows / units        turns' = turns + min(turns, chunk): the first chunk fills the way to the receiver
        time of a unit = max(turns' (turn + bytes of a row / rate), turns / warps x serial_per_k x k)

    and a row of k elements more, as the last one is worked on alone. All must be there at the same time: half the cores
    will do, where two blocks share each.
    """
    pieces, rows = len(work.rows), sum(work.rows)
    units = ceil(pieces / ceil(pieces / units_of(chip, kernel)))
    turns = ceil(rows / units)
    filled = turns + min(turns, kernel.chunk.count if kernel.chunk else 0)
    each_s = max(work.read_bytes, work.write_bytes) / max(rows, 1) / kernel.rate.si if kernel.rate else 0.0
    row_s = kernel.serial_per_k.si * work.k if kernel.serial_per_k else 0.0
    unit_s = max(filled * (kernel.turn.si + each_s), turns * row_s / (kernel.warps.count if kernel.warps else 1))
    cost = _cost(work, chip, kernel, kernel.floor_s + (row_s if rows else 0.0), units, unit_s, work.hbm_bytes)
    return replace(cost, at_least=ceil(units / 2), compute_name=f"turns {work.family}")


def _fused(work: Work, chip: ChipSpec, kernel: FusedKernel, parts: list[Cost]) -> Cost:
    """What its parts compute and move, one after the other on the same cores; only one floor."""
    units = units_of(chip, kernel)
    tile_s = sum(part.compute_s(min(units, part.want)) for part in parts)
    onchip_bytes = sum(part.onchip_bytes for part in parts)
    overlapping = sum(part.tiles for part in parts) // max(len(parts), 1)
    return _cost(work, chip, kernel, kernel.floor_s, units, tile_s, onchip_bytes, overlapping)


def _cost(work: Work, chip: ChipSpec, kernel: KernelSpec, latency_s: float, tiles: int, tile_s: float,
          onchip_bytes: float, overlapping: int | None = None, port_share: float = 1.0) -> Cost:
    """With what all families have in common. overlapping: tiles whose waves overlap compute and memory (None: all).
    port_share: of what its cores can read from L2."""
    need = tuple((pool, int(count.si)) for pool, count in kernel.cores.items())
    want = max(min(tiles, units_of(chip, kernel)), 1)
    waves = max(ceil((tiles if overlapping is None else overlapping) / want), 1)
    weight_bytes = work.weight_bytes + sum(part.weight_bytes for part in work.parts)
    return Cost(
        latency_s, need, want, tiles, tile_s, onchip_bytes, work.hbm_bytes,
        unit_rate_bytes_per_s=max(chip.l2.port_rate[pool].si * count for pool, count in need) * port_share,
        hbm_rate_bytes_per_s=chip.hbm.peak.si * kernel.hbm_share.si if kernel.hbm_share else inf,
        unoverlapped=kernel.unoverlapped.si / waves if kernel.unoverlapped else 0.0,
        weight_bytes=weight_bytes, kept_bytes=weight_bytes,
        allocates_bytes=sum(one.read_bytes + one.write_bytes + one.cached_bytes for one in (work, *work.parts)),
        prologue_s=min(kernel.prologue.si, kernel.floor_s) if kernel.prologue else 0.0,
        latency_name=f"latency {work.family}", compute_name=f"compute {next(iter(kernel.cores))}.{work.dtype}",
        ports_name=f"L2 ports {work.family}", share_name=f"HBM share {work.family}")


def _peak(chip: ChipSpec, kernel: KernelSpec, dtype: str) -> float:
    """What its inner loop reaches of the peak of the engine that it computes on, in FLOP/s."""
    return _raw_peak(chip, kernel, dtype) * (kernel.compute_share.si if kernel.compute_share else 1.0)


def _raw_peak(chip: ChipSpec, kernel: KernelSpec, dtype: str) -> float:
    """The peak of the engine that it computes on, in FLOP/s."""
    return chip.peak[next(iter(kernel.cores))][dtype].si
