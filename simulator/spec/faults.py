"""Faults as they are written: when, what is struck, what becomes of it, and for how long.

    12 ms: link rank3.nic0 rate 0.1 for 5 ms        a tenth of its rate is left; so are links as in a trace:
    12 ms: link die 3 - node 0 cut for 1 ms         both directions ("die 3 to node 0": one); nothing crosses it
    12 ms: link rank3.nic0 flaps 20 us for 1 ms     down for 20 us, up for 20 us, and so on
    0 s: rank 7 clock 0.8                           compute of a rank, to the end; hbm 0.5: its memory
    2 ms: rank 7 lost                               "node 1 ...": every rank of a node
    1 ms: host 3 paused for 100 us                  its threads do nothing new; what is launched goes on
    6 us: proxy 0 paused for 100 us                 the thread that drives its network cards alone
    about every 5 ms: link rank*.nic* cut for 1 ms  drawn: exponential times between strikes, "*" anew for each of them
    30 s: engine decode.0 lost                      of a service: it comes back when its model is loaded again
    30 s: engine decode.0 silent for 90 s           the same, but no connection is closed: health checks find it
    30 s: engine decode.0 clock 0.8 for 10 s        all its ranks; "rank 3 of decode.0 ...": one of them
    30 s: link decode.0 - prefill.1 cut for 1 s     what lies on the ways between two engines

A network card that is dead is its link, cut. Of two faults that hold the same back at once, the one that leaves less
counts. A TOML file lists them: faults = ["12 ms: ...", "0 s: ..."].
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path

from simulator.errors import InputError
from simulator.paths import did_you_mean
from simulator.units import format_si, parse, to_si

EFFECTS = {
    "link": ("rate", "cut", "flaps"), "rank": ("clock", "hbm", "lost"), "node": ("clock", "hbm", "lost"),
    "host": ("paused",), "proxy": ("paused",), "engine": ("lost", "silent", "clock", "hbm"),
}  # fmt: skip
SHARES = ("rate", "clock", "hbm")
"""Effects with a share of what there was, more than 0 and at most 1."""
MOST_S = 1e6
"""Of a time: more than eleven days no run lasts."""
MOST_STRIKES = 100_000
"""Of one fault that flaps, or is drawn."""
_EFFECTS = "|".join(sorted({name for names in EFFECTS.values() for name in names}))
_TEXT = re.compile(rf"(?P<every>about every )?(?P<at>[^:]+):\s*(?P<what>\w+)\s+(?P<name>.+?)\s+(?P<effect>{_EFFECTS})"
                   r"(?:\s+(?P<value>(?!for\b).+?))?(?:\s+for\s+(?P<length>.+))?")  # fmt: skip
_RIGHT = 'write "TIME: WHAT NAME EFFECT [VALUE] [for TIME]", as in "12 ms: link rank3.nic0 rate 0.1 for 5 ms"'


@dataclass(frozen=True, slots=True)
class Fault:
    """What strikes a machine or a service: from `at_s` on, for `for_s` (inf: to the end), `effect` on `name`.

    value: the share that is left, or the time (s) for which a link that flaps is down, and up. mean_s: 0, or the mean
    of the exponential times between strikes that are drawn.
    """

    what: str
    name: str
    effect: str
    at_s: float = 0.0
    for_s: float = inf
    value: float = 0.0
    mean_s: float = 0.0

    def __str__(self) -> str:
        """As it is written."""
        at = f"about every {_time(self.mean_s)}" if self.mean_s else _time(self.at_s)
        value = f" {self.value:g}" if self.effect in SHARES else f" {_time(self.value)}" * (self.effect == "flaps")
        return f"{at}: {self.what} {self.name} {self.effect}{value}" + f" for {_time(self.for_s)}" * (self.for_s < inf)

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.at_s + self.for_s


def fault_of(text: str) -> Fault:
    """A fault as it is written; InputError says what is wrong and what is right."""
    found = _TEXT.fullmatch(" ".join(text.split()))
    if found is None:
        raise InputError(f"fault '{text}': {_RIGHT}")
    what, effect, value = found["what"], found["effect"], found["value"]
    if what not in EFFECTS:
        raise InputError(f"fault '{text}': nothing is called '{what}'{did_you_mean(what, EFFECTS)}; "
                         f"what is struck is one of {', '.join(EFFECTS)}")
    if effect not in EFFECTS[what]:
        raise InputError(f"fault '{text}': a {what} is never '{effect}'; it is one of {', '.join(EFFECTS[what])}")
    at_s, length_s = _seconds(text, found["at"]), inf if found["length"] is None else _seconds(text, found["length"])
    if found["every"] and not at_s:
        raise InputError(f"fault '{text}': the mean time between strikes is more than 0 s")
    if effect in ("paused", "flaps") and length_s == inf:
        raise InputError(f"fault '{text}': say for how long, as in \"... for 100 ms\"")
    left = _value(text, effect, value)
    if effect == "flaps" and length_s > 2 * left * MOST_STRIKES:
        raise InputError(f"fault '{text}': it is down more than {MOST_STRIKES:,} times; write a longer time of each")
    return Fault(what, found["name"], effect, 0.0 if found["every"] else at_s, length_s, left,
                 at_s if found["every"] else 0.0)  # fmt: skip


def faults_of(given: Iterable[str]) -> tuple[Fault, ...]:
    """Of texts, and of TOML files that list them under `faults`; InputError names what is wrong."""
    return tuple(fault for text in given for fault in (_listed(text) if text.endswith(".toml") else [fault_of(text)]))


def _listed(path: str) -> list[Fault]:
    try:
        listed = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None
    texts = listed.get("faults")
    if set(listed) != {"faults"} or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f'{path}: write one list of texts, as faults = ["12 ms: link rank3.nic0 cut for 1 ms"]')
    try:
        return [fault_of(text) for text in texts]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _seconds(text: str, time: str) -> float:
    """A time of 0 or more."""
    try:
        number, unit = parse(time)
        seconds = to_si(number, unit)
    except ValueError as error:
        raise InputError(f"fault '{text}': {error}") from None
    if not 0 <= seconds <= MOST_S or (unit not in ("s", "ms", "us", "ns", "ps")):
        raise InputError(f"fault '{text}': '{time}' is no time; write 0 or more, at most {MOST_S:g} s, as in \"12 ms\"")
    return seconds


def _value(text: str, effect: str, value: str | None) -> float:
    if effect == "flaps":
        if value is None or not _seconds(text, value):
            raise InputError(f"fault '{text}': say for how long it is down, and up, as in \"flaps 20 us\"")
        return _seconds(text, value)
    if effect not in SHARES:
        if value is not None:
            raise InputError(f"fault '{text}': '{effect}' has no value; '{value}' is not understood")
        return 0.0
    try:
        share = float(value or "")
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError(f"fault '{text}': '{effect}' wants the share that is left, more than 0 and at most 1")
    return share


def _time(seconds: float) -> str:
    """With nine digits, so that a time that was drawn can be written again."""
    if not seconds:
        return "0 s"
    unit = format_si(seconds, "s").rpartition(" ")[2]
    return f"{seconds / to_si(1.0, unit):.9g} {unit}"
