"""Steady state told apart from warm-up and from running dry.

At a fixed concurrency: from when the first `concurrency` requests all have a token, to when the first of the last
`concurrency` requests is sent; in between the service has as many requests as it will ever have.

Otherwise the number of requests in flight says it, over time from the first arrival to the last, by White's MSER rule
(K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997): the
warm-up is what has to be left out at the front for the smallest standard error of the mean of the rest. If that is
half of all, the number did not settle: it grows, or the run is too short. That alone takes one in three runs at 1.1
times the capacity for steady (M/M/4 and M/M/64, 5,000 requests, 40 seeds): what is left must also have as many requests
end as come, within BALANCE. Of these runs it then takes one in forty, and refuses as many at 0.95 of the capacity; with
1,000 requests it takes one in five, and refuses one in ten. After the last arrival a service runs dry.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator import np
from simulator.serving.over_time import levels
from simulator.serving.record import NEVER, REFUSED, UNFINISHED, Served
from simulator.units import PS_PER_S

PARTS = 400  # of the time from the first arrival to the last
LEAST = 30  # requests sent in it, to be called steady
BALANCE = 0.05  # of the requests that came


class Window(NamedTuple):
    """From a time to a time; `why` there is none (then both are equal), or what it is."""

    start_ps: int
    end_ps: int
    why: str

    @property
    def found(self) -> bool:
        """Whether there is one."""
        return self.end_ps > self.start_ps

    def holds(self, times_ps: np.Array) -> np.Array:
        """Which of these times lie in it, its end excluded."""
        return (times_ps >= self.start_ps) & (times_ps < self.end_ps)


def steady_window(served: Served, concurrency: int | None = None) -> Window:
    """The steady state of a run. concurrency: requests that a closed loop keeps in flight; None: they came in time."""
    sent = served.times["arrival"]
    sent = np.sort(sent[sent != NEVER])
    if concurrency is not None:
        found = _closed(served, concurrency)
    elif len(sent) and sent[-1] > sent[0]:
        found = _open(served, int(sent[0]), int(sent[-1]))
    else:
        found = Window(0, 0, "all requests were sent at once")
    found = _before_unfinished(served, found)
    count = int(found.holds(sent).sum())
    if found.found and count < LEAST:
        return Window(0, 0, f"{count} requests were sent while the service was steady; it takes {LEAST} to tell")
    return found


def _before_unfinished(served: Served, found: Window) -> Window:
    """Of a run that was stopped, to when the first request was sent that has not ended: without those that take long,
    the others would look better than they are."""
    sent = served.times["arrival"]
    cut = sent[(served.status == UNFINISHED) & (sent != NEVER)]
    if not found.found or not len(cut) or (end := int(cut.min())) >= found.end_ps:
        return found
    if end <= found.start_ps:
        return Window(0, 0, f"a request that was sent at {end / PS_PER_S:.4g} s, before it was steady, has not ended")
    return found._replace(end_ps=end, why=f"{found.why}, but none that has not ended")


def _closed(served: Served, concurrency: int) -> Window:
    sent, came = served.times["arrival"], served.times["first_token"]
    order = np.argsort(sent, kind="stable")
    order = order[sent[order] != NEVER]
    first = came[order[:concurrency]]
    first = first[first != NEVER]
    if len(order) <= 2 * concurrency or not len(first):
        return Window(0, 0, f"{len(order)} requests are too few for a concurrency of {concurrency}")
    start, end = int(first.max()), int(sent[order[-concurrency]])
    if end <= start:
        return Window(0, 0, f"the last {concurrency} requests were sent before the first {concurrency} all had a token")
    return Window(start, end, f"from when the first {concurrency} requests had a token to when the first of the last "
                              f"{concurrency} was sent")  # fmt: skip


def _open(served: Served, first_ps: int, last_ps: int) -> Window:
    edges = np.linspace(first_ps, last_ps, PARTS + 1)
    skipped = mser(levels(served)["in_flight"](edges))
    if skipped is None:
        return Window(0, 0, "the number of requests in flight did not settle: it grows, or the run is too short")
    found = Window(int(edges[skipped]), last_ps, "from when the number of requests in flight had settled to the last "
                                                 "arrival")  # fmt: skip
    came = int((found.holds(served.times["arrival"]) & (served.status != REFUSED)).sum())
    ended = int(found.holds(served.times["last_token"]).sum())
    if abs(came - ended) > BALANCE * came:
        since = f"{found.start_ps / PS_PER_S:.4g} s"
        return Window(0, 0, f"{came} requests came and {ended} ended from {since} to the last arrival")
    return found


def mser(values: np.Array) -> int | None:
    """How many values to leave out at the front for the smallest standard error of the mean of the rest; None if it is
    half of them or more."""
    count, half = len(values), len(values) // 2
    centred = values - values.mean()
    left = count - np.arange(half + 1)
    total, squares = (np.cumsum(column[::-1])[::-1][:half + 1] for column in (centred, centred**2))
    errors = np.maximum(squares / left - (total / left) ** 2, 0.0) / left
    best = int(np.argmin(errors))
    return best if best < half else None
