"""Colours: one for each kind of task, the same in every chart, told apart by those who see few colours too.

Compute has blues and greens, communication warm colours, what only moves bytes or passes time has greys and sand: the
colours of Okabe and Ito (Color Universal Design, 2008) and of Tol (SRON/EPS/TN/09-002), of middle lightness, so that
they stand out on light and on dark ground.
"""

from __future__ import annotations

from collections.abc import Iterable

KINDS = {
    "gemm": "#0077bb", "grouped_gemm": "#56b4e9", "attention": "#009e73", "vector": "#8a9a2b", "linear": "#3c7d5a",
    "all_to_all": "#d55e00", "all_gather": "#e69f00", "reduce_scatter": "#cc79a7", "all_reduce": "#aa4499",
    "put": "#cc6677", "collect": "#b5446e", "send": "#ee7733", "recv": "#c9a227", "barrier": "#a0522d",
    "prefetch": "#c2a95d", "copy": "#9a8c78", "delay": "#9e9e9e", "device_read": "#7f8c8d", "event": "#b0a8b9",
    "host": "#708090", "wait": "#a6a6a6",
}  # fmt: skip
OTHERS = ("#6f8fd0", "#44aa99", "#c58bd6", "#a6761d", "#5fa55a", "#d98880", "#7986cb", "#b0803a")
"""Of kinds that have none, in turn."""
ACCOUNT = {"compute": "#0077bb", "communication exposed": "#d55e00", "other work": "#c2a95d",
           "waiting for peers or cores": "#a6a6a6", "host": "#708090", "idle": "#d0d0d0"}
"""Of what the time of a run went into."""
SIDES = ("#0077bb", "#d55e00")
"""Of A and B."""
SERIES = ("#0077bb", "#d55e00", "#009e73", "#aa4499", "#e69f00", "#56b4e9", "#8a9a2b", "#cc79a7")
"""Of lines that are told apart by colour alone."""


def colours(kinds: Iterable[str]) -> dict[str, str]:
    """The colour of each kind; of unknown ones by their alphabetical order."""
    given = sorted(set(kinds))
    unknown = [kind for kind in given if kind not in KINDS]
    more = {kind: OTHERS[place % len(OTHERS)] for place, kind in enumerate(unknown)}
    return {kind: KINDS.get(kind) or more[kind] for kind in given}
