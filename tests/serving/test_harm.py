"""What faults did to users, of records written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.serving.harm import as_before_ps, harm_of, harm_tables, usually_waiting
from simulator.serving.outcome import outcome
from simulator.serving.record import NEVER, Served, Struck
from tests.serving.hand import MS, request, served, step


def waiting(first: tuple[float, ...], **more: Any) -> Served:
    """Requests sent at 0, 10, 20, ... ms, whose first token is there at these times; all end at 100 ms."""
    requests = [request(10 * place, tokens=(10, 2), routed=10 * place, admitted=10 * place, prefilled=at,
                        last_token=100)
                for place, at in enumerate(first)]  # fmt: skip
    return served(requests, [step(0, 40, 0, 10), step(80, 20, 4)], **more)


def test_as_many_wait_as_usual_when_as_before() -> None:
    """Without faults each waits 5 ms of 100: one at a time at most. With them three wait from 20 ms on; the first of
    these has its token at 60 ms, the second one at 70 ms: then no more than one waits."""
    plain = waiting((5, 15, 25, 35))
    assert usually_waiting(plain) == 1
    struck = waiting((5, 60, 70, 80))
    assert as_before_ps(struck, 40 * MS, 1) == 70 * MS
    assert as_before_ps(struck, 75 * MS, 1) == 75 * MS
    assert as_before_ps(struck, NEVER, 1) == NEVER
    assert as_before_ps(struck, 101 * MS, 1) == NEVER


def test_a_request_whose_engine_is_lost_waits_until_it_decodes_again() -> None:
    again = np.array([[0, 40 * MS, 90 * MS], [1, 50 * MS, NEVER]])
    struck = waiting((5, 15, 25, 35), again_ps=again)
    assert as_before_ps(struck, 60 * MS, 1) == 90 * MS
    assert as_before_ps(struck, 60 * MS, 0) == 100 * MS, "to the end of the record"


def test_rows_say_what_happened_after_how_long_and_what_it_cost() -> None:
    plain = waiting((5, 15, 25, 35))
    one = Struck("40 ms: engine 0 lost", "engine 0", 40 * MS, 45 * MS, 60 * MS, rerouted=3, recomputed_tokens=1500)
    other = Struck("95 ms: engine 0 silent", "engine 0", 95 * MS)
    with_faults = outcome(waiting((5, 60, 70, 80), struck=(one, other)), without=outcome(plain))
    harm = harm_of(with_faults)
    assert [harm["faults"][0][name] for name in ("struck_s", "noticed_s", "over_s", "as_before_s")] == [
        0.04, 0.045, 0.06, 0.07]  # fmt: skip
    assert [harm["faults"][1][name] for name in ("noticed_s", "over_s", "as_before_s")] == [None] * 3
    done, first = harm["against"][:2]
    assert (done["metric"], done["without"], done["with"]) == ("request_count", 4, 4)
    assert (first["metric"], first["statistic"], first["without"], first["with"]) == (
        "time_to_first_token", "avg", 5.0, 38.75)  # fmt: skip
    strikes, against = harm_tables(harm)
    assert list(strikes.texts[0] or ())[2:] == ["0.04", "0.005", "0.02", "0.03", "3", "1,500", "0"]
    assert [list(text or ())[-1] for text in against.texts[:2]] == ["+0.0%", "+675.0%"]
    assert harm_of(outcome(plain)) == {}
    assert harm_tables({}) == []
