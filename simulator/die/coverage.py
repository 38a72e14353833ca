"""Which kernels are larger or smaller than all that their family was fitted on.

A family's `covers` has the range of each size of its table, as "m 1..32768, n 128..65536". Sizes are: `m`, rows of a
product (of all groups together), `n` and `k`, its columns and depth, `groups` with rows; `sequences`, `queries` and
`keys` of the longest, `heads`, `kv_heads`, `sharing` (heads of a key head), `head_dim` (of values) and `window` of
attention.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from simulator.die.kernels import Work
from simulator.spec.kernels import KernelSpec

_SIZES: dict[str, Callable[[Work], int]] = {
    "m":         lambda work: sum(work.rows),
    "n":         lambda work: work.n,
    "k":         lambda work: work.k,
    "groups":    lambda work: len(work.rows),
    "sequences": lambda work: len(work.scores),
    "queries":   lambda work: max((queries for queries, _, _ in work.scores), default=0),
    "keys":      lambda work: max((keys for _, keys, _ in work.scores), default=0),
    "heads":     lambda work: work.heads,
    "kv_heads":  lambda work: work.kv_heads,
    "sharing":   lambda work: work.heads // work.kv_heads,
    "head_dim":  lambda work: work.v_dim,
    "window":    lambda work: work.window,
}  # fmt: skip


@cache
def ranges(covers: str) -> dict[str, tuple[int, int]]:
    """"m 1..32768, n 128..65536" by size: least and most."""
    found = {}
    for part in covers.split(", "):
        name, _, limits = part.partition(" ")
        least, _, most = limits.partition("..")
        found[name] = int(least), int(most)
    return found


def outside(work: Work, kernel: KernelSpec) -> str | None:
    """What of a kernel is beyond its family's table ("m = 65536, measured 1..32768"), None: nothing, or no table."""
    if kernel.covers is None:
        return None
    beyond = []
    for name, (least, most) in ranges(kernel.covers).items():
        size = _SIZES[name](work)
        if not least <= size <= most:
            beyond.append(f"{name} = {size}, measured {least}..{most}")
    return "; ".join(beyond) or None
