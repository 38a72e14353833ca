"""DeepSeek-R1 on Atlas 800I A2: two nodes prefill, four nodes decode.

Published by Huawei, "DeepSeek V3/R1 inference deployment best practice on Ascend servers" (2025): 8 prompts of 2K
tokens in a step of the two nodes, 72 requests a card on the four. Blocks and chunks as in `cloudmatrix384`.
"""

from __future__ import annotations

from scenarios import a2_decode, a2_prefill
from services.cloudmatrix384 import BLOCK, prefill_instances
from simulator.serving.settings import CacheSettings, Front, Instances, Load, Scheduling, Service

REQUESTS = 72  # of a card, as published
CARDS = 32


def service() -> Service:
    """Two nodes that prefill, four that decode."""
    return Service(
        title="DeepSeek-R1 on Atlas 800I A2: 2 nodes prefill, 4 nodes decode",
        prefill=prefill_instances(1, a2_prefill.convert()),
        engines=Instances(
            step=a2_decode.decode_2k2k().variant(expected=(), studies=()),
            scheduling=Scheduling(max_num_seqs=REQUESTS, enable_chunked_prefill=False),
            cache=CacheSettings(block_size=BLOCK, enable_prefix_caching=False),
        ),
        front=Front(api_servers=CARDS, router="length_aware"),
        load=Load(requests=256, concurrency=256, input_tokens=2048, output_tokens=256, range_ratio=0.5),
    )
