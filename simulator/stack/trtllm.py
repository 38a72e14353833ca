"""TensorRT-LLM (PyTorch backend): attention rotates and writes the cache itself; a norm is part of its AllReduce.
Norm, SwiGLU and attention write what they give in the data type of the next product, with scales of the checkpoint.
Captured graphs run the shared expert on a stream of its own.

Source: NVIDIA/TensorRT-LLM, `_torch/models/modeling_llama.py` (AllReduceFusionOp.RESIDUAL_RMS_NORM), `_torch/
attention_backend/trtllm.py` (rotation inside the attention operator), `_torch/models/modeling_deepseekv3.py` (routed
and shared experts by maybe_execute_in_parallel).
"""

from sys import maxsize

from simulator.stack.library import LibraryStack

STACK = LibraryStack("trtllm", norm_in_all_reduce=True, rope=(), scaled=("fp8", "nvfp4"),
                     shared_beside=maxsize)  # fmt: skip
