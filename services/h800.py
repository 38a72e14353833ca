"""DeepSeek-V3 on H800 as DeepSeek describes its own service: prefill on 32 GPUs, decode on 144.

Published in deepseek-ai/profile-data: EP32 and steps of 16K prompt tokens a GPU in prefill, 128 requests a GPU in
decode; in deepseek-ai/open-infra-index ("DeepSeek-V3/R1 inference system overview", 2025): decode on 18 nodes, EP144
with 32 redundant experts, which are what two slots of every GPU leave over. How many units of each kind there are is
not published: two that prefill are assumed.

Where step times are interpolated, all ranks do the same, and one is simulated with its card; an audited step, with what
every rank has and draws, simulates all of them, which costs most of a run: half a minute each.
"""

from __future__ import annotations

from scenarios import deepseek_h800
from simulator.parallel.mesh import Mesh
from simulator.serving.settings import CacheSettings, Front, Instances, Load, Scheduling, Service
from workloads.transformer import Step

GPUS = 144
REQUESTS, TOKENS = 128, 16384  # of a GPU in a step
BLOCK = 64  # tokens of a block: FlashMLA's paged cache has blocks of 64
EVEN = {"routing.skew": "none"}  # where step times are interpolated
ALIKE = (1.0,)  # shares of the fullest group: at others each rank is simulated by itself


def service() -> Service:
    """Two units that prefill, one that decodes; a first run takes some minutes."""
    return Service(
        title="DeepSeek-V3 on H800: 2 x EP32 prefill, EP144 decode",
        prefill=Instances(
            count=2,
            step=deepseek_h800.prefill(),
            simplified=EVEN,
            shares=ALIKE,
            scheduling=Scheduling(scheduler="sglang", max_num_batched_tokens=TOKENS),
            cache=CacheSettings(block_size=BLOCK),
        ),
        engines=Instances(
            step=deepseek_h800.decode().variant(
                cards=GPUS, batch=Step(requests=GPUS * REQUESTS), layout=Mesh(dp=GPUS, ep=GPUS)
            ),
            simplified=EVEN,
            shares=ALIKE,
            capture=tuple(range(2, REQUESTS + 1, 2)),  # two micro-batches
            scheduling=Scheduling(max_num_seqs=REQUESTS, enable_chunked_prefill=False),
            cache=CacheSettings(block_size=BLOCK, enable_prefix_caching=False),
        ),
        front=Front(api_servers=GPUS, router="length_aware"),
        load=Load(requests=1024, concurrency=1024, input_tokens=4096, output_tokens=256, range_ratio=0.5),
    )
