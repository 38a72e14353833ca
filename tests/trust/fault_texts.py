"""Targets of the fuzzer that are faults: texts of --fault, what they strike on a machine, files that list them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

from simulator.errors import InputError
from simulator.fabric.graph import Fabric
from tests.trust.variants import NUMBERS, TEXTS, UNITS, json_text, raw, scalar, text, toml_text, tree

RIGHT = (
    "12 ms: link rank3.nic0 rate 0.1 for 5 ms", "12 ms: link die 3 - node 0 cut for 1 ms", "2 ms: rank 7 lost",
    "12 ms: link rank3.nic0 flaps 20 us for 1 ms", "0 s: rank 7 clock 0.8", "1 ms: host 3 paused for 100 us",
    "6 us: proxy 0 paused for 100 us", "about every 1 ms: link rank*.nic* cut for 1 ms", "1 us: node 0 hbm 0.5",
    "about every 2 ms: host * paused for 1 us", "30 s: engine decode.0 lost", "0 s: rank 1 hbm 0.5 for 1 us",
)  # fmt: skip
"""Faults of which most strike something of the machine of SCENARIO."""
SCENARIO = "contention:staging"
NAMES = ("rank", "rank*.nic*", "rank99999999.nic0", "rank3.nic99", "*", "* - *", "die 3 - node 0", "die 3 to node 0",
         "die 99999999 - node 0", "node 0 - die 3, die 1 - node 0", "-1", "1" * 5000, "1.0", "rank1.nic" + "0" * 5000,
         "decode.0", "cut", "for", "٣")  # fmt: skip
LASTS_S = 0.007
"""About what a run of SCENARIO takes; what is drawn is drawn over it."""


@cache
def _fabric() -> Fabric:
    from simulator.study.library import load_scenario
    from simulator.study.simulate import prepare

    return prepare(load_scenario(SCENARIO), 0).fabric


def fault(rng: Random) -> str:
    """A fault with a few changes: a word, a time, a name, or some signs of it; one in twelve has none."""
    found = rng.choice(RIGHT)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3))):
        words = found.split(" ")
        place = rng.randrange(len(words))
        draw = rng.random()
        if draw < 0.3:
            found = text(rng, found)
            continue
        if draw < 0.6:
            words[place] = str(scalar(rng))
        elif draw < 0.7:
            words[place] = f"{rng.choice(NUMBERS)} {rng.choice(UNITS)}"
        elif draw < 0.8:
            words[place] = rng.choice(NAMES)
        elif draw < 0.9:
            del words[place]
        else:
            words[place] = rng.choice(rng.choice(RIGHT).split(" "))
        found = " ".join(words)
    return found


def faults(rng: Random, folder: Path) -> None:
    """Texts of `--fault`, and what they strike; nothing is simulated."""
    from simulator.replay.faults import drawn, schedules_of
    from simulator.spec.faults import fault_of

    given = fault(rng)
    try:
        found = fault_of(given)
        _ = fault_of(str(found))
        those = drawn([found], _fabric(), LASTS_S, 0)
        schedules_of(those, _fabric(), cards=rng.random() < 0.5)
    except InputError as error:
        if not str(error).startswith("fault '"):
            raise ValueError(f"a refusal that does not say which fault: {error}") from error
        raise


def fault_files(rng: Random, folder: Path) -> None:
    """A TOML file that lists faults."""
    from simulator.spec.faults import faults_of

    listed = {"faults": [fault(rng) if rng.random() < 0.3 else one for one in rng.sample(RIGHT, rng.randrange(1, 5))]}
    whole = toml_text(tree(rng, listed)) if rng.random() < 0.8 else json_text(listed)
    data = whole.encode("utf-8", "surrogatepass")
    path = folder / "faults.toml"
    path.write_bytes(raw(rng, data) if rng.random() < 0.3 else data)
    faults_of([str(path)])


def hostile(rng: Random) -> str:
    """A fault of a run that is simulated: none strikes so often that it takes long, and rightly so."""
    found = fault(rng)
    often = any(word in found for word in ("every", "flaps"))
    return rng.choice(TEXTS) if often and found not in RIGHT else found
