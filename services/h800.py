"""DeepSeek-V3 on H800 as DeepSeek describes its own service: prefill on 32 GPUs, decode on 128.

Published in deepseek-ai/profile-data: EP32 and steps of 16K prompt tokens a GPU in prefill, EP128 and 128 requests a
GPU in decode. In deepseek-ai/open-infra-index ("DeepSeek-V3/R1 inference system overview", 2025) decode has EP144, on
18 nodes with 32 redundant experts: a mesh has as many slots on every place as hold all experts once, and so many more,
which 288 slots for 256 experts are not. How many units of each kind there are is not published: two that prefill are
assumed.

Every card and host that takes part in an exchange is simulated: a step of it costs tens of seconds the first time.
"""

from __future__ import annotations

from scenarios import deepseek_h800
from simulator.serving.settings import CacheSettings, Front, Instances, Load, Scheduling, Service

GPUS = 128
REQUESTS, TOKENS = 128, 16384  # of a GPU in a step
BLOCK = 64  # tokens of a block: FlashMLA's paged cache has blocks of 64
EVEN = {"routing.skew": "none"}  # where step times are interpolated


def service() -> Service:
    """Two units that prefill, one that decodes; a run takes an hour, for every card is simulated."""
    return Service(
        title="DeepSeek-V3 on H800: 2 x EP32 prefill, EP128 decode",
        prefill=Instances(
            count=2,
            step=deepseek_h800.prefill(),
            simplified=EVEN,
            scheduling=Scheduling(scheduler="sglang", max_num_batched_tokens=TOKENS),
            cache=CacheSettings(block_size=BLOCK),
        ),
        engines=Instances(
            step=deepseek_h800.decode(),
            simplified=EVEN,
            capture=tuple(range(2, REQUESTS + 1, 2)),  # two micro-batches
            scheduling=Scheduling(max_num_seqs=REQUESTS, enable_chunked_prefill=False),
            cache=CacheSettings(block_size=BLOCK, enable_prefix_caching=False),
        ),
        front=Front(api_servers=GPUS, router="length_aware"),
        load=Load(requests=1024, concurrency=1024, input_tokens=4096, output_tokens=256, range_ratio=0.5),
    )
