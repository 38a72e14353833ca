"""TensorRT-LLM at minimum latency: one request of DeepSeek-R1 on 8 x B200, 1K in and 2K out.

Published by NVIDIA in TensorRT-LLM's tech blog "Pushing Latency Boundaries: Optimizing DeepSeek-R1 Performance on
NVIDIA B200 GPUs". `base` is where it began, `gtc` and `final` are two published states; `braid ladder` shows the steps.
"""

from __future__ import annotations

from simulator.study.scenario import Expected, LadderStep, Layout, RoutingSpec, Scenario, Study
from workloads.trt_min_latency import ITERATION, Knobs, Request

SOURCE = "TensorRT-LLM tech blog 1, DeepSeek-R1 at minimum latency on 8 x B200"
HERE = "trt_min_latency"
MORE = (1.0, None)  # a sign: the ratio is above one


GTC_MISS = (
    ". Plain GEMMs of routed experts have no public table: they are CUTLASS's grouped products without sort and sum."
    " The model was changed nine times knowing this figure, so how near it is, is weak evidence. If the year made only"
    " the library's own kernels faster and not cuBLAS, it is 281 (study of `kernels`)"
)
FINAL_MISS = (
    ". It was 367 until the TensorRT-LLM backend's kernels were fitted on the experts that their table touched; one"
    " factor slows all kernels alike, and what the year changed in which is published nowhere (study of `kernels`: 366)"
)
DEPTH = (
    ". Three lead four by 0.3% (0.3 to 0.9% over seeds), close as in the source: attention of five tokens needs a"
    " second wave of its tiles at this length, four do not. With pieces of 64 keys they are equal, of 256 four leads by"
    " 0.4% (study). No table has several query tokens; they are counted as further heads, which the tables have. That"
    " table was looked at because this sign was missed"
)
TP8_MISS = (
    ". TP8 comes out 0.7% better (0.1 to 0.9% over seeds). With even routing TP4 x EP2 leads by 1.7% (study): kernels"
    " prefer it, but one half waits for the other. How unevenly real text routes is published nowhere. The table of"
    " these kernels, a year younger, has TP8 ahead from 8 tokens on (power law: 43 us, TP4 x EP2 47); with 4 both take"
    " 32 us, but a part of the experts lay in L2 there, which a model of 61 layers never finds. Experts from HBM are 4%"
    " too fast here for TP8 and right for the others. A fit that gives every TP the same weight (0.061 us per expert"
    " instead of 0.041) is right for TP8 and 2% too slow for TP4; with it TP8 is 0.1% ahead (study), with other seeds"
    " up to 0.6% behind"
)
REMEMBERED = ": a step of the source's ladder, as remembered; no number was set on it"
DEPENDENT = (
    "TensorRT-LLM tech blogs 1 and 2: programmatic dependent launch makes it 1.03 times as fast. How long a prologue is"
    " (0.86 us) is what a table of the library's whole MLA module has less than the tables of its kernels. That says"
    " little: nothing to 1.5 us, as one reads which small kernels stood in line, and that gives 1.00 to 1.07. An"
    " earlier version fitted 0.6 us on this very value, and whoever read the table knew it"
)


def _split(tensor: int, expert: int) -> dict[str, str]:
    return {"layout.tensor_parallel": str(tensor), "layout.expert_parallel": str(expert)}


TO_GTC = (
    LadderStep(title="shared expert on a stream of its own", changes={"knobs.shared_beside": "true"}),
    LadderStep(title="top-k in one kernel instead of six", changes={"knobs.fused_top_k": "true"}),
    LadderStep(title="three MTP draft tokens", changes={"batch.draft_tokens": "3"}),
    LadderStep(title="AllReduce with add, norm and quantise", changes={"knobs.fused_all_reduce": "true"}),
    LadderStep(title="programmatic dependent launch", changes={"knobs.programmatic_launch": "true"}),
    LadderStep(title="two norms on two streams", changes={"knobs.norms": "streams"}),
    LadderStep(title="KV cache beside the query's GEMMs", changes={"knobs.cache_beside": "true"}),
    LadderStep(title="SwiGLU, RoPE and last sum in their neighbours", changes={"knobs.fused_kernels": "true"}),
    LadderStep(title="routed experts as plain GEMMs", changes={"knobs.sparse": "gemms"}),
    LadderStep(title="experts TP2 x EP4 instead of EP8", changes=_split(2, 4)),
)
TO_FINAL = (
    LadderStep(title="TensorRT-LLM MoE backend, TP4 x EP2",
         changes={"knobs.sparse": "grouped", "knobs.moe_backend": "trtllm", **_split(4, 2)}),
    LadderStep(title="two norms in one grouped kernel", changes={"knobs.norms": "grouped"}),
    LadderStep(title="Fuse_A kernel, weights prefetched", changes={"knobs.fuse_a_kernel": "true"}),
    LadderStep(title="router kernel", changes={"knobs.router_kernel": "true"}),
    LadderStep(title="relaxed acceptance", changes={"knobs.relaxed_acceptance": "true"}),
)  # fmt: skip


def _with(scenario: Scenario, title: str, changes: dict[str, str], *expected: Expected) -> Scenario:
    """A variant by settings; it belongs to the library, so nothing about it was set from outside."""
    return scenario.replace(changes).variant(title=title, changes={}, expected=expected, studies=(), ladder=())


def _climbed(steps: tuple[LadderStep, ...]) -> dict[str, str]:
    return {key: text for step in steps for key, text in step.changes.items()}


def _expect(number: str, value: float, role: str = "predict", note: str = "", **more: object) -> Expected:
    return Expected(id=number, metric="throughput_tok_s", value=value, role=role, note=f"{SOURCE}{note}", **more)


def base() -> Scenario:
    """CUDA graph, TP8 attention, EP8 experts (CUTLASS), one-shot AllReduce, no MTP."""
    return Scenario(
        title="TensorRT-LLM, DeepSeek-R1 at batch 1 on 8 x B200: the starting point",
        machine="dgx_b200",
        model="deepseek_r1",
        kernels="trtllm_2025",
        cards=8,
        batch=Request(),
        layout=Layout(expert_parallel=8, tensor_parallel=1),
        routing=RoutingSpec(skew=1.01),
        knobs=Knobs(),
        workload=ITERATION,
        expected=(_expect("trt.base", 67, "fit"),),
        ladder=TO_GTC + TO_FINAL,
    )


def eager() -> Scenario:
    """As base, without a CUDA graph: the host launches operator by operator."""
    slower = _expect("trt.graph", 0.15, note=": several times lower without a graph", against=f"{HERE}:base",
                     band=(None, 0.5))  # fmt: skip
    calls = Study(title="Eager launches at batch 1, three operator calls each: of no time, a third, as on Xeon hosts",
                  key="machine.host.operator", values=("0 us", "5.5 us", "16.5 us"),
                  metrics=("throughput_tok_s", "host_bound_ms"))  # fmt: skip
    state = _with(base(), "TensorRT-LLM at batch 1: no CUDA graph", {"knobs.cuda_graph": "false"}, slower)
    return state.variant(studies=(calls,))


def gtc() -> Scenario:
    """Everything but the TensorRT-LLM MoE backend, the Fuse_A and router kernels and relaxed acceptance."""
    depth = Study(title="Output tokens per second by number of MTP draft tokens", key="batch.draft_tokens",
                  values=("0", "1", "2", "3", "4", "5"), metrics=("throughput_tok_s", "iteration_ms"))  # fmt: skip
    peak = [_expect("trt.mtp", 1.0, note=": three draft tokens are best" + DEPTH * (other == 4),
                    against=f"{HERE}:mtp_{other}", band=MORE) for other in (2, 4)]  # fmt: skip
    launch = Expected(id="trt.pdl", metric="throughput_tok_s", value=1.03, role="predict",
                      against=f"{HERE}:launched_in_turn", note=DEPENDENT)  # fmt: skip
    plain = _expect("trt.sparse_gemm", 1.0, note=": plain GEMMs at 4 tokens beat dispatch + grouped GEMM + reduce",
                    against=f"{HERE}:cutlass", band=MORE)  # fmt: skip
    state = _with(base(), "TensorRT-LLM at batch 1: as shown at GTC 2025", _climbed(TO_GTC),
                  _expect("trt.gtc", 253, note=GTC_MISS), launch, *peak, plain)  # fmt: skip
    older = Study(title="The one fitted number of TensorRT-LLM at batch 1: latencies of 2025 against the tables",
                  key="machine.generations.trtllm_2025.latency_factor", values=("1", "1.5", "1.7", "1.789", "1.9"),
                  metrics=("throughput_tok_s",), beside=(f"{HERE}:base", f"{HERE}:final", f"{HERE}:mtp_4"))  # fmt: skip
    whose = Study(title="Whose kernels a year made faster: all but PyTorch's, or the library's own alone",
                  key="kernels", values=("trtllm_2025", "trtllm_2025_own"), metrics=("throughput_tok_s",),
                  beside=(f"{HERE}:base", f"{HERE}:final", f"{HERE}:mtp_4"))  # fmt: skip
    pieces = Study(title="Pieces of keys in attention: what a fifth query token costs, and so the best depth of MTP",
                   key="machine.kernels.trtllm_1_3.mla.tile_keys", values=("64", "128", "256"),
                   metrics=("throughput_tok_s",), beside=(f"{HERE}:mtp_2", f"{HERE}:mtp_4"))  # fmt: skip
    precision = Study(title="Experts of the MTP module in BF16 or NVFP4", key="knobs.draft_dtype",
                      values=("bf16", "nvfp4"), metrics=("throughput_tok_s",), beside=(f"{HERE}:final",))  # fmt: skip
    routing = Study(title="Even routing, or experts drawn from a power law", key="routing.skew",
                    values=("none", "1.01"), metrics=("throughput_tok_s", "waiting_comm_ms"),
                    beside=(f"{HERE}:base", f"{HERE}:final", f"{HERE}:trtllm_tp8", f"{HERE}:mtp_4",
                            f"{HERE}:smart_router"))  # fmt: skip
    return state.variant(studies=(depth, pieces, older, whose, precision, routing))


def launched_in_turn() -> Scenario:
    """As gtc, but every kernel begins after the one before it has ended."""
    return _with(gtc(), "TensorRT-LLM at batch 1: no programmatic launch", {"knobs.programmatic_launch": "false"})


def mtp_2() -> Scenario:
    """As gtc, with two draft tokens."""
    return _with(gtc(), "TensorRT-LLM at batch 1: two draft tokens", {"batch.draft_tokens": "2"})


def mtp_4() -> Scenario:
    """As gtc, with four draft tokens."""
    return _with(gtc(), "TensorRT-LLM at batch 1: four draft tokens", {"batch.draft_tokens": "4"})


def backend() -> Scenario:
    """As gtc with the TensorRT-LLM MoE backend, TP4 x EP2: the state before the last three optimisations."""
    return _with(gtc(), "TensorRT-LLM at batch 1: its own MoE backend", _climbed(TO_FINAL[:1]),
                 _expect("trt.ladder", 299, note=REMEMBERED))  # fmt: skip


def small_gemms() -> Scenario:
    """As final, before relaxed acceptance: Fuse_A and router have kernels of their own."""
    return _with(gtc(), "TensorRT-LLM at batch 1: Fuse_A and router kernels", _climbed(TO_FINAL[:-1]),
                 _expect("trt.ladder", 340, note=REMEMBERED))  # fmt: skip


def final() -> Scenario:
    """All optimisations."""
    note = ": TP4 x EP2 is the best split with the TensorRT-LLM backend"
    best = [_expect("trt.tp_ep", 1.0, note=note + TP8_MISS * (other == "tp8"), against=f"{HERE}:trtllm_{other}",
                    band=MORE) for other in ("ep8", "tp8", "tp2_ep4")]  # fmt: skip
    groups = Study(title="Time per expert in the TensorRT-LLM backend's products, which their table leaves open",
                   key="machine.kernels.trtllm_1_3.grouped_gemm_trtllm.per_group",
                   values=("0.041 us", "0.055 us", "0.061 us"), metrics=("throughput_tok_s",),
                   beside=(f"{HERE}:trtllm_tp8",))  # fmt: skip
    state = _with(gtc(), "TensorRT-LLM at batch 1: all optimisations", _climbed(TO_FINAL),
                  _expect("trt.final", 368, note=FINAL_MISS), *best)  # fmt: skip
    return state.variant(studies=(groups,))


def smart_router() -> Scenario:
    """As final, but each half of the GPUs holds all experts (TP4), and every other active expert is computed there.

    Which half computes an expert is chosen inside the top-k kernel; a launch of its own would cost more than it gains.
    """
    return _with(final(), "TensorRT-LLM at batch 1: smart router", {"knobs.smart_router": "true", **_split(4, 1)})


# --- splits of the routed experts -------------------------------------------------------------------------------------


def cutlass() -> Scenario:
    """As gtc with the CUTLASS grouped GEMM, TP2 x EP4."""
    best = [_expect("trt.tp_ep", 1.0, note=": TP2 x EP4 is the best split with the CUTLASS grouped GEMM",
                    against=f"{HERE}:cutlass_{other}", band=MORE) for other in ("ep8", "tp8", "tp4_ep2")]  # fmt: skip
    return _with(gtc(), "TensorRT-LLM at batch 1: CUTLASS, TP2 x EP4", {"knobs.sparse": "grouped"}, *best)


def cutlass_ep8() -> Scenario:
    """CUTLASS grouped GEMM, EP8."""
    return _with(cutlass(), "TensorRT-LLM at batch 1: CUTLASS, EP8", _split(1, 8))


def cutlass_tp8() -> Scenario:
    """CUTLASS grouped GEMM, TP8."""
    return _with(cutlass(), "TensorRT-LLM at batch 1: CUTLASS, TP8", _split(8, 1))


def cutlass_tp4_ep2() -> Scenario:
    """CUTLASS grouped GEMM, TP4 x EP2."""
    return _with(cutlass(), "TensorRT-LLM at batch 1: CUTLASS, TP4 x EP2", _split(4, 2))


def trtllm_ep8() -> Scenario:
    """TensorRT-LLM backend, EP8."""
    return _with(final(), "TensorRT-LLM at batch 1: its own backend, EP8", _split(1, 8))


def trtllm_tp8() -> Scenario:
    """TensorRT-LLM backend, TP8."""
    return _with(final(), "TensorRT-LLM at batch 1: its own backend, TP8", _split(8, 1))


def trtllm_tp2_ep4() -> Scenario:
    """TensorRT-LLM backend, TP2 x EP4."""
    return _with(final(), "TensorRT-LLM at batch 1: its own backend, TP2 x EP4", _split(2, 4))
