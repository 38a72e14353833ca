"""The tokens of a micro-batch on their way through the layers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.model.micro_batch import MicroBatch, parted
from simulator.model.passes import prompt_batches
from simulator.model.transformer import Experts
from simulator.parallel.border import Form
from simulator.parallel.exchange.task import Exchange
from simulator.program.rank import Event, Rank


@dataclass
class Tokens:
    """What they are, how ranks hold them, and what they wait for.

    of_groups: how many every data-parallel group has, without those that pad; decoding: requests of each that decode;
    sampled: rows of which the group that has most needs logits. batches: of every one of them, in order,
    where one recording serves groups whose contexts differ. block: what gave their present values. form: how the
    tensor-parallel group holds them. after: what the next piece waits for beside its own stream. normed: the norm
    before the next piece was part of an AllReduce. computed: of routed and shared experts so many have been. beside:
    the end of the shared one where it has a stream of its own. exchange, experts, layer: of the layer in which they
    were routed last.
    """

    batch: MicroBatch
    of_groups: tuple[int, ...]
    form: Form = "all"
    after: Event | None = None
    normed: bool = False
    exchange: Exchange | None = None
    experts: Experts | None = None
    layer: int = -1
    block: str = "embedding"
    computed: int = 0
    beside: Event | None = None
    sampled: int = 0
    decoding: tuple[int, ...] = ()
    batches: tuple[MicroBatch, ...] = ()

    @property
    def routed(self) -> Exchange:
        """The exchange of the layer in which they were routed last."""
        assert self.exchange is not None, "a layer is routed first"
        return self.exchange

    def drafting(self, queries: int) -> Tokens:
        """The requests that decode, with so many query tokens each, padded to the group that has most."""
        most = max(self.decoding)
        each = tuple(one.drafting(queries, most) for one in self.batches)
        return Tokens(self.batch.drafting(queries, most), tuple(queries * count for count in self.decoding),
                      sampled=queries * most, decoding=self.decoding, batches=each)  # fmt: skip


def group_of(npu: Rank, groups: Sequence[MicroBatch]) -> int:
    """The first data-parallel group that has what this rank's has; not asked where one recording serves all of them."""
    if alike(groups) and len({one.sampled for one in groups}) == 1:
        return 0
    firsts: dict[MicroBatch, int] = {}
    first = [firsts.setdefault(one, number) for number, one in enumerate(groups)]
    return npu.kind("dp", lambda group: first[group])


def tokens_of(groups: Sequence[MicroBatch], parts: int, own: int = 0) -> list[Tokens]:
    """The micro-batches of one data-parallel group (`own`), with what all of them have."""
    cut = list(zip(*(parted(one, parts) for one in groups), strict=True))
    return [Tokens(each[own], tuple(one.routed for one in each), sampled=max(one.sampled for one in each),
                   decoding=tuple(len(one.decodes) for one in each), batches=each if alike(each) else ())
            for each in cut]  # fmt: skip


def tokens_of_prompts(prompts: Sequence[tuple[int, int]], parts: int, form: Form) -> list[Tokens]:
    """Micro-batches of whole prompts, (new tokens, tokens cached before them), of which every rank has a part, or all
    tokens, in this form."""
    return [Tokens(batch, (batch.tokens,), form) for batch in prompt_batches(prompts, parts)]


def alike(groups: Sequence[MicroBatch]) -> bool:
    """Whether layers differ in nothing but what attention meets, so that one recording of them serves all groups."""
    return len({(one.tokens, bool(one.decodes), bool(one.prompts)) for one in groups}) == 1
