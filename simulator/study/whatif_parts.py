"""The parts of a study of what-ifs: what each asks for, all of it run once, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simulator.study.whatif import PS_PER_MS, Answers, Base, Settings
from simulator.study.whatif_band import DRAWS, Band, Drawn, band_of, draw, drawn_of
from simulator.study.whatif_elasticity import Elasticity, Ends, elasticities, ends
from simulator.study.whatif_faster import FREE, TWICE, Faster, FasterRow, faster_rows, fasters
from simulator.study.whatif_knobs import Fall, Flip, Waterfall, as_asked, fall_of, flips, off, waterfalls

PARTS = ("free", "faster", "elasticity", "knobs", "band")


@dataclass(frozen=True)
class Plan:
    """What is asked for, part by part; what was not chosen is empty."""

    base: Base
    parts: tuple[str, ...]
    fasters: tuple[Faster, ...]
    ends: tuple[Ends, ...]
    waterfalls: tuple[Waterfall, ...]
    drawn: tuple[Drawn, ...]
    draws: int

    def asked(self) -> Iterator[Settings]:
        """Every what-if; some come more than once."""
        yield from (one.settings for one in self.fasters)
        for end in self.ends:
            yield from (end.low, end.high)
        if "knobs" in self.parts:
            for fall in self.waterfalls:
                yield from (as_asked(self.base, settings) for settings in fall.asked())
            yield from off(self.base).values()
        yield from self._draws()

    def found(self, answers: Answers) -> Found:
        """What came of it all."""
        rows = faster_rows(self.base, self.fasters, answers)
        moved = elasticities(self.base, self.ends, answers)
        knobs, band = "knobs" in self.parts, "band" in self.parts
        return Found(
            self.base, self.parts,
            tuple(row for row in rows if row.how == FREE), tuple(row for row in rows if row.how == TWICE), tuple(moved),
            tuple(fall_of(self.base, one, answers) for one in self.waterfalls) if knobs else (),
            tuple(flips(self.base, answers)) if knobs else (),
            band_of(self.base, self.drawn, list(self._draws()), answers, moved) if band else None)  # fmt: skip

    def _draws(self) -> Iterator[Settings]:
        return (draw(self.base, self.drawn, number) for number in range(self.draws))


@dataclass(frozen=True)
class Found:
    """What came of the parts that were chosen; the rest is empty."""

    base: Base
    parts: tuple[str, ...]
    free: tuple[FasterRow, ...]
    faster: tuple[FasterRow, ...]
    elasticity: tuple[Elasticity, ...]
    falls: tuple[Fall, ...]
    off: tuple[Flip, ...]
    band: Band | None

    def as_object(self) -> dict[str, Any]:
        """What `whatif --json` prints: the numbers of the tables, and rows that these leave out."""
        base = self.base
        made = {
            "free": [asdict(one) for one in self.free], "faster": [asdict(one) for one in self.faster],
            "elasticity": [asdict(one) for one in self.elasticity],
            "knobs": {"waterfalls": [asdict(one) for one in self.falls], "off": [asdict(one) for one in self.off]},
            "band": asdict(self.band) if self.band else None,
        }  # fmt: skip
        return {"scenario": base.scenario.name, "changes": dict(base.scenario.changes), "seed": base.seed,
                "metric": base.metric, "value": base.value, "makespan_ms": base.result.makespan_ps / PS_PER_MS,
                **{part: made[part] for part in PARTS if part in self.parts}}  # fmt: skip


def plan(base: Base, parts: Sequence[str] = PARTS, draws: int = DRAWS, every: bool = False) -> Plan:
    """What the parts ask for. draws: of the band. every: elasticities (and what makes the band wide) of all numbers
    that the run reads, instead of those that bound more than 1% of its critical path."""
    hows = [how for how, part in ((FREE, "free"), (TWICE, "faster")) if part in parts]
    band, moving = "band" in parts, "elasticity" in parts
    return Plan(base, tuple(parts), tuple(fasters(base, hows)) if hows else (),
                tuple(ends(base, every)) if moving or band else (),
                tuple(waterfalls(base)) if "knobs" in parts else (),
                tuple(drawn_of(base)) if band else (), draws if band else 0)  # fmt: skip
