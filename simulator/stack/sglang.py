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

OPERATORS = 2.7
"""Calls for each eager launch, fitted: a prompt of DeepSeek-V3 takes 82.6 ms without graphs, of one token or of up to
100 (sgl-project/sglang, pull request 12160; its host is not said). An eager AllReduce by itself takes 1.5."""

STACK = LibraryStack("sglang", norm_in_all_reduce=True, rope=("rope_cache",), shared_beside=1024, operators=OPERATORS)
FUSED_EXPERTS = 256  # routed ones of a model whose shared expert is fused


def on_chip(model: Model, phase: str, dtypes: Collection[str]) -> LibraryStack:
    """With the shared expert fused where the chip has no NVFP4 and the model is DeepSeek-V3's kind; with routed experts
    in one call where it has."""
    if "nvfp4" in dtypes:
        return replace(STACK, one_call=True)
    return replace(STACK, fuses_shared=True) if _fusible(model) else STACK


def _fusible(model: Model) -> bool:
    mixed = [one.feed_forward for one in model.layers if isinstance(one.feed_forward, Experts)]
    return bool(mixed) and all(one.routed == FUSED_EXPERTS and one.shared_intermediate == one.intermediate
                               for one in mixed)  # fmt: skip
