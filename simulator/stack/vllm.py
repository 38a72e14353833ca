"""vLLM (V1 engine): rotation and the write to the cache are kernels of their own; a norm follows its AllReduce.

Source: vllm-project/vllm, `model_executor/models/llama.py` (order of a layer), `v1/attention/backends/flash_attn.py`
(`reshape_and_cache_flash` before attention).
"""

from simulator.stack.library import LibraryStack

STACK = LibraryStack("vllm", norm_in_all_reduce=False, rope=("rope", "cache"))
