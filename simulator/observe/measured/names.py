"""What a kernel of a measured trace is, by its name: its kind, and whether it is communication.

A profiler gives names alone, so these are rules, tried in order; what none of them knows is of the kind "kernel". What
the names are known from:

* NCCL and RCCL call their kernels ncclDevKernel_AllReduce_Sum_bf16_RING_LL and the like, ncclKernel_... before 2.19;
  HolisticTraceAnalysis takes "ncclKernel" for communication as well (hta/utils/utils.py). Pairwise exchanges are
  SendRecv, which an All2All of NCCL is made of too.
* HCCL calls its operations hcom_allReduce__606_0_1, hcom_alltoallv_... (user guide of msprof-analyze); fused exchanges
  of experts are the operators MoeDistributeDispatch and MoeDistributeCombine (CANN, ops-transformer, mc2).
* DeepEP's kernels are in the namespaces deep_ep::intranode, internode and internode_ll (its csrc/kernels); those of
  NVSHMEM and rocSHMEM begin with the library's name.
* All-reduces of serving stacks: cross_device_reduce_1stage (vLLM, SGLang: csrc/custom_all_reduce.cuh),
  trtllm_allreduce_fusion (FlashInfer), multimem_all_reduce (PyTorch's symmetric memory), moeA2ADispatchKernel
  (TensorRT-LLM).
* A matrix product fused with a collective (MatmulAllReduce, AllGatherMatmul of CANN's mc2) computes all along: compute.
* Copies are named Memcpy and Memset by Kineto (libkineto/src/CuptiActivity.cpp) and by HolisticTraceAnalysis's rule.
* Compute: flash_fwd_splitkv_mla_kernel, fmha..., FusedInferAttentionScore, PagedAttention; nvjet_..., cublas...,
  cutlass..., deep_gemm::..., MatMulV3, GroupedMatmul, fused_moe_kernel; elementwise_kernel, RmsNorm, triton_poi_...
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

KERNEL, COPY = "kernel", "copy"


class Named(NamedTuple):
    """What a name says."""

    kind: str
    communication: bool


_COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|hcom_|nvshmem|rocshmem|deep_?ep::|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter"
    r"|all_?to_?all|moea2a|moe_?distribute")
_FUSED = re.compile(r"mat_?mul|gemm")
_EXCHANGES = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce")),
    ("all_gather", re.compile(r"all_?gather")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_to_all", re.compile(r"all_?to_?all|a2a|dispatch|combine")),
    ("broadcast", re.compile(r"broadcast")),
    ("send_receive", re.compile(r"send_?recv|send|recv|receive")),
)
_WORK = (
    (COPY, re.compile(r"memcpy|memset")),
    ("attention", re.compile(r"attention|attn|fmha|flash_?(fwd|mla|decod|infer)|paged_?kv|(?<![a-z])mla(?![a-z])")),
    ("grouped_gemm", re.compile(r"group(ed)?_?(gemm|mat_?mul)|fused_moe_kernel|moe_?gemm|groupproblem|mgrouped")),
    ("gemm", re.compile(r"gemm|gemv|mat_?mul|cublas|cutlass|nvjet|xmma|cijk_|split_?k")),
    ("vector", re.compile(
        r"elementwise|norm|softmax|silu|gelu|swiglu|act_and_mul|rope|rotary|reduce_kernel|quant|cast|top_?k|sort|index"
        r"|scatter|gather|embedding|transpose|concat|(?<![a-z])(triton_(poi|red|per)|add|mul|sub|div|cat|copy)(?![a-z])")),
)  # fmt: skip


@lru_cache(maxsize=65_536)
def named(name: str, otherwise: str = KERNEL) -> Named:
    """What a kernel of this name is; otherwise: its kind where the name says nothing."""
    low = name.lower()
    if _COMMUNICATION.search(low) and not _FUSED.search(low):
        return Named(next((kind for kind, rule in _EXCHANGES if rule.search(low)), "communication"), True)
    return Named(next((kind for kind, rule in _WORK if rule.search(low)), otherwise), False)


def short(name: str) -> str:
    """A kernel's name without its return type, what its template is made for, and its parameters."""
    kept, depth = [], 0
    for letter in name.replace("(anonymous namespace)::", "").replace("->", ""):
        depth += letter in "<("
        if not depth:
            kept.append(letter)
        depth -= letter in ">)" and depth > 0
    words = "".join(kept).split()
    return words[-1] if words and words[0] == "void" else " ".join(words) or name
