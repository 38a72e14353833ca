"""Knobs on and off: alone, one after the other, and each taken away from all of them together.

The switches of a waterfall are the knobs of a scenario that are on, from all of them off to the scenario as it is; and
the steps of its ladder, from the scenario as it is to all of them. What the switches do alone adds up to what they do
together but for what they do to each other: the remainder.

Worked example: two switches that each hide the same 10 ms. Alone each saves 10 ms, together they save 10 ms: in order
10 and 0, and the remainder is +10 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulator.study.whatif import Answers, Base, Settings, settings_of


@dataclass(frozen=True)
class Waterfall:
    """Switches in order. title: what they are; start: the what-if without any; steps: of each its name and the settings
    that it changes."""

    title: str
    start: Mapping[str, str]
    steps: tuple[tuple[str, Mapping[str, str]], ...]

    def with_some(self, chosen: Sequence[bool]) -> Settings:
        """The what-if with some of the switches on."""
        changes = dict(self.start)
        for (_, own), on in zip(self.steps, chosen, strict=True):
            changes |= own if on else {}
        return settings_of(changes)

    def alone(self, place: int) -> Settings:
        """With this one alone."""
        return self.with_some([at == place for at in range(len(self.steps))])

    def up_to(self, count: int) -> Settings:
        """With the first ones."""
        return self.with_some([at < count for at in range(len(self.steps))])

    def without(self, place: int) -> Settings:
        """With all others."""
        return self.with_some([at != place for at in range(len(self.steps))])

    def asked(self) -> Iterator[Settings]:
        """All what-ifs that it needs."""
        yield self.up_to(0)
        for place in range(len(self.steps)):
            yield from (self.alone(place), self.up_to(place + 1), self.without(place))


@dataclass(frozen=True)
class Step:
    """A switch: what the metric changes by where it is switched on alone, in order after those before it, and last
    after all others; value: of the metric with it and all before it. None, with the reason, where a run is refused."""

    switch: str
    alone: float | None
    in_order: float | None
    last: float | None
    value: float | None
    reason: str


@dataclass(frozen=True)
class Fall:
    """A waterfall with what came of it: the metric without any switch and with all, what they do alone added up, and
    the remainder of what they do together."""

    title: str
    start: float | None
    end: float | None
    steps: tuple[Step, ...]
    alone: float | None
    remainder: float | None


@dataclass(frozen=True)
class Flip:
    """A knob that is off, switched on: the metric then, and what it changes by; reason: why it cannot be."""

    knob: str
    value: float | None
    change: float | None
    reason: str


def waterfalls(base: Base) -> list[Waterfall]:
    """That of the knobs that are on, and that of the ladder."""
    on = [key for key, value in _booleans(base).items() if value]
    found = []
    if on:
        steps = tuple((key.partition(".")[2], {key: "true"}) for key in on)
        found.append(Waterfall("knobs, from all off to as they are", dict.fromkeys(on, "false"), steps))
    if base.scenario.ladder:
        steps = tuple((step.title, step.changes) for step in base.scenario.ladder)
        found.append(Waterfall("ladder, from the scenario to all its steps", {}, steps))
    return found


def off(base: Base) -> dict[str, Settings]:
    """The knobs that are off, with the what-if in which each is on."""
    return {key: settings_of({key: "true"}) for key, value in _booleans(base).items() if not value}


def _booleans(base: Base) -> dict[str, bool]:
    return {key: value for key, value in base.scenario.settings().items()
            if key.startswith("knobs.") and isinstance(value, bool)}  # fmt: skip


def fall_of(base: Base, one: Waterfall, answers: Answers) -> Fall:
    """What came of a waterfall."""

    def value(settings: Settings) -> float | None:
        return answers[as_asked(base, settings)].value(base.metric)

    def change(after: Settings, before: Settings) -> float | None:
        return _less(value(after), value(before))

    start, end = one.up_to(0), one.up_to(len(one.steps))
    steps = []
    for place, (name, _) in enumerate(one.steps):
        before, after = one.up_to(place), one.up_to(place + 1)
        needed = (start, one.alone(place), before, after, end, one.without(place))
        reasons = [answers[as_asked(base, settings)].reason for settings in needed]
        steps.append(Step(name, change(one.alone(place), start), change(after, before), change(end, one.without(place)),
                          value(after), next(filter(None, reasons), "")))  # fmt: skip
    changes = [step.alone for step in steps]
    alone = None if None in changes else sum(each for each in changes if each is not None)
    return Fall(one.title, value(start), value(end), tuple(steps), alone, _less(change(end, start), alone))


def flips(base: Base, answers: Answers) -> list[Flip]:
    """What came of knobs that are off."""
    found = []
    for key, settings in off(base).items():
        outcome = answers[settings]
        value = outcome.value(base.metric)
        found.append(Flip(key.partition(".")[2], value, _less(value, base.value), outcome.reason))
    return found


def as_asked(base: Base, settings: Settings) -> Settings:
    """Without what is so already: the scenario as it is need not run again."""
    now = {key: str(value).lower() for key, value in base.scenario.settings().items() if isinstance(value, bool)}
    return tuple((key, text) for key, text in settings if now.get(key) != text)


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
