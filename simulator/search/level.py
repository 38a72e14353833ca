"""What engines do over time, from their steps: TPOT, TTFT and tokens per second of a load that goes on.

Prefill and decode together. n requests of each of g groups decode; a request takes I steps, so that a group computes
a = n x new / I prompt tokens a step on average, with a step's chunk of c tokens in a share f = a / c of its steps. A
step takes D where no group has a chunk, M = D + C(one) where one has, and more up to N = D + C(all) where k groups
have, k binomial of g and f::

    mean = (1 - f)^g D + (1 - (1 - f)^g) M + (g f - 1 + (1 - f)^g) (N - M) / (g - 1)
    TPOT = mean / (tokens of a request in a step)
    TTFT = wait + chunks x (M + f (N - M)),  wait = E[step^2] / (2 mean) / (1 - a / budget)

A prompt waits for the end of a step, as an arrival that meets any of them by its length does, longer the nearer prompts
come to the tokens that a step may have (`budget`: of max_num_batched_tokens what requests that decode leave).

Apart. An engine that prefills takes S(u) for its prompts where it is busy a share u of the time: P of one prompt of
each group at first, P of as many as a step has tokens for in the end; a prompt waits u S / (2 (1 - u)), as in M/D/1.

Worked example. n = 64, D = 47 ms, M = 700, N = 1,146 ms with chunks of 4,096 tokens, g = 16, I = 1,024 steps: a = 256,
f = 1/16, (1 - f)^16 = 0.356, and mean = 0.356 x 47 + 0.644 x 700 + 0.356 x 446 / 15 = 478 ms: together is no way to
serve this; apart TPOT is 47 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from simulator.search.deployment import Ask
from simulator.search.sheet import Sheet

HALVINGS = 30  # of the range in which a load is looked for


@dataclass(frozen=True)
class Together:
    """An engine with so many requests that decode: of a group and in all with those that wait for their first token;
    times in seconds, output tokens a second of the engine."""

    count: int
    in_flight: int
    tpot_s: float
    ttft_s: float
    tokens_per_s: float


def together(ask: Ask, sheet: Sheet, count: int, seconds: float) -> Together | None:
    """With `count` requests of a group that decode in `seconds`; None where prompts come faster than they can be
    computed."""
    tokens = sheet.engine.tokens
    steps = max(ask.output_tokens / sheet.per_iteration, 1.0)
    budget = tokens if sheet.alone else max(tokens - count * sheet.queries, 1)
    of_step = count * ask.new_tokens / steps
    measured = min(ask.new_tokens, tokens)
    chunk = max(min(measured, budget), of_step)
    if of_step >= budget:
        return None
    one, every = (seconds + more * chunk / measured for more in sheet.chunk)
    share, groups = of_step / chunk, sheet.groups
    none = (1.0 - share) ** groups
    more = (every - one) / max(groups - 1, 1)
    mean = none * seconds + (1.0 - none) * one + max(groups * share - 1.0 + none, 0.0) * more
    square = none * seconds**2 + (1.0 - none) * (one + max(groups * share / (1.0 - none) - 1.0, 0.0) * more) ** 2
    own = one + share * (every - one)
    wait = square / (2.0 * mean) / (1.0 - of_step / budget)
    ttft_s, tpot_s = sheet.front_s + wait + -(-ask.new_tokens // budget) * own, mean / sheet.per_iteration
    rate = groups * count / tpot_s
    return Together(count, round(groups * count + rate / ask.output_tokens * ttft_s), tpot_s, ttft_s, rate)


class Prefilling(NamedTuple):
    """An engine that prefills: prompts a second at most within the limit of TTFT, and at a share of that."""

    sheet: Sheet

    def at(self, busy: float) -> tuple[float, float]:
        """(prompts a second, TTFT in seconds) where it is busy this share of the time."""
        (_, alone), (most, full) = self.sheet.prefill[0], self.sheet.prefill[-1]
        count = 1 + busy * (most - 1)
        seconds = alone + busy * (full - alone)
        wait = busy * seconds / (2.0 * (1.0 - busy))
        return busy * count * self.sheet.groups / seconds, self.sheet.front_s + wait + seconds

    def most(self, ttft_s: float) -> float:
        """The share of the time that it can be busy within a TTFT; 0.0 where it is never so fast."""
        if self.at(0.0)[1] > ttft_s:
            return 0.0
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self.at(middle)[1] <= ttft_s else (low, middle)
        return low

    def busy(self, prompts_per_s: float) -> float:
        """The share of the time that so many prompts a second take."""
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self.at(middle)[0] <= prompts_per_s else (low, middle)
        return low


def within(ask: Ask, sheet: Sheet) -> Iterator[tuple[int, float]]:
    """(requests of a group, seconds of a step) of decode within the limit of TPOT."""
    for count, seconds in sheet.decode:
        if seconds / sheet.per_iteration * 1e3 <= ask.tpot_ms:
            yield count, seconds
