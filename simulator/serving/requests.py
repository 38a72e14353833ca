"""Requests as columns: when they arrive, how long they are, what they share, which of them wait for another."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from simulator import np
from simulator.errors import InputError
from simulator.serving.chains import leading_hits

LATEST_S = 9e6  # of arrivals at a service: 2^63 ps are 9.22e6 s, and the rest is for what has arrived
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "after", "think_s", "priority")


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests by time of arrival; every column has one number a request, but `hashes` and `hash_start`.

    A request is sent at `arrival_s`, and where it is a later turn of a conversation not before `think_s` after the end
    of the turn before: at max(arrival_s, end of `after` + think_s).
    """

    arrival_s: np.Array
    """Not falling, at least 0; all 0 where nothing is said of times (a table of lengths, a closed loop)."""
    input_tokens: np.Array
    """Tokens of the prompt, at least 1."""
    output_tokens: np.Array
    """Tokens that are generated, at least 1."""
    hashes: np.Array
    """What the blocks of all prompts hold: a chain, the same number for the same tokens with all before them."""
    hash_start: np.Array
    """Where the hashes of a prompt start; one more than there are requests."""
    hash_tokens: int
    """Tokens of such a block, fewer in the last one of a prompt; 0: nothing is known to be shared."""
    after: np.Array
    """The request that must have ended before this one is sent, an earlier one; -1: none."""
    think_s: np.Array
    """Time between that end and sending this one."""
    priority: np.Array
    """0 first."""
    skipped: int = 0
    """Broken lines that were left out."""
    skipped_lines: tuple[int, ...] = ()
    """Numbers of the first few of them."""

    def __post_init__(self) -> None:
        for name in (*COLUMNS, "hashes", "hash_start"):
            dtype = np.float64 if name.endswith("_s") else np.int64
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
        _check_sizes(self)
        _check_values(self)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def hashes_of(self, request: int) -> np.Array:
        """The hashes of the blocks of one prompt, the first block first."""
        return self.hashes[self.hash_start[request] : self.hash_start[request + 1]]

    def taken(self, limit: int) -> Requests:
        """The first `limit` requests, or all where there are fewer."""
        if limit < 1:
            raise InputError(f"limit is {limit}; it must be at least 1 request")
        columns = {name: getattr(self, name)[:limit] for name in COLUMNS}
        start = self.hash_start[: limit + 1]
        return replace(self, **columns, hash_start=start, hashes=self.hashes[: start[-1]])

    def sped_up(self, factor: float) -> Requests:
        """The same requests in a `factor`-th of the time: times between arrivals and times to think shrink alike."""
        if not 0 < factor < np.inf:
            raise InputError(f"speedup is {factor}; it must be more than 0 and finite (2: twice the rate)")
        return replace(self, arrival_s=self.arrival_s / factor, think_s=self.think_s / factor)

    def described(self) -> dict[str, float | None]:
        """The facts of a trace: requests, span_s and rate_per_s of arrivals (None: all at once); mean, p50 and p99 of
        lengths; and what a cache that never forgets would hit, as a share of all blocks, of all tokens, and of a
        request's tokens in the mean over requests (None: nothing is known to be shared)."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        facts = {"requests": len(self), "span_s": span, "rate_per_s": (len(self) - 1) / span if span else None}
        for name in ("input_tokens", "output_tokens"):
            column = getattr(self, name)
            facts |= {f"{name}_mean": float(column.mean())}
            facts |= {f"{name}_p{part}": float(np.percentile(column, part)) for part in (50, 99)}
        return {**facts, **_hit_shares(self)}


def independent(arrival_s: np.Array, input_tokens: np.Array, output_tokens: np.Array) -> Requests:
    """Requests that share nothing, wait for none, and are of one priority."""
    count = len(input_tokens)
    none = np.zeros(count, dtype=np.int64)
    return Requests(arrival_s, input_tokens, output_tokens, none[:0], np.zeros(count + 1), 0, none - 1, none, none)


def check_times(requests: Requests) -> None:
    """InputError where one arrives after LATEST_S: a trace may last longer, a run may not."""
    late = np.flatnonzero(requests.arrival_s > LATEST_S)
    if len(late):
        raise InputError(f"request {late[0]}: arrival_s is {requests.arrival_s[late[0]]:.6g}; it must be at most "
                         f"{LATEST_S:g} (times are whole picoseconds of 64 bits): a speedup, a limit of requests or a "
                         "higher rate brings the last one nearer")


def _hit_shares(requests: Requests) -> dict[str, float | None]:
    names = ("hit_share_of_blocks", "hit_share_of_tokens", "hit_share_mean_of_requests")
    if not len(requests.hashes):
        return dict.fromkeys(names)
    blocks = leading_hits(requests.hashes, requests.hash_start)
    tokens = np.minimum(blocks * requests.hash_tokens, requests.input_tokens)
    shares = (blocks.sum() / len(requests.hashes), tokens.sum() / requests.input_tokens.sum(),
              (tokens / requests.input_tokens).mean())  # fmt: skip
    return dict(zip(names, map(float, shares), strict=True))


def _check_sizes(requests: Requests) -> None:
    count = len(requests)
    if not count:
        raise InputError("there is no request; there must be at least 1")
    for field in fields(requests):
        have, want = getattr(requests, field.name), count + (field.name == "hash_start")
        if (field.name in COLUMNS or field.name == "hash_start") and have.shape != (want,):
            raise InputError(f"{field.name} has {have.size} numbers for {count} requests; it must have {want}")
    start = requests.hash_start
    if start[0] or start[-1] != len(requests.hashes) or (np.diff(start) < 0).any():
        raise InputError(f"hash_start must rise from 0 to the number of hashes, {len(requests.hashes)}")
    if len(requests.hashes) and requests.hash_tokens < 1:
        raise InputError(f"hash_tokens is {requests.hash_tokens}; it must be at least 1 where blocks have hashes")


def _check_values(requests: Requests) -> None:
    index, blocks = np.arange(len(requests)), np.diff(requests.hash_start)
    before = np.concatenate(([0.0], requests.arrival_s[:-1]))
    most_blocks = -(-requests.input_tokens // max(1, requests.hash_tokens))
    rules = (
        ("input_tokens", requests.input_tokens >= 1, "at least 1"),
        ("output_tokens", requests.output_tokens >= 1, "at least 1"),
        ("arrival_s", requests.arrival_s < np.inf, "finite"),
        ("arrival_s", requests.arrival_s >= before, "at least 0, and not before that of the request before"),
        ("after", (requests.after >= -1) & (requests.after < index), "an earlier request, or -1 for none"),
        ("think_s", (requests.think_s >= 0) & (requests.think_s < np.inf), "at least 0 and finite"),
        ("hash_start", blocks <= most_blocks, "such that a prompt has no more hashes than blocks"),
    )
    for name, right, rule in rules:
        if not right.all():
            wrong = int(np.flatnonzero(~right)[0])
            raise InputError(f"request {wrong}: {name} is {getattr(requests, name)[wrong]}; it must be {rule}")
