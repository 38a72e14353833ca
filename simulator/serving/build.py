"""Engines from settings: what their caches hold, and how long their steps take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.die.memory import DoesNotFit
from simulator.errors import InputError
from simulator.model.micro_batch import MicroBatch
from simulator.serving.audit import Audit, Mode
from simulator.serving.cache import BlockCache
from simulator.serving.group import Group
from simulator.serving.kept import Kept
from simulator.serving.settings import Instances
from simulator.serving.steps import StepTimes
from simulator.study.scenario import Scenario
from simulator.study.simulate import ledger_of

PROBED = 1024  # tokens of the cache that the ledger is asked for twice, to learn what one takes


@dataclass(frozen=True)
class Kind:
    """Engines that are alike: their settings, the tokens that the cache of a group holds, bytes that one takes on the
    fullest rank, step times and audit."""

    settings: Instances
    capacity: int
    token_bytes: float
    times: StepTimes
    audit: Audit
    kept: Kept

    @property
    def groups(self) -> int:
        """Data-parallel groups of an engine."""
        layout: Any = self.settings.step.layout
        return int(getattr(layout, "dp", 1))

    @property
    def ranks(self) -> int:
        """Of an engine."""
        return self.settings.step.cards * self.settings.step.machine_spec().dies_per_card.count

    def group(self, hash_tokens: int) -> Group:
        """A group with an empty cache; hash_tokens: of the hashes of prompts."""
        cache, block = self.settings.cache, self.settings.cache.block_size
        hashed = hash_tokens if cache.enable_prefix_caching and hash_tokens else block
        return Group(BlockCache(self.capacity // block, block, cache.enable_prefix_caching, hashed))


def kind_of(settings: Instances, mode: Mode, seed: int, folder: Path | None) -> Kind:
    """InputError where the model does not fit, or nothing is left for a cache."""
    room, token_bytes = tokens_of_cache(settings)
    capacity, kept = settings.cache.tokens or room, Kept(settings.step, folder)
    if capacity < settings.cache.block_size:
        raise InputError(f"{settings.step.name}: {capacity} tokens of cache are left, a block has "
                         f"{settings.cache.block_size}: give it more cards, or a model that is quantised")
    times = StepTimes(settings.step, settings.capture, capacity, kept)
    return Kind(settings, capacity, token_bytes, times, Audit(times, mode, seed), kept)


def tokens_of_cache(settings: Instances) -> tuple[int, float]:
    """What memory leaves for the keys and values of a data-parallel group, in tokens: gpu_memory_utilization of HBM
    less weights, buffers and the activations of the largest step, over the bytes that a token takes on the fullest
    rank."""
    less, more = (_kv_and_rest(settings, tokens) for tokens in (PROBED, 2 * PROBED))
    each = (more[0] - less[0]) / PROBED
    if not each > 0:
        raise InputError(f"{settings.step.name}: its ledger has no item of category KV that grows with tokens: give "
                         "cache.tokens")
    machine = settings.step.machine_spec()
    room = machine.chip.hbm.capacity.si * settings.cache.gpu_memory_utilization - less[1]
    return max(int(room * settings.cache.free_gpu_memory_fraction / each), 0), each


def _kv_and_rest(settings: Instances, tokens: int) -> tuple[float, float]:
    """Bytes of the KV cache, and of all else, with so many tokens cached in every group."""
    scenario = settings.step
    layout: Any = scenario.layout
    most = min(settings.scheduling.max_num_batched_tokens, 8 * PROBED)
    batch = MicroBatch(0, ((1, tokens),), ((most, 0),), 1)
    plain = MicroBatch(0, ((1, tokens),), padded=settings.scheduling.max_num_seqs)
    kv, rest = _by_kind(scenario, [plain] * getattr(layout, "dp", 1))
    try:
        _, with_prompts = _by_kind(scenario, [batch] * getattr(layout, "dp", 1))
    except (InputError, DoesNotFit):
        return kv, rest
    return kv, max(rest, with_prompts)


def _by_kind(scenario: Scenario, groups: list[MicroBatch]) -> tuple[float, float]:
    batch: Any = scenario.batch
    served = scenario.variant(batch=batch.working_on(groups))
    machine = served.machine_spec()
    ledger = ledger_of(served, served.case(machine, 0), machine)
    kv = sum(item.size_bytes for item in ledger.items if item.category == "KV")
    return kv, sum(item.size_bytes for item in ledger.items) - kv
