"""What stands before the engines: API servers that tokenise and stream back, and a gate that lets so many requests in.

A server takes requests in the order in which they come, one at a time. Nothing that happens behind it changes when a
request leaves it, so a whole column of requests is a recursion: Lindley's for one server, that of Kiefer and Wolfowitz
for several with one queue. `ApiServers` says the same one request at a time, for a loop in which answers that are
streamed back occupy the same servers. Servers that are bound one to one to data-parallel groups are one `ApiServers`
of one server for each group.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapreplace

from simulator import np
from simulator.errors import InputError
from simulator.np import Array
from simulator.units import to_ps

API_SERVER_S = 1.0 / 76.5
"""Time of a request in one API server of vLLM, 13.1 ms: of 120 requests/s of ShareGPT (about 220 tokens in) on DP2 one
server let 76.5/s through (published; fitted on that row alone). That all of it is spent before the request is sent on,
and none of it by the token, is assumed: the row does not tell these apart."""


@dataclass(frozen=True)
class ServerTime:
    """Picoseconds that a server works: for a request, for each token of its prompt, for each token that goes back."""

    request_ps: int = to_ps(API_SERVER_S)
    input_token_ps: int = 0
    output_token_ps: int = 0


class ApiServers:
    """Servers with one queue. Calls must come in the order of their times, as a loop makes them."""

    def __init__(self, servers: int, time: ServerTime) -> None:
        self.time = time
        if servers < 1:
            raise InputError(f"{servers} API servers let nothing through: there must be at least 1")
        self.idle_ps = [0] * servers

    def sent_at(self, arrival_ps: int, input_tokens: int) -> int:
        """When a request that comes now is tokenised and goes on."""
        return self._through(arrival_ps, self.time.request_ps + self.time.input_token_ps * input_tokens)

    def returned_at(self, end_ps: int, output_tokens: int) -> int:
        """When tokens that an engine gives back now have gone to the user."""
        if not self.time.output_token_ps:
            return end_ps
        return self._through(end_ps, self.time.output_token_ps * output_tokens)

    def _through(self, at_ps: int, work_ps: int) -> int:
        end_ps = max(at_ps, self.idle_ps[0]) + work_ps
        heapreplace(self.idle_ps, end_ps)
        return end_ps


def sent_column(arrival_ps: Array, input_tokens: Array, servers: int, time: ServerTime) -> Array:
    """`ApiServers.sent_at` for whole columns of requests by arrival, int64."""
    return ends(arrival_ps, time.request_ps + time.input_token_ps * input_tokens.astype(np.int64), servers)


def ends(arrival_ps: Array, work_ps: Array, servers: int) -> Array:
    """When jobs leave so many servers with one queue, first come, first served.

    arrival_ps: sorted, int64; work_ps: of each job, int64, not negative.
    """
    if servers == 1:
        before_ps = np.cumsum(work_ps) - work_ps
        return np.maximum.accumulate(arrival_ps - before_ps) + before_ps + work_ps
    idle_ps, found = [0] * servers, []
    for at_ps, needed_ps in zip(arrival_ps.tolist(), work_ps.tolist(), strict=True):
        first_ps = idle_ps[0]
        end_ps = (at_ps if at_ps > first_ps else first_ps) + needed_ps
        heapreplace(idle_ps, end_ps)
        found.append(end_ps)
    return np.array(found, np.int64)


class Admission:
    """At most `limit` requests are inside; others wait in the order in which they came."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise InputError(f"a limit of {limit} requests lets none in: it must be at least 1")
        self.limit = limit
        self.inside = 0
        self.waiting: deque[int] = deque()

    def enter(self, request: int) -> bool:
        """A request comes: whether it goes in now; if not it waits."""
        if self.inside >= self.limit:
            self.waiting.append(request)
            return False
        self.inside += 1
        return True

    def leave(self) -> int | None:
        """One request has ended: the one that goes in for it, None if none waits."""
        if self.waiting:
            return self.waiting.popleft()
        self.inside -= 1
        return None
