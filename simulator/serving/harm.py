"""What faults did to users: when each was noticed and gone, when the service was as before, what it cost against the
same run without them.

A request waits from when it is sent until its first token is there, and, where its engine is lost later, until it
decodes again. The service is as before when the fault is over and no more requests wait than wait, on average (rounded
up), in the run without faults.

Worked example. Without faults 0.4 requests wait on average. An engine is lost at 30 s, serves again at 80 s, and at
94 s for the first time no more than one request waits: it is as before 64 s after the fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from simulator import np
from simulator.observe.tables import Titled, number
from simulator.serving.record import NEVER, REFUSED, Served, Struck
from simulator.units import PS_PER_S

if TYPE_CHECKING:
    from simulator.serving.outcome import Outcome

COMPARED = (("request_count", ("avg",)), ("time_to_first_token", ("avg", "p50", "p99")),
            ("inter_token_latency", ("avg", "p99")), ("time_between_tokens", ("p99",)),
            ("request_latency", ("avg", "p99")), ("output_token_throughput", ("avg",)),
            ("good_request_fraction", ("avg",)), ("goodput", ("avg",)),
            ("benchmark_duration", ("avg",)))  # fmt: skip
COLUMNS = {"struck_s": "struck at, s", "noticed_s": "noticed after, s", "over_s": "over after, s",
           "as_before_s": "as before after, s", "rerouted": "rerouted", "recomputed_tokens": "tokens again",
           "lost": "lost"}  # fmt: skip


def harm_of(found: Outcome) -> dict[str, Any]:
    """As JSON has it, empty where nothing struck: `faults`, a row for each strike; `against`, metrics with and without
    faults; `waiting_for`, who waits for whom for ever. Times in s, null where it did not happen in the run."""
    served, without = found.served, found.without
    if without is None:
        return {}
    usual = usually_waiting(without.served)
    rows = [_row(one, served, usual) for one in served.struck if one.struck_ps <= served.end_ps]
    against = [{"metric": metric, "statistic": statistic, "unit": mine[metric]["unit"],
                "without": its[metric][statistic], "with": mine[metric][statistic]}
               for mine, its in [(found.whole.metrics, without.whole.metrics)]
               for metric, statistics in COMPARED if metric in mine and metric in its
               for statistic in statistics]  # fmt: skip
    return {"faults": rows, "against": against, "waiting_for": list(served.waiting_for)}


def _row(one: Struck, served: Served, usual: int) -> dict[str, Any]:
    times = {"struck_s": one.struck_ps, "noticed_s": one.noticed_ps, "over_s": one.over_ps,
             "as_before_s": as_before_ps(served, one.over_ps, usual)}  # fmt: skip
    seconds = {name: at / PS_PER_S if NEVER < at <= served.end_ps else None for name, at in times.items()}
    return {"fault": one.fault, "struck": one.what, **seconds, "rerouted": one.rerouted,
            "recomputed_tokens": one.recomputed_tokens, "lost": one.lost}  # fmt: skip


def waits_of(served: Served) -> tuple[np.Array, np.Array]:
    """From when to when requests wait, ps; to the end of the record where it did not end."""
    times, ends = served.times, served.end_ps
    sent = (times["arrival"] != NEVER) & (served.status != REFUSED)
    start = np.concatenate([times["arrival"][sent], served.again_ps[:, 1]])
    end = np.concatenate([times["first_token"][sent], served.again_ps[:, 2]])
    return start, np.where(end == NEVER, ends, end)


def usually_waiting(served: Served) -> int:
    """Requests that wait on average, rounded up."""
    start, end = waits_of(served)
    return ceil(float((end - start).sum()) / max(served.end_ps - served.start_ps, 1))


def as_before_ps(served: Served, since_ps: int, most: int) -> int:
    """When for the first time from then on no more requests wait than so many; NEVER: not in this run."""
    if since_ps == NEVER or since_ps > served.end_ps:
        return NEVER
    start, end = waits_of(served)
    times = np.concatenate([[since_ps], np.unique(end[end > since_ps])])
    waiting = np.searchsorted(np.sort(start), times, side="right") - np.searchsorted(np.sort(end), times, side="right")
    few = np.flatnonzero(waiting <= most)
    return int(times[few[0]]) if len(few) else NEVER


def harm_tables(harm: Mapping[str, Any]) -> list[Titled]:
    """For a terminal, or a page; none where nothing struck."""
    if not harm:
        return []
    rows = [(one["fault"], one["struck"], *_times(one), *(f"{one[name]:,}" for name in list(COLUMNS)[4:]))
            for one in harm["faults"]]  # fmt: skip
    headings = ("<fault", "<struck", *(f">{text}" for text in COLUMNS.values()))
    against = [(f"{one['metric']}, {one['unit']}", one["statistic"], number(float(one["without"])),
                number(float(one["with"])), _more(one)) for one in harm["against"]]  # fmt: skip
    note = "; ".join(harm["waiting_for"])
    return [Titled("", headings, rows, note and f"for ever: {note}"),
            Titled("", ("<the same run", "<of requests", ">without faults", ">with", ">more"), against)]  # fmt: skip


def _times(one: Mapping[str, Any]) -> Sequence[str]:
    """When it struck, and how long after that what came of it."""
    since = one["struck_s"]
    return [number(since), *("" if one[name] is None else number(one[name] - since) for name in list(COLUMNS)[1:4])]


def _more(one: Mapping[str, Any]) -> str:
    return f"{one['with'] / one['without'] - 1.0:+.1%}" if one["without"] else ""
