"""SGLang: the write to the cache is part of rotation; a norm is part of the AllReduce before it (FlashInfer).

Source: sgl-project/sglang, `srt/layers/communicator.py` (fused AllReduce and norm), `srt/layers/rotary_embedding.py`
(rotation that saves to the cache).
"""

from simulator.stack.library import LibraryStack

STACK = LibraryStack("sglang", norm_in_all_reduce=True, rope=("rope_cache",))
