"""How long a step of an engine takes, for any batch: simulated at the nodes of a lattice, interpolated between them.

Of a batch matters: how many requests decode, and how many tokens they have cached, in the data-parallel group that has
most; how many there are in all (experts); how many prompt tokens are new, and how many tokens each of them attends to.
A step without prompts is D; one with prompts is M of requests with few tokens cached, and what more of them add, but
for what the device has time for while it waits for launches (M is asked for as a captured graph, too)::

    T(batch) = D(requests, padded, share, tokens each)
    T(batch) = M(requests, prompt tokens, attended to, share) + D(requests, tokens each) - D(requests, few tokens each)

The group with most requests need not be the slowest: products and exchanges are as large as its requests make them for
all groups, but attention is each group's own. So groups with fewer requests and more tokens are looked at, too, each by
what its tokens add to D of its number of requests, padded for themselves, and the slowest counts.

D is a curve over the tokens cached of a request for some numbers of requests (it is flat, then linear, with a bend
where attention becomes the bound); between the smallest and the largest number that are padded alike it goes on along
a line, bisected where that does not hold (kernels that run in waves jump), and beyond 64 from eighth to eighth. M is a
curve over the prompt tokens, for a few numbers of requests, of tokens attended to, and of shares, and goes on along
lines between these. Both are simulated where a batch first asks for them.

Worked example. 60 requests decode with 3,000 tokens each, padded to 64 rows. 57, 60 and 64 requests are on one line, so
D lies between 57 and 60 in 64 rows, each on a curve through 1,024, 2,560 and 4,096 tokens: 7 steps are simulated, and
serve all batches near by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from simulator import np
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Experts
from simulator.serving.curve import Curve
from simulator.serving.kept import Kept
from simulator.serving.uneven import Uneven
from simulator.study.scenario import Scenario
from simulator.study.simulate import simulate

TOLERANCE = 0.01  # of a curve's middle
CACHED = [16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576]  # tokens of a request: where curves of D begin
NEW = [16, 64, 256, 1024, 4096, 16384, 65536, 262144]  # prompt tokens of a step: where curves of M begin
ATTENDED = [64, 512, 2048, 8192, 32768, 131072, 524288]  # tokens that each of them attends to
REQUESTS = [1, 8, 64, 256, 1024, 4096]  # that decode beside prompts
SHARES = [0.0625, 0.125, 0.25, 0.5, 0.75, 1.0]  # of requests, of the group that has most
NEW_SHARES = [0.0625, 0.125, 0.25, 0.5, 1.0]  # of prompt tokens
AMONG = 4096  # tokens cached of a request, where numbers of requests are bisected
FEW = 64  # requests, up to which every number of them that a graph is captured for is looked at
MANY = [FEW * 9**step // 8**step for step in range(48)]  # beyond, an eighth apart
BESIDE = 256  # tokens cached of a request that decodes beside prompts, where M is measured
EAGER = 1.03  # of a captured graph's time, what a step takes whose kernels are launched one by one, at least
KEYS, LENGTHS = 128, 8  # that kernels read at once at most; different lengths of a node's requests, so far apart
LAYERS_DRAWN, LAYERS_ALIKE = 16, 3  # simulated at a node, where experts are drawn layer by layer, and where not


class Load(NamedTuple):
    """What matters of a batch. decoding: requests of the group that has most; padded: rows to which a captured graph
    pads them, or with prompts all tokens (0: none); cached: tokens that they have; share: of `decoding`, what a group
    has on average. new: prompt tokens of the group that has most; attended: tokens that each of them attends to, on
    average; new_share: as `share`. experts: what it asks of them (None: as its scenario says). fewer: (requests, tokens
    that they have cached) of groups with fewer requests, each with more tokens than all that have more requests."""

    decoding: int
    padded: int = 0
    cached: int = 0
    share: float = 1.0
    new: int = 0
    attended: float = 0.0
    new_share: float = 1.0
    experts: Uneven | None = None
    fewer: tuple[tuple[int, int], ...] = ()

    @property
    def cached_of_each(self) -> np.Array:
        """Tokens cached of the group that has most requests, then of `fewer`, each alone in a row."""
        return np.array([[self.cached], *([tokens] for _, tokens in self.fewer)])


class StepTimes:
    """Of one engine. scenario: one step of it; its batch is replaced. sizes: rows of its captured graphs, ascending.
    capacity: tokens that the cache of a data-parallel group holds. kept: nodes that were simulated before. simplified:
    settings of the scenario at the nodes alone; what they leave out is seen where a step is simulated as it is.
    experts: what nodes ask of them (None: as the scenario says). shares: of nodes (none: SHARES and NEW_SHARES)."""

    def __init__(self, scenario: Scenario, sizes: Sequence[int], capacity: int, kept: Kept,
                 simplified: Mapping[str, str] = MappingProxyType({}), experts: Uneven | None = None,
                 shares: Sequence[float] = ()) -> None:
        self._groups = scenario.data_parallel
        least = 1.0 / self._groups  # all of it in one group
        self._shares, self._new_shares = (shares or [least, *(one for one in some if one > least)]
                                          for some in (SHARES, NEW_SHARES))
        self._scenario, self._sizes, self._capacity, self._kept = scenario, list(sizes), capacity, kept
        self._fewer = scenario.replace({**_fewer_layers(scenario), **simplified})
        self._whole = self._fewer if not simplified and not _drawn(scenario) else scenario
        self._nodes = "".join(f"{name}={value} " for name, value in sorted(simplified.items()))
        self._experts = experts
        if experts is not None:
            self._fewer, self._nodes = experts.of(self._fewer), f"{experts.name}{self._nodes}"
        self._curves: dict[tuple[Any, ...], Curve] = {}
        self.simulated = 0

    def seconds(self, load: Load) -> float:
        """Of one step."""
        if not load.new:
            return float(self.decode_seconds(load, load.cached_of_each)[0])
        if not load.decoding:
            return self._mixed(load)
        beside = load._replace(padded=0)
        more = float(self.decode_seconds(beside, load.cached_of_each)[0]) - self._decode(beside, BESIDE)
        return self._mixed(load) + more - self._hidden(load, more)

    def _hidden(self, load: Load, more: float) -> float:
        """What, of `more` that the device has to do in a step with prompts, costs nothing: where the host launches one
        kernel after the other, and more slowly than they run, the device has time for it."""
        eager = self._mixed(load)
        if load.padded or more <= TOLERANCE * eager:
            return 0.0
        at_once = self._mixed(load._replace(padded=load.new + self._queries * load.decoding))
        return min(max(eager - at_once * EAGER, 0.0), more)

    def decode_seconds(self, load: Load, cached: np.Array) -> np.Array:
        """Of steps that follow each other, which only decode: the slowest group counts. cached: [group, step], as
        `cached_of_each` of every step, ascending."""
        found, most = self._decode_over(load, cached[0]), cached[0]
        for (count, _), tokens in zip(load.fewer, cached[1:], strict=True):
            if (more := tokens > most).any():
                size = next((size for size in self._sizes if size >= count), 0)
                alone = load._replace(decoding=count, padded=load.padded and size, share=1.0)
                beside = self._without_cached(load) - self._without_cached(alone)
                found[more] = np.maximum(found[more], self._decode_over(alone, tokens[more]) + beside)
                most = np.maximum(most, tokens)
        return found

    def exact(self, groups: Sequence[MicroBatch], experts: Uneven | None = None) -> float:
        """Of one step with this very batch, all layers simulated, or where nothing is drawn by layer those that stand
        for them without an error."""
        if (experts := experts or self._experts) is not None:
            return self._asked(experts.of(self._scenario), groups, f"all {experts.name}")
        return self._asked(self._whole, groups, self._nodes if self._whole is self._fewer else "all ")

    def _decode_over(self, load: Load, cached: np.Array) -> np.Array:
        """Of steps that follow each other, as if the group that has most requests were the slowest."""
        load = _by_rows(load)
        each = cached / load.decoding
        found: np.Array = np.sum([weight * curve.over(each) for weight, curve in self._decodes(load)], axis=0)
        return found

    def _without_cached(self, load: Load) -> float:
        """What a step takes that attends to next to nothing."""
        return sum(weight * curve.first() for weight, curve in self._decodes(_by_rows(load)))

    def _decode(self, load: Load, each: float) -> float:
        return sum(weight * curve.at(each) for weight, curve in self._decodes(load))

    def _decodes(self, load: Load) -> Iterator[tuple[float, Curve]]:
        """Curves over the tokens cached of a request, with their weights."""
        for weight, count, padded in self._rows(load):
            for part, share in between(self._shares, load.share):
                yield weight * part, self._curve("decode", CACHED, count, padded, share)

    def _rows(self, load: Load) -> Iterator[tuple[float, int, int]]:
        """(weight, requests, rows) of the sizes around a number of requests: of those that a graph pads alike, or the
        two captured ones beside it."""
        count, padded = load.decoding, load.padded or load.decoding
        if count > FEW:
            for weight, size in between(MANY, count):
                yield weight, int(size), int(size)
            return
        place = bisect_left(self._sizes, padded)
        below = self._sizes[place - 1] if place else 0
        if padded > count or padded == below + 1:
            first = below + 1
        elif place == len(self._sizes) or padded == self._sizes[place]:
            first = padded
        else:  # no graph: between two sizes
            for weight, size in between([max(below, 1), self._sizes[place]], count):
                yield weight, int(size), int(size)
            return
        for weight, size in between(self._sizes_alike(first, padded, count), count):
            yield weight, int(size), padded

    def _sizes_alike(self, first: int, padded: int, count: int) -> tuple[int, ...]:
        """The two numbers of requests around one, of those that are padded alike, between which steps are linear:
        kernels that run in waves have jumps."""
        if first == padded:
            return (padded,)
        key = "requests", first, padded
        if key not in self._curves:
            cached = min(AMONG, max(self._capacity // padded, 32))
            self._curves[key] = Curve(lambda one: self._decode_at(cached, one, padded, 1.0), [first, padded], TOLERANCE,
                                      padded)  # fmt: skip
        return self._curves[key].around(count)

    def _mixed(self, load: Load) -> float:
        """What pads a captured graph is computed as tokens of prompts that attend to nothing."""
        total, captured = 0.0, (True,) * bool(load.padded)
        if load.padded:
            new = max(load.padded - self._queries * load.decoding, load.new)
            load = load._replace(new=new, attended=load.attended * load.new / new)
        counts = between(REQUESTS, load.decoding) if load.decoding else [(1.0, 0)]
        for weight, count in counts:
            for part, attended in between(ATTENDED, load.attended):
                for piece, share in between(self._new_shares, load.new_share):
                    curve = self._curve("mixed", NEW, int(count), int(attended), share, *captured)
                    total += weight * part * piece * curve.at(load.new)
        return total

    def _curve(self, kind: str, grid: Sequence[int], *where: Any) -> Curve:
        key = kind, *where
        if key not in self._curves:
            ask: Callable[[int], float] = getattr(self, f"_{kind}_at")
            top = max(self._capacity // (where[0] if kind == "decode" else 1), 32)
            self._curves[key] = Curve(lambda x: ask(x, *where), [*(one for one in grid if one < top), top], TOLERANCE)
        return self._curves[key]

    def _decode_at(self, cached: int, count: int, padded: int, share: float) -> float:
        return self._asked(self._fewer, self._shared(share, count, cached, padded), self._nodes)

    def _mixed_at(self, new: int, count: int, attended: int, share: float, captured: bool = False) -> float:
        prompts, padded = prompts_of(new, attended), (new + self._queries * count) * captured
        groups = [replace(one, padded=padded) for one in self._shared(1.0, count, BESIDE, 0)]
        for place in range(max(round(share * self._groups), 1)):
            groups[place] = replace(groups[place], prompts=prompts, ends=len(prompts))
        return self._asked(self._fewer, groups, self._nodes)

    def _shared(self, share: float, count: int, cached: int, padded: int) -> list[MicroBatch]:
        """The batch of a node: one group with `count` requests, the others with what makes the share."""
        others = count if self._groups == 1 else round((share * self._groups - 1) * count / (self._groups - 1))
        counts = [count] + [max(others, 0)] * (self._groups - 1)
        return [MicroBatch(0, tuple((self._queries, held) for held in lengths_about(cached, one)),
                           padded=self._queries * padded) for one in counts]  # fmt: skip

    @property
    def _queries(self) -> int:
        batch: Any = self._scenario.batch
        return int(batch.queries)

    def _asked(self, scenario: Scenario, groups: Sequence[MicroBatch], how: str) -> float:
        """Simulated, or known; how: what tells the scenario from others of this engine."""
        if not any(one.decodes for one in groups):
            groups = [one if one.prompts else MicroBatch(padded=one.padded or 1) for one in groups]
        key = f"{how}{_words(groups)}"
        known = self._kept.get(key)
        if known is None:
            self.simulated += 1
            known = step_seconds(scenario, groups)
            self._kept.put(key, known)
        return known


def heaviest(decoding: np.Array, cached: np.Array, pace: np.Array, steps: int) -> list[tuple[int, np.Array]]:
    """Requests, and tokens cached in so many steps that follow each other, of the group that has most requests, and of
    those with fewer that have more tokens in some step than all that have more requests.

    decoding, cached, pace: of every group its requests, tokens now, and tokens more with each step.
    """
    order = np.argsort(cached, kind="stable")
    lines = dict(zip(zip(decoding[order].tolist(), pace[order].tolist(), strict=True), cached[order].tolist(),
                     strict=True))  # fmt: skip
    most: dict[int, np.Array] = {}
    for (count, each), tokens in lines.items():  # of each kind the most cached
        most[count] = np.maximum(most.get(count, 0), tokens + np.arange(steps) * each)
    found: list[tuple[int, np.Array]] = []
    above = np.full(steps, -1)
    for count in sorted(most, reverse=True):
        if (count or not found) and (most[count] > above).any():
            found.append((count, most[count]))
            above = np.maximum(above, most[count])
    return found


def _by_rows(load: Load) -> Load:
    """Of many requests those that pad a graph count as requests with fewer tokens each: they are few of them."""
    if load.padded <= FEW:
        return load
    return load._replace(decoding=load.padded, padded=0, share=load.share * load.decoding / load.padded)


def step_seconds(scenario: Scenario, groups: Sequence[MicroBatch]) -> float:
    """One step with this batch, whether or not a rank could hold it: what fits is a matter of the cache, and steps are
    interpolated between batches that are larger."""
    batch: Any = scenario.batch
    knobs: Any = scenario.knobs
    workload = scenario.workload._replace(memory=lambda _: [])
    result = simulate(scenario.variant(batch=batch.working_on(groups), workload=workload, expected=(), studies=()),
                      record=bool(getattr(knobs, "layers", 0)))  # fmt: skip
    return (result.own.get("iteration_ms") or result.own["latency_ms"]) / 1e3


def prompts_of(new: int, attended: int) -> tuple[tuple[int, int], ...]:
    """Prompts, or a chunk of one, of so many new tokens, each of which attends to so many on average: (new, cached
    before them). One chunk behind what is cached, or several whole prompts where it attends to fewer than one would."""
    if attended >= new / 2:
        return ((new, round(attended - new / 2)),)
    count = -(-new // (2 * attended))
    share, rest = divmod(new, count)
    return tuple((share + (place < rest), 0) for place in range(count))


def lengths_about(cached: int, count: int) -> list[int]:
    """Tokens that so many requests of a node have cached. They lie around a number as far apart as kernels round keys
    up: all at the end of a block of keys would take less than what lies between nodes does."""
    apart, parts = min(KEYS, cached), min(count, LENGTHS)
    return [cached + apart * (2 * (one * parts // count) + 1 - parts) // (2 * parts) for one in range(count)]


def between(nodes: Sequence[float], x: float) -> list[tuple[float, float]]:
    """(weight, node) of the nodes around a number: one where it is a node or beyond the ends, else two."""
    if x <= nodes[0] or x >= nodes[-1]:
        return [(1.0, nodes[0] if x <= nodes[0] else nodes[-1])]
    low, high = next((low, high) for low, high in pairwise(nodes) if low <= x < high)
    share = (x - low) / (high - low)
    return [(1.0 - share, low), (share, high)] if share else [(1.0, low)]


def _fewer_layers(scenario: Scenario) -> dict[str, str]:
    """Settings that simulate some layers for all, where the scenario's workload can and the scenario does not say how
    many."""
    layout: Any = scenario.layout
    if scenario.settings().get("knobs.layers") != 0 or getattr(layout, "pp", 1) > 1:
        return {}
    return {"knobs.layers": str(LAYERS_DRAWN if _drawn(scenario) else LAYERS_ALIKE)}


def _drawn(scenario: Scenario) -> bool:
    """Whether something is drawn layer by layer."""
    experts = any(isinstance(layer.feed_forward, Experts) for layer in scenario.transformer().layers)
    return experts and scenario.routing.skew is not None


def _words(groups: Sequence[MicroBatch]) -> str:
    """A batch in few words, the same for the same batch; equal groups in a row once."""
    found: list[list[Any]] = []
    for one in groups:
        text = f"{_runs(one.decodes)}|{_runs(one.prompts)}|{one.ends}|{one.padded}"
        if found and found[-1][0] == text:
            found[-1][1] += 1
        else:
            found.append([text, 1])
    return ";".join(f"{count}*{text}" for text, count in found)


def _runs(pairs: Sequence[tuple[int, int]]) -> str:
    found: list[list[Any]] = []
    for pair in pairs:
        if found and found[-1][0] == pair:
            found[-1][1] += 1
        else:
            found.append([pair, 1])
    return ",".join(f"{count}*{first}+{second}" for (first, second), count in found)
