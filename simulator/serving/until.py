"""When a run is long enough: its steady state gives the means of TTFT, TPOT and throughput within 2%.

By batch means: what was measured in the steady state (`steady.py` says where that begins) is cut into BATCHES pieces,
requests by when they were sent, tokens by time. The means of the pieces are as good as independent draws where the
pieces are long, so half the width of a 95% interval of the mean is Student's t times their standard error (B.
Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30(3), 1982: 10 to 30 pieces
are enough).
Pieces that are too short follow each other: where the lag-1 correlation r of their means is more than chance has it,
the width is that of an autoregressive series, sqrt((1 + r) / (1 - r)) times as large (as in N. Steiger and others,
"ASAP3: a batch means procedure for steady-state simulation analysis", ACM TOMACS 15(1), 2005).

It is looked at whenever there are GROWTH times as many requests as the last time (P. Heidelberger and P. Welch,
"Simulation run length control in the presence of an initial transient", Operations Research 31(6), 1983): often enough
to stop in time, and seldom enough to be right once in 20 looks only.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from simulator import np
from simulator.serving.over_time import level
from simulator.serving.record import DONE, NEVER, Served
from simulator.serving.requests import Requests
from simulator.serving.steady import Window, steady_window
from simulator.units import PS_PER_S

WITHIN = 0.02  # of the mean
BATCHES = 20
STUDENT_T = 2.093  # of 95%, with 19 degrees of freedom
CORRELATED = 1.645 / sqrt(BATCHES)  # of independent draws one in 20 has more
LEAST = 10 * BATCHES  # requests sent in the steady state
GROWTH = 1.5


class Estimate(NamedTuple):
    """A mean, and half the width of its 95% interval."""

    mean: float
    half_width: float

    @property
    def known(self) -> bool:
        """Within WITHIN of the mean."""
        return self.half_width <= WITHIN * self.mean


class Until:
    """Looks whether a run has been long enough. concurrency: of a closed loop, None where requests come in time."""

    def __init__(self, concurrency: int | None) -> None:
        self._concurrency, self._next = concurrency, max(LEAST, 4 * (concurrency or 0))

    def due(self, ended: int) -> bool:
        """Whether it is time to look, when so many requests have ended."""
        if ended < self._next:
            return False
        self._next = round(ended * GROWTH)
        return True

    def reached(self, served: Served) -> bool:
        """Whether what there is so far is enough."""
        found = estimates(served, steady_window(served, self._concurrency))
        return bool(found) and all(one.known for one in found.values())


def estimates(served: Served, window: Window) -> dict[str, Estimate]:
    """Of the means of a steady state, by AIPerf's names; none where it is too short to tell."""
    times, sent = served.times, (served.status == DONE) & window.holds(served.times["arrival"])
    if sent.sum() < LEAST:
        return {}
    order = np.flatnonzero(sent)[np.argsort(times["arrival"][sent], kind="stable")]
    several = order[served.emitted[order] > 1]
    first, stay = times["first_token"], times["last_token"] - times["first_token"]
    found = {"time_to_first_token": estimate(_pieces((first - times["arrival"])[order] / 1e9))}
    if len(several) >= LEAST:
        found["inter_token_latency"] = estimate(_pieces(stay[several] / (served.emitted[several] - 1) / 1e9))
    return found | {"output_token_throughput": estimate(_tokens_per_s(served, window))}


def sent_of(requests: Requests, *tables: dict[str, np.Array]) -> Requests:
    """Those that were sent, and the columns of tables cut to as many: others are none of a run that ended before."""
    count = int(np.flatnonzero(tables[0]["arrival"] != NEVER)[-1]) + 1
    for table in tables:
        table.update({name: column[:count] for name, column in table.items()})
    return requests.taken(count)


def estimate(means: np.Array) -> Estimate:
    """From the means of pieces."""
    centred = means - means.mean()
    total = float((centred**2).sum())
    follows = float((centred[1:] * centred[:-1]).sum()) / total if total > 0 else 0.0
    wider = sqrt((1 + follows) / (1 - follows)) if follows > CORRELATED else 1.0
    return Estimate(float(means.mean()), wider * STUDENT_T * sqrt(total / (len(means) - 1) / len(means)))


def _pieces(values: np.Array) -> np.Array:
    """Means of as many values each; of those that are left over the first are left out."""
    each = len(values) // BATCHES
    means: np.Array = values[len(values) - each * BATCHES:].reshape(BATCHES, each).mean(axis=1)
    return means


def _tokens_per_s(served: Served, window: Window) -> np.Array:
    """Of pieces of time; a request's tokens are taken to come evenly from its first to its last."""
    times, done = served.times, served.status == DONE
    first, last, tokens = times["first_token"][done], times["last_token"][done], served.emitted[done]
    span = np.maximum(last - first, 1)
    return level(first, first + span, tokens / (span / PS_PER_S))(np.linspace(*window[:2], BATCHES + 1))
