"""Which ranks a trace shows: by number, or by how much they compute."""

from __future__ import annotations

from collections.abc import Sequence

from simulator import np
from simulator.observe.columns import Columns, rank_weights

WORDS = ("slowest", "median", "fastest")
USUAL = ("slowest", "median", "first")


def shown(columns: Columns, wanted: Sequence[str] = USUAL) -> dict[int, str]:
    """Ranks in ascending order, each with why it is shown ("" for one that was asked for by its number).

    wanted: numbers and words: slowest, median and fastest (of simulated ranks, by time at work that is no
    communication, the lowest rank of those that are alike), first, and all. By USUAL also the lowest rank that
    exchanges flags or writes with the first one. ValueError for a rank that is not there, or a word that is none.
    """
    ranks, _, position = rank_weights(columns)
    if not len(ranks):
        return {}
    work = np.where(columns["communication"], 0, columns["end_ps"] - columns["start_ps"])
    order = np.argsort(-np.bincount(position, work, minlength=len(ranks)), kind="stable")
    places = {"slowest": order[0], "median": order[(len(order) - 1) // 2], "fastest": order[-1], "first": 0}
    found: dict[int, list[str]] = {}
    for one in wanted:
        if one == "all":
            found |= {rank: found.get(rank, []) for rank in ranks.tolist()}
        elif one in places:
            found.setdefault(int(ranks[places[one]]), []).append(one)
        else:
            found.setdefault(_numbered(one, ranks.tolist()), [])
    heard = _heard(columns, int(ranks[0]))
    if tuple(wanted) == USUAL and heard:
        found.setdefault(min(heard), []).append(f"exchanges flags or writes with rank {ranks[0]}")
    return {rank: ", ".join(found[rank]) for rank in sorted(found)}


def _heard(columns: Columns, first: int) -> set[int]:
    """Ranks whose rows follow from those of the first one, or these from theirs."""
    rank, cause = columns["rank"], columns["cause_rank"]
    return {*cause[(rank == first) & (cause > first)].tolist(), *rank[(cause == first) & (rank > first)].tolist()}


def _numbered(text: str, ranks: list[int]) -> int:
    """A rank that was simulated, from its number."""
    words = f"{', '.join(WORDS)}, first, all"
    if not text.isdecimal():
        raise ValueError(f"'{text}' is no rank: ranks are numbers, or one of {words}")
    if int(text) not in ranks:
        few = ", ".join(map(str, ranks)) if len(ranks) < 8 else f"{ranks[0]} to {ranks[-1]}"
        raise ValueError(f"no rows of rank {text}; ranks that were simulated are {few}")
    return int(text)
