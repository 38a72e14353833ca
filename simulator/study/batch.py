"""What a step works on: prompts to prefill, or requests that decode, spread over ranks by a workload or given rank by
rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from simulator.errors import InputError
from simulator.model.drafts import tokens_per_iteration
from simulator.model.layout import lengths_on_ranks
from simulator.model.micro_batch import MicroBatch


class Part(BaseModel):
    """A part of a scenario: unknown keys are refused, values cannot change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Prompts(Part):
    """A batch of prompts to prefill: `requests` of `prompt_tokens` each, or the lengths of `prompt_lengths`."""

    requests: int = Field(1, gt=0, le=10**6, description="prompts in the batch")
    prompt_tokens: PositiveInt = Field(4096, description="of each prompt")
    prompt_lengths: tuple[PositiveInt, ...] = Field((), description="uneven prompts; instead of the two above")
    prefixes: tuple[NonNegativeInt, ...] = Field(
        (), description="tokens cached before each of prompt_lengths, on every rank (left out: none)"
    )

    @model_validator(mode="after")
    def _has_a_prefix_for_each(self) -> Prompts:
        if self.prefixes and len(self.prefixes) != len(self.prompt_lengths):
            raise ValueError(f"prefixes has {len(self.prefixes)}, prompt_lengths {len(self.prompt_lengths)}: one for"
                             " each")
        return self

    @property
    def lengths(self) -> tuple[int, ...]:
        """New tokens of every prompt."""
        return self.prompt_lengths or (self.prompt_tokens,) * self.requests

    @property
    def prompts(self) -> tuple[tuple[int, int], ...]:
        """(new tokens, tokens cached before them) of every prompt."""
        return tuple(zip(self.lengths, self.prefixes or (0,) * len(self.lengths), strict=True))

    def working_on(self, groups: Sequence[MicroBatch]) -> Prompts:
        """One pass over the prompts, or chunks of them, of all groups; InputError where there are requests that
        decode, or no prompts."""
        prompts = [prompt for one in groups for prompt in one.prompts]
        if not prompts or any(one.decodes for one in groups):
            raise InputError("the step of these engines prefills alone: a batch of it has prompts, and no requests that"
                             " decode")
        if any(one.padded for one in groups if one.prompts):
            raise InputError("the step of these engines pads no prompts: leave out capture_prefill")
        return Prompts(prompt_lengths=tuple(new for new, _ in prompts), prefixes=tuple(had for _, had in prompts))

    @property
    def queries(self) -> int:
        """Tokens of a request that decodes: there is none."""
        return 1


class Requests(Part):
    """Requests in decode, half-way through their outputs: so many a card, `draft_tokens` of each by MTP modules."""

    per_card: int = Field(gt=0, le=10**4, description="requests on every card")
    prompt_tokens: PositiveInt = Field(2048, description="of each request")
    output_tokens: PositiveInt = Field(2048, description="of each request; half of them are cached")
    draft_tokens: int = Field(1, ge=0, le=8, description="per request and iteration, by MTP modules")
    acceptance: float = Field(
        0.7, ge=0, le=1, description="probability that a draft token is accepted, given that those before it were"
    )
    length_spread: float = Field(
        0.0, ge=0, le=2, description="coefficient of variation of the cached tokens between requests (0: all alike)"
    )
    placement: Literal["arrival", "length_aware"] = Field(
        "arrival", description="requests fall on ranks as they arrive, or so that ranks cache as many tokens each"
    )
    held: tuple[tuple[NonNegativeInt, ...], ...] = Field(
        (), exclude=True, description="cached tokens of every rank's requests, instead of what says so above"
    )
    rows: int = Field(
        0, ge=0, exclude=True, description="requests to which a captured graph pads every rank (0: the fullest one's)"
    )

    def working_on(self, groups: Sequence[MicroBatch]) -> Requests:
        """One iteration over the requests of each rank; drafts stay as they are. InputError where there are prompts, or
        no requests."""
        held = tuple(tuple(cached for _, cached in one.decodes) for one in groups)
        if not any(held) or any(one.prompts for one in groups):
            raise InputError("the step of these engines decodes alone: a batch of it has requests that decode, and no "
                             "prompts (nor requests that are computed again: give cache.tokens that hold them)")
        queries = next(one.decodes[0][0] for one in groups if one.decodes)
        rows = -(-max(one.padded for one in groups) // queries)
        return self.model_copy(update={"held": held, "rows": rows})

    @property
    def cached_tokens(self) -> int:
        """Of an average request, half-way through its output."""
        return self.prompt_tokens + self.output_tokens // 2

    def per_die(self, cards: int, dies: int) -> int:
        """Requests on every die, of a card with several as many on each; InputError where they do not divide. Of `held`
        those of the fullest one."""
        if self.held:
            return max(map(len, self.held))
        each, rest = divmod(self.per_card * cards, dies)
        if rest:
            raise InputError(f"batch.per_card is {self.per_card}: it must be a multiple of machine.dies_per_card, "
                             f"{dies // cards}")  # fmt: skip
        return each

    def lengths(self, arrivals: int, each: int, ranks: int, seed: int) -> Sequence[tuple[int, ...]]:
        """Cached tokens of every rank's requests, where `each` arrive at each of so many places; InputError where they
        are given and not of so many ranks."""
        if self.held and len(self.held) != ranks:
            raise InputError(f"batch.held has {len(self.held)}, there are {ranks} ranks: one for each")
        return self.held or lengths_on_ranks(arrivals, each, self.cached_tokens, self.length_spread, seed, ranks,
                                             self.placement == "length_aware")

    @property
    def queries(self) -> int:
        """Tokens per request that an iteration verifies."""
        return 1 + self.draft_tokens

    @property
    def tokens_per_iteration(self) -> float:
        """Expected output tokens per request and iteration: 1 + p + p^2 + ..."""
        return tokens_per_iteration(self.acceptance, self.draft_tokens)
