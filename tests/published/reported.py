"""What results/validation.md says of every published value: `braid validate` wrote it, and CI compares it with what
the library gives now, so nothing of it is simulated once more here."""

from __future__ import annotations

from dataclasses import dataclass

from tests.conftest import ROOT

REPORT = (ROOT / "results" / "validation.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Row:
    """One line of the table of every value, as text."""

    id: str
    scenario: str
    metric: str
    expected: str
    role: str
    simulated: str
    error: str

    def __str__(self) -> str:
        return f"{self.scenario}-{self.id}-{self.metric}"

    @property
    def against(self) -> str:
        """The scenario that it is a ratio to; empty for none."""
        return self.metric.partition(" / ")[2]

    def assert_within(self, allowed: float) -> None:
        """The relative error is no larger than this, to the tenth of a percent that is printed; a band is met."""
        if self.error != "none":
            error = abs(float(self.error.removesuffix("%"))) / 100
            assert error <= allowed + 0.0005, f"simulated {self.simulated}, published {self.expected}"


def reported(*prefixes: str) -> list[Row]:
    """The rows of scenarios whose names begin so; of all for none."""
    lines = REPORT.partition("## Every value")[2].partition("\n## ")[0].splitlines()
    rows = [Row(*(cell.strip() for cell in line.split(" | ")[:7])) for line in (one.lstrip("| ") for one in lines[4:])
            if line]  # fmt: skip
    return [row for row in rows if row.scenario.startswith(prefixes or "")]
