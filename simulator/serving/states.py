"""What requests keep beside the cache of their tokens: states of linear attention, of a size that no context changes.

vLLM puts them into the blocks of the cache. A block has so many tokens, a multiple of 16, that in a layer of keys and
values they take no less than the state of a linear layer, and it holds as many linear layers as there are others: a
request has a few blocks more than its tokens take (vllm/model_executor/models/config.py,
HybridAttentionMambaModelConfig; vllm/v1/core/kv_cache_utils.py, groups of equal pages). Elsewhere states count as
blocks of the size that was set. No prefix is shared, as vLLM has it for these models unless it is told otherwise: a
prefix is of use only where a state was kept at its end. Where it is told to (scheduling.mamba_cache_mode = align) it
cuts prompts at ends of blocks and keeps two states of a request, its own and the one at the last end: what that costs
is modelled, hits are not (vllm/v1/kv_cache_interface.py, MambaSpec: two pages).

Worked example. Qwen3.5-397B on 8 ranks: a linear layer keeps 8 x 128 x 128 FP32 values and 3 x 1,536 of the
convolution, 533,504 bytes; a token of a full layer takes 1,024 bytes, so a block has 528 tokens; 45 linear layers
beside 15 others are three blocks of every request.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from simulator.errors import InputError
from simulator.model.linear_attention import GatedDelta
from simulator.model.micro_batch import MicroBatch
from simulator.parallel.ledger import STATES
from simulator.serving.settings import Instances
from simulator.study.simulate import ledger_of

PAGE = 16  # tokens of which blocks are multiples


def state_bytes_of(settings: Instances) -> float:
    """Bytes of a request on the fullest rank of an engine; 0 where every layer keeps keys and values of all tokens."""
    scenario = settings.step
    if not _linear(settings):
        return 0.0
    batch: Any = scenario.batch
    served = scenario.variant(batch=batch.working_on([MicroBatch(0, ((1, 1),))] * scenario.data_parallel))
    machine = served.machine_spec()
    items = ledger_of(served, served.case(machine, 0), machine).items
    return sum(item.size_bytes for item in items if item.name.startswith(STATES))


def paged(settings: Instances, state_bytes: float, token_bytes: float) -> Instances:
    """The settings with blocks that states fit into; as they are where there are none. token_bytes: of a token, of all
    layers of a rank."""
    if not state_bytes:
        return settings
    block, linear = settings.cache.block_size, _linear(settings)
    if settings.scheduling.scheduler == "vllm":
        others = len(settings.step.transformer().layers) - linear
        page = state_bytes / linear / (token_bytes / others)
        block = max(block, PAGE * ceil(page / PAGE))
    if settings.aligned and block > settings.scheduling.max_num_batched_tokens:
        raise InputError(f"scheduling.max_num_batched_tokens is {settings.scheduling.max_num_batched_tokens}: with "
                         f"scheduling.mamba_cache_mode = align it must be at least a block, {block} tokens")
    cache = settings.cache.model_copy(update={"block_size": block, "enable_prefix_caching": False})
    return settings.model_copy(update={"cache": cache})


def _linear(settings: Instances) -> int:
    """Layers with linear attention."""
    layers = settings.step.transformer().layers
    return sum(isinstance(layer.attention, GatedDelta) for layer in layers)
