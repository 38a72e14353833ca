"""SGLang: the write to the cache is part of rotation; a norm is part of the AllReduce before it (FlashInfer).

On Blackwell (FlashInfer's TensorRT-LLM kernels for experts) the shared expert runs on a stream of its own up to 1024
tokens; before, DeepSeek's is a choice more of every token (shared experts fusion).

Source: sgl-project/sglang, `srt/layers/communicator.py` (fused AllReduce and norm), `srt/layers/rotary_embedding.py`
(rotation that saves to the cache), `srt/models/deepseek_v2.py` (forward_normal_dual_stream; fusion with 256 routed
experts and one shared), `srt/server_args.py` (flashinfer_trtllm sets disable_shared_experts_fusion).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from simulator.model.transformer import Experts, Model
from simulator.stack.library import LibraryStack

OPERATORS = 1.5
"""Calls for each eager launch: a small AllReduce takes 30 us where vLLM's takes 21.5, 5 of which are the launch (H100,
H200 and B200 alike: aiconfigurator at 095f58a, custom_allreduce_perf, eager)."""

STACK = LibraryStack("sglang", norm_in_all_reduce=True, rope=("rope_cache",), shared_beside=1024, operators=OPERATORS)
FUSED_EXPERTS = 256  # routed ones of a model whose shared expert is fused


def on_chip(model: Model, phase: str, dtypes: Collection[str]) -> LibraryStack:
    """With the shared expert fused where the chip has no NVFP4 and the model is DeepSeek-V3's kind."""
    return replace(STACK, fuses_shared=True) if "nvfp4" not in dtypes and _fusible(model) else STACK


def _fusible(model: Model) -> bool:
    mixed = [one.feed_forward for one in model.layers if isinstance(one.feed_forward, Experts)]
    return bool(mixed) and all(one.routed == FUSED_EXPERTS and one.shared_intermediate == one.intermediate
                               for one in mixed)  # fmt: skip
