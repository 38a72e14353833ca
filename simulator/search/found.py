"""Deployments from the sheets of engines: together as they are, apart in the ratio that wastes least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

from simulator.search.deployment import Ask, Deployment, Engine, Found
from simulator.search.level import Prefilling, Together, together, within
from simulator.search.sheet import Sheet

STEPS = "steps"


def of_together(ask: Ask, sheet: Sheet) -> list[Found]:
    """An engine that prefills and decodes, as often as there are cards for it: with each batch that was simulated, and
    with the largest within the limits; none where it cannot be within them."""
    count = ask.most_gpus // sheet.cards
    if not sheet.chunk or not count or count * sheet.cards < ask.least_gpus:
        return []
    found = {}
    last, stopped = largest(ask, sheet)
    for size in sorted({*(size for size, _ in sheet.decode if size < last), last} - {0}):
        one = _at(ask, sheet, size)
        if one is not None and _is_within(ask, one):
            found[size] = _together(ask, sheet, count, one, stopped if size == last else STEPS)
    return list(found.values())


def largest(ask: Ask, sheet: Sheet) -> tuple[int, str]:
    """The most requests of a group within the limits, and which one stops it; 0 where none is."""
    high = max((size for size, _ in within(ask, sheet)), default=0)
    whole = _at(ask, sheet, high)
    if whole is not None and _is_within(ask, whole):
        slower = any(size > high for size, _ in sheet.decode)
        return high, "TPOT" if slower else sheet.full
    low = min((size for size, _ in sheet.decode), default=1) - 1
    while high - low > 1:
        middle = (low + high) // 2
        one = _at(ask, sheet, middle)
        low, high = (middle, high) if one is not None and _is_within(ask, one) else (low, middle)
    beyond = _at(ask, sheet, high)
    if beyond is None:
        return low, "prefill"
    return low, "TPOT" if beyond.tpot_s * 1e3 > ask.tpot_ms else "TTFT"


def _at(ask: Ask, sheet: Sheet, size: int) -> Together | None:
    """With so many requests of a group, a step between two that were simulated on their line."""
    if size < sheet.decode[0][0]:
        return None
    low, seconds = max(one for one in sheet.decode if one[0] <= size)
    if size > low:
        high, slower = min(one for one in sheet.decode if one[0] > size)
        seconds += (slower - seconds) * (size - low) / (high - low)
    return together(ask, sheet, size, seconds)


def _is_within(ask: Ask, one: Together) -> bool:
    return one.tpot_s * 1e3 <= ask.tpot_ms and one.ttft_s * 1e3 <= ask.ttft_ms


def _together(ask: Ask, sheet: Sheet, count: int, one: Together, stopped: str) -> Found:
    return Found(Deployment(sheet.engine), count, 0, count * sheet.cards, sheet.groups * one.count, one.ttft_s * 1e3,
                 one.tpot_s * 1e3, one.tokens_per_s / sheet.cards, 1.0 / one.tpot_s, stopped,
                 count * one.in_flight)  # fmt: skip


class Option(NamedTuple):
    """Engines that prefill: the most prompts a second of one within the limit of TTFT."""

    prefilling: Prefilling
    prompts_per_s: float

    @property
    def kind(self) -> tuple[str, ...]:
        """What engines that decode behind it have alike, and cards of one."""
        return (*alike(self.prefilling.sheet.engine), f"{self.prefilling.sheet.cards:6d}")


def alike(engine: Engine) -> tuple[str, ...]:
    """What engines have in common that hand keys and values to each other: framework, precision, drafts."""
    settings = dict(engine.settings)
    return engine.framework, settings.get("knobs.precision", ""), settings.get("batch.drafts", "0")


def options(ask: Ask, sheets: Iterable[Sheet]) -> list[Option]:
    """Of each kind the engine that prefills most; the one whose words come first where several do."""
    best: dict[tuple[str, ...], Option] = {}
    for sheet in sorted(sheets, key=lambda one: one.engine.words):
        if not sheet.prefill:
            continue
        one = Prefilling(sheet)
        option = Option(one, one.at(one.most(ask.ttft_ms / 1e3))[0])
        known = best.get(option.kind)
        if option.prompts_per_s > (known.prompts_per_s if known else 0.0):
            best[option.kind] = option
    return [best[kind] for kind in sorted(best)]


def of_apart(ask: Ask, sheet: Sheet, beside: Sequence[Option]) -> list[Found]:
    """An engine that decodes, with each batch within the limit of TPOT, beside those like it that prefill: as many of
    both as give most tokens a second for a GPU."""
    found = []
    beside = [one for one in beside if alike(one.prefilling.sheet.engine) == alike(sheet.engine)]
    slower = any(seconds / sheet.per_iteration * 1e3 > ask.tpot_ms for _, seconds in sheet.decode)
    last = max((size for size, _ in within(ask, sheet)), default=0)
    for size, seconds in within(ask, sheet):
        stopped = STEPS if size < last else "TPOT" if slower else sheet.full
        best = max(_ratios(ask, sheet, size, seconds, beside, stopped), default=None,
                   key=lambda one: (one.tok_s_per_gpu, -one.gpus, one.words))
        if best is not None:
            found.append(best)
    return found


def _ratios(ask: Ask, sheet: Sheet, size: int, seconds: float, beside: Sequence[Option],
            stopped: str) -> Iterator[Found]:  # fmt: skip
    tpot_s = seconds / sheet.per_iteration
    tokens_per_s = sheet.groups * size / tpot_s
    prompts_per_s = tokens_per_s / ask.output_tokens
    for option in beside:
        for count in range(1, ask.most_gpus // sheet.cards + 1):
            cards = option.prefilling.sheet.cards
            prefilling = max(ceil(count * prompts_per_s / option.prompts_per_s),
                             ceil((ask.least_gpus - count * sheet.cards) / cards))
            gpus = count * sheet.cards + prefilling * cards
            if gpus > ask.most_gpus:
                continue  # more engines that decode may leave fewer GPUs idle
            ttft_s = option.prefilling.at(option.prefilling.busy(count * prompts_per_s / prefilling))[1]
            waiting = round(count * prompts_per_s * ttft_s)
            yield Found(Deployment(sheet.engine, option.prefilling.sheet.engine), count, prefilling, gpus,
                        sheet.groups * size, ttft_s * 1e3, tpot_s * 1e3, count * tokens_per_s / gpus, 1.0 / tpot_s,
                        stopped, count * sheet.groups * size + waiting)  # fmt: skip
