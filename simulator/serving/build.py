"""Engines from settings: what their caches hold, and how long their steps take."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

from simulator.die.memory import DoesNotFit
from simulator.errors import InputError
from simulator.model.micro_batch import MicroBatch
from simulator.physics.clock import Clock
from simulator.serving.audit import Audit, Mode
from simulator.serving.cache import BlockCache
from simulator.serving.experts import Experts, Send
from simulator.serving.group import Group
from simulator.serving.growth import Drafted, OneToken
from simulator.serving.kept import Kept
from simulator.serving.levels import Levels
from simulator.serving.placing import Placing, without_ranks
from simulator.serving.popularity import Popularity
from simulator.serving.settings import Instances
from simulator.serving.states import paged, state_bytes_of
from simulator.serving.steps import StepTimes
from simulator.serving.uneven import Uneven
from simulator.spec.faults import Fault
from simulator.study.scenario import Scenario
from simulator.study.simulate import ledger_of
from simulator.units import format_si

Pace = tuple[Fault, ...]
"""What makes ranks of an engine slow, in one order: the same of the same."""
PROBED = 1024  # tokens of the cache that the ledger is asked for twice, to learn what one takes


@dataclass(frozen=True)
class Kind:
    """Engines that are alike: their settings, the tokens that the cache of a group holds, bytes on the fullest rank of
    one of these and of a request's states, step times and audit. placing: of experts, where these change over time."""

    settings: Instances
    capacity: int
    token_bytes: float
    state_bytes: float
    times: StepTimes | Levels
    audit: Audit
    kept: Kept
    seed: int
    placing: Placing | None = None
    folder: Path | None = None
    slow: dict[tuple[Pace, tuple[int, ...]], Kind] = field(default_factory=dict)
    """The same engines where ranks are slow, or gone, as far as any was."""

    @cached_property
    def groups(self) -> int:
        """Data-parallel groups of an engine."""
        return self.settings.step.data_parallel

    @cached_property
    def state_blocks(self) -> int:
        """That a request holds beside those of its tokens."""
        one = ceil(self.state_bytes / (self.settings.cache.block_size * self.token_bytes))
        return one * (1 + self.settings.aligned)

    @property
    def moved_beside(self) -> float:
        """Tokens that take as many bytes as what moves with a prompt beside its tokens: its states."""
        return self.state_bytes / self.token_bytes

    @property
    def most_tokens(self) -> int:
        """That one request can have."""
        block = self.settings.cache.block_size
        return (self.capacity // block - self.state_blocks) * block

    @cached_property
    def ranks(self) -> int:
        """Of an engine."""
        return self.settings.step.cards * self.settings.step.machine_spec().dies_per_card.count

    @cached_property
    def popularity(self) -> Popularity:
        """Of the experts of all engines, asked for in the order of time."""
        assert self.placing is not None
        return Popularity(len(self.placing.layers), self.placing.experts.routed, self.placing.skew,
                          self.settings.experts.drift_s, self.seed)  # fmt: skip

    def experts(self, send: Send, clock: Clock) -> Experts | None:
        """Those of an engine, where they change over time; send: moves their weights."""
        if self.placing is None:
            return None
        return Experts(self.settings.experts, self.placing, self.popularity, send, clock)

    def paced(self, pace: Pace, gone: tuple[int, ...] = ()) -> Audit:
        """Step times where ranks are slow from end to end, or gone, and the engine goes on without them."""
        if not pace and not gone:
            return self.audit
        if (pace, gone) not in self.slow:
            step = self.settings.step
            settings = self.settings.model_copy(update={"step": step.variant(faults=(*step.faults, *pace))})
            kept = Kept(settings.step, self.folder)
            times = _times_of(settings, self.capacity, kept, self.placing)
            if gone:
                state = without_ranks(settings, gone, self.seed)
                assert state is not None
                times = StepTimes(settings.step, settings.capture, self.capacity, kept, settings.simplified,
                                  Uneven(state), settings.shares)  # fmt: skip
            self.slow[pace, gone] = replace(self, settings=settings, times=times, kept=kept, slow={},
                                      audit=Audit(times, self.audit.mode, self.seed))  # fmt: skip
        return self.slow[pace, gone].audit

    def group(self, hash_tokens: int) -> Group:
        """A group with an empty cache; hash_tokens: of the hashes of prompts."""
        cache, block = self.settings.cache, self.settings.cache.block_size
        hashed = hash_tokens if cache.enable_prefix_caching and hash_tokens else block
        batch: Any = self.settings.step.batch
        drafts = batch.queries - 1
        growth = Drafted(block, drafts, batch.acceptance, self.seed) if drafts else OneToken(block)
        blocks = BlockCache(self.capacity // block, block, cache.enable_prefix_caching, hashed, self.state_blocks)
        return Group(blocks, growth, aligned=self.state_blocks > 0 and self.settings.aligned,
                     by_priority=self.settings.scheduling.policy == "priority")  # fmt: skip


def kind_of(settings: Instances, mode: Mode, seed: int, folder: Path | None) -> Kind:
    """InputError where the model does not fit, nothing is left for a cache, and as of `Placing`."""
    placing = Placing(settings) if settings.experts.change else None
    buffer_bytes = placing.buffer_bytes if placing and settings.experts.step_interval else 0.0
    room, token_bytes = tokens_of_cache(settings, buffer_bytes)
    state_bytes = state_bytes_of(settings)
    settings = paged(settings, state_bytes, token_bytes)
    if settings.cache.tokens:
        _check_tokens(settings, buffer_bytes)
    capacity, kept = settings.cache.tokens or room, Kept(settings.step, folder)
    if capacity < settings.cache.block_size:
        given = "is set to" if settings.cache.tokens else "has room, beside weights and buffers, for"
        raise InputError(f"{settings.step.name}: the cache {given} {capacity} tokens, where a block has "
                         f"{settings.cache.block_size}{'' if settings.cache.tokens else _taken(settings)}")

    times = _times_of(settings, capacity, kept, placing)
    return Kind(settings, capacity, token_bytes, state_bytes, times, Audit(times, mode, seed), kept, seed, placing,
                folder)


def _times_of(settings: Instances, capacity: int, kept: Kept, placing: Placing | None) -> StepTimes | Levels:
    def of(experts: Uneven | None) -> StepTimes:
        return StepTimes(settings.step, settings.capture, capacity, kept, settings.simplified, experts,
                         settings.shares)

    return Levels(placing, of) if placing else of(None)


def tokens_of_cache(settings: Instances, buffer_bytes: float = 0.0) -> tuple[int, float]:
    """What memory leaves for the keys and values of a data-parallel group, in tokens: gpu_memory_utilization of HBM
    less what is not usable, weights, buffers (and one more of so many bytes) and the activations of the largest step,
    over the bytes that a token takes on the fullest rank."""
    less, more = (_kv_and_rest(settings, tokens) for tokens in (PROBED, 2 * PROBED))
    each = (more[0] - less[0]) / PROBED
    if not each > 0:
        raise InputError(f"{settings.step.name}: its ledger has no item of category KV that grows with tokens: give "
                         "cache.tokens")
    hbm = settings.step.machine_spec().chip.hbm
    share = settings.cache.gpu_memory_utilization - (1.0 - hbm.usable.si)  # contexts and buffers of NCCL count as used
    room = hbm.capacity.si * share - less[1] - buffer_bytes
    return max(int(room * settings.cache.free_gpu_memory_fraction / each), 0), each


def _check_tokens(settings: Instances, buffer_bytes: float) -> None:
    """InputError where a cache is asked for that all of the memory cannot hold."""
    whole = settings.cache.model_copy(update={"gpu_memory_utilization": 1.0, "free_gpu_memory_fraction": 1.0})
    most, _ = tokens_of_cache(settings.model_copy(update={"cache": whole}), buffer_bytes)
    if settings.cache.tokens > most:
        raise InputError(f"{settings.step.name}: cache.tokens is {settings.cache.tokens:,}: memory has room for "
                         f"{most:,} beside weights and buffers")


def _taken(settings: Instances) -> str:
    """What leaves no room, and what would."""
    hbm = settings.step.machine_spec().chip.hbm
    beside, usable = _kv_and_rest(settings, PROBED)[1], hbm.capacity.si * hbm.usable.si
    return (f": these take {format_si(beside, 'B')} of a rank, of which {format_si(usable, 'B')} can be used; give it "
            "more cards, or a model that is quantised")


def bytes_of_reused(settings: Instances) -> float:
    """That a token takes on the fullest rank where a prompt finds it computed: where each rank of a group keeps a part
    it may be needed whole on all."""
    scenario = settings.step
    less, more = (_by_kind(scenario, [MicroBatch(0, (), ((PROBED, before),), 1)] * scenario.data_parallel)[0]
                  for before in (PROBED, 2 * PROBED))  # fmt: skip
    return (more - less) / PROBED


def _kv_and_rest(settings: Instances, tokens: int) -> tuple[float, float]:
    """Bytes of the KV cache, and of all else, with so many tokens cached in every group: of requests that decode, with
    prompts beside them where the step has them, or of prompts where it has nothing else."""
    scenario, groups = settings.step, settings.step.data_parallel
    most = min(settings.scheduling.max_num_batched_tokens, 8 * PROBED)
    plain = MicroBatch(0, ((1, tokens),), padded=settings.scheduling.max_num_seqs)
    batch: Any = scenario.batch
    others = ((batch.queries, 1),) * (min(settings.scheduling.max_num_seqs, most // batch.queries) - 1)
    beside = MicroBatch(0, ((1, tokens), *others), ((max(most - batch.queries * len(others), 1), 0),), 1)
    alone = MicroBatch(0, (), ((most, 0),), 1)
    found = _where_it_can_be(scenario, [plain] * groups), _where_it_can_be(scenario, [beside] * groups)
    if found[0] is None:
        kv, _ = _by_kind(scenario, [MicroBatch(0, (), ((tokens, 0),), 1)] * groups)
        return kv, _by_kind(scenario, [alone] * groups)[1]
    return found[0][0], max(rest for _, rest in filter(None, found))


def _where_it_can_be(scenario: Scenario, groups: list[MicroBatch]) -> tuple[float, float] | None:
    """As `_by_kind`; None of a batch that the step cannot have."""
    try:
        return _by_kind(scenario, groups)
    except (InputError, DoesNotFit):
        return None


def _by_kind(scenario: Scenario, groups: list[MicroBatch]) -> tuple[float, float]:
    batch: Any = scenario.batch
    served = scenario.variant(batch=batch.working_on(groups))
    machine = served.machine_spec()
    ledger = ledger_of(served, served.case(machine, 0), machine)
    kv = sum(item.size_bytes for item in ledger.items if item.category == "KV")
    return kv, sum(item.size_bytes for item in ledger.items) - kv
