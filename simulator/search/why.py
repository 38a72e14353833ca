"""Why a deployment is as good as it is, in one line: what keeps its batch, what bounds its steps, what it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.search.answer import Answer, Bound
from simulator.search.front import OBJECTIVES

STOPS = {
    "memory": "there is no memory for more (KV cache)",
    "max_num_seqs": "so many each group runs at most (max_num_seqs)",
    "prefill": "prompts of more would come faster than they are computed",
    "steps": "steps of more are longer by more than they have tokens",
}


def why(found: Answer, place: int) -> str:
    """Of the deployment at a place among the best, from 0."""
    one = found.top[place]
    stop = STOPS.get(one.stopped_by, f"{one.stopped_by} of more would be above its limit")
    words = [f"{one.requests} requests on an engine: {stop}"]
    if len(found.bounds) > place and found.bounds[place]:
        words.append(f"a decode step is bound by {_bounds(found.bounds[place])}")
    if lack := gap(found, place):
        of = "user" if found.objective == "tok_s_per_user" else "GPU"
        words.append(f"{lack:.1%} more tok/s/{of} would make it as good as {place}")
    return "; ".join(words)


def gap(found: Answer, place: int) -> float:
    """What of its objective a deployment lacks to be as good as the one before it; 0.0 of the first."""
    value = OBJECTIVES[found.objective]
    return value(found.top[place - 1])[0] / value(found.top[place])[0] - 1.0 if place else 0.0


def _bounds(those: Sequence[Bound]) -> str:
    return ", ".join(f"{one.parameter} {one.share:.0%} (twice as good saves {one.saves:.0%})" for one in those)
