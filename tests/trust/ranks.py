"""Roles and all ranks: each scenario of the library simulated by roles and rank by rank, to the last digit.

Makespan, metrics, and every row of the ranks that stand for others are the same, and so is the number of rows. A
scenario whose ranks take longer than a limit together is left out, and named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulator import np
from simulator.observe.tables import markdown_table
from simulator.study.library import load_scenario, scenario_names
from simulator.study.simulate import Result, simulate
from tests.trust.limits import limited

TABLE = Path(__file__).resolve().parents[2] / "results" / "trust" / "ranks.md"


def differing(roles: Result, ranks: Result) -> list[str]:
    """What is not the same."""
    found = [] if roles.makespan_ps == ranks.makespan_ps else [f"makespan {roles.makespan_ps}, {ranks.makespan_ps} ps"]
    found += [f"{name} {roles.metrics.get(name)!r}, {ranks.metrics.get(name)!r}"
              for name in sorted(roles.metrics.keys() | ranks.metrics.keys())
              if not _same(roles.metrics.get(name), ranks.metrics.get(name))]  # fmt: skip
    folded, whole = roles.columns, ranks.columns
    if folded["multiplicity"].sum() != len(whole["rank"]):
        return [*found, f"{folded['multiplicity'].sum()} rows, {len(whole['rank'])}"]
    rows = np.isin(whole["rank"], np.unique(folded["rank"]))
    found += [f"column {name}" for name, column in folded.items()
              if name != "multiplicity" and not (whole[name][rows] == column).all()]  # fmt: skip
    return found


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))  # nan is nan


def compared(names: list[str], limit_s: float, say: Callable[[str], None] = lambda text: None
             ) -> list[tuple[str, str, str]]:  # fmt: skip
    """Of each: its ranks, with how many that are simulated by roles, and whether all is the same."""
    rows = []
    for number, name in enumerate(names, 1):
        counts, text = "", f"left out: more than {limit_s:g} s"
        try:
            with limited(limit_s, TimeoutError):
                roles = simulate(load_scenario(name))
                counts = f"{roles.header['ranks']} ({roles.header['classes']})"
                text = "; ".join(differing(roles, simulate(load_scenario(name), ranks="all"))) or "equal"
        except TimeoutError:
            pass
        rows.append((name, counts, text))
        say(f"{number} of {len(names)}: {name}: {text}")
    return rows


def markdown(rows: list[tuple[str, str, str]], limit_s: float) -> str:
    """The table of results/."""
    equal = sum(text == "equal" for _, _, text in rows)
    out = sum(text.startswith("left out") for _, _, text in rows)
    return ("# By roles and rank by rank\n\n`python -m tests.trust.ranks --each "
            f"{limit_s:g}` simulates every scenario of the library by roles and\nrank by rank: {equal} of "
            f"{len(rows)} are equal to the last digit, {len(rows) - equal - out} differ, {out} take longer than that "
            f"and are left out.\n\n{markdown_table(('scenario', 'ranks (by roles)', 'results'), rows)}")  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.ranks", description=__doc__)
    parser.add_argument("--each", type=float, default=20.0, metavar="S", help="leave out what takes longer")
    parser.add_argument("--only", default="", metavar="TEXT", help="scenarios with this in their names; writes nothing")
    asked = parser.parse_args()
    names = [name for name, _ in scenario_names() if asked.only in name]
    rows = compared(names, asked.each, lambda text: print(text, file=sys.stderr, flush=True))
    text = markdown(rows, asked.each)
    if asked.only:
        print(text)
    else:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(text, encoding="utf-8")
    sys.exit(any(text != "equal" and not text.startswith("left out") for _, _, text in rows))


if __name__ == "__main__":
    main()
