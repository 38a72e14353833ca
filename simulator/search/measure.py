"""What is simulated of an engine: steps of a few batches, from which follows what it does within a service level.

A group is a data-parallel group. D(n): a step in which n requests of every group decode, each with as many tokens
cached as on average. C(one), C(all): what a chunk of a prompt in one group adds to that, and one in each of them.
P(b): a step with b prompts in every group and nothing else. The batch is no axis of a search: the largest one within
the limit of TPOT is bisected, in powers of two and then between two of them.

Exchanges in which hosts or cards send row by row are fast to simulate where ranks get alike, and a hundred times slower
where experts are drawn. So D is simulated with rows that are even, and what uneven ones add is taken from All2All on
the same mesh: the slowest rank's experts, mostly. P is drawn with one prompt, and grows with more as even ones do::

    D(n) = D_even(n) + (D_drawn(n) - D_even(n) of all_to_all),   P(b) = P_drawn(1) P_even(b) / P_even(1)

At 1 to 128 requests of each of 16 groups D is within 3% of what is drawn. Between more than PAIRS ranks pairs of rows
that all differ are as slow, of All2All, too: there all steps are even ones, and what is added is from AllGather, which
has the slowest rank's experts, and not its exchange.

Worked example. 50 ms are promised. D is 21 ms for one request of each group, 31 ms for 16, 47 ms for 64, 69 ms for 128:
five steps are simulated (1, 64, 128, and two of 64 to 128), and two with prompts beside 66 requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from simulator.die.memory import DoesNotFit
from simulator.errors import InputError, RunError
from simulator.model.micro_batch import MicroBatch
from simulator.parallel.exchange.ways import HOSTS
from simulator.search.deployment import Ask, Engine
from simulator.search.engine import of_some_layers, service_of
from simulator.search.found import largest
from simulator.search.sheet import Sheet
from simulator.serving.build import tokens_of_cache
from simulator.serving.settings import Instances, Service
from simulator.serving.steps import lengths_about, step_seconds

BETWEEN = 2  # more batches that are looked at between two powers of two
EVEN, ALL_TO_ALL = {"routing.skew": "none"}, {"knobs.exchange": "all_to_all", "knobs.dispatch_dtype": ""}
ALL_GATHER = {"knobs.exchange": "all_gather", "knobs.dispatch_dtype": ""}
PAIRS = 32
POWERS = 11  # of two: the most requests of a group are so many times the fewest


def sheets(ask: Ask, engines: Sequence[Engine], roles: Sequence[str]) -> list[Sheet]:
    """Of engines that differ in `tokens` alone. roles: what is looked at of "together", "decode", "prefill"."""
    known: dict[tuple[object, ...], float] = {}
    return [_sheet(ask, engine, roles, known) for engine in engines]


def front_seconds(service: Service, input_tokens: int) -> float:
    """What servers take before a prompt comes to an engine."""
    return service.front.request_ms / 1e3 + service.front.input_token_us / 1e6 * input_tokens


def phase_of(roles: Sequence[str]) -> str:
    """Of which an engine has to have kernels."""
    return "prefill" if tuple(roles) == ("prefill",) else "decode"


def _sheet(ask: Ask, engine: Engine, roles: Sequence[str], known: dict[tuple[object, ...], float]) -> Sheet:
    try:
        service = service_of(ask, engine, phase_of(roles))
        instances = service.engines
        capacity, _ = tokens_of_cache(instances)
    except DoesNotFit as error:
        return Sheet(engine, kind="memory", refused=str(error).partition("\n")[0])
    except InputError as error:
        return Sheet(engine, kind="layout", refused=str(error).partition("\n")[0])
    step: Any = instances.step
    found = Sheet(engine, step.cards, step.data_parallel, step.batch.tokens_per_iteration, capacity,
                  front_seconds(service, ask.input_tokens))  # fmt: skip
    room, most = capacity // (ask.input_tokens + ask.output_tokens), instances.scheduling.max_num_seqs
    found = found._replace(full="memory" if room <= most else "max_num_seqs", queries=step.batch.queries,
                           alone=instances.scheduling.scheduler == "sglang")  # fmt: skip
    most = min(room, most)
    if most < 1 and ("prefill" not in roles or capacity < ask.input_tokens):
        return found._replace(kind="memory", refused=f"the cache of a group has room for {capacity} tokens")
    return _filled(found, most, roles, _Simulated(ask, instances, known))


def _filled(sheet: Sheet, most: int, roles: Sequence[str], simulated: _Simulated) -> Sheet:
    """With what each role asks for; refused where there is none that it can have. most: requests of a group."""
    refused = ""
    for fill in simulated.parts(roles, most):
        try:
            sheet = fill(sheet)
        except (InputError, RunError) as error:
            refused = refused or str(error).partition("\n")[0]
    if refused and not (sheet.kind or sheet.prefill or sheet.chunk or (sheet.decode and "decode" in roles)):
        return sheet._replace(kind="layout", refused=refused)
    return sheet


class _Simulated:
    """Steps of an engine. known: those that engines which differ in tokens alone have simulated."""

    def __init__(self, ask: Ask, instances: Instances, known: dict[tuple[object, ...], float]) -> None:
        self._ask, self._instances, self._known = ask, instances, known
        self._drawn = instances.step.replace(of_some_layers(instances.step))
        batch: Any = instances.step.batch
        self._queries, self._groups = batch.queries, instances.step.data_parallel
        knobs: Any = instances.step.knobs
        self._fewest = knobs.parts  # each micro-batch has a request
        self._limit_s = ask.tpot_ms / 1e3 * batch.tokens_per_iteration
        self._tokens = min(ask.new_tokens, instances.scheduling.max_num_batched_tokens)

    def parts(self, roles: Sequence[str], most: int) -> Iterator[Callable[[Sheet], Sheet]]:
        """Of what these roles ask for, one after the other: prompts, steps that decode, and what prompts add to
        them."""
        if "prefill" in roles:
            yield self._prefill_steps
        if most and {"together", "decode"} & set(roles):
            yield partial(self._decode_steps, most)
        if most and "together" in roles:
            yield self._steps_together

    def _decode_steps(self, most: int, sheet: Sheet) -> Sheet:
        """With steps that decode; an engine that is too slow for that may prefill."""
        decode = self._decodes(most)
        if decode[0][1] <= self._limit_s:
            return sheet._replace(decode=decode)
        slow = f"a step of {decode[0][0]} requests of a group takes {decode[0][1] * 1e3:.1f} ms"
        return sheet if sheet.prefill else sheet._replace(decode=decode, kind="TPOT", refused=slow)

    def _steps_together(self, sheet: Sheet) -> Sheet:
        """With what a chunk adds, where it decodes; and steps of the largest batch within the limits, which is sought
        on the line between batches that were simulated, until it is one of them."""
        for _ in range(BETWEEN + 1 if sheet.decode and not sheet.kind else 0):
            count, _ = largest(self._ask, sheet) if sheet.chunk else max(self._within(sheet), default=(0, 0.0))
            sizes = [size for size in self._instances.capture if size <= count and size > count - count // 8]
            count = max(sizes, default=count)
            if count < self._fewest or (sheet.chunk and count in dict(sheet.decode)):
                break
            decode = dict(sheet.decode) | {count: self._decode(count)}
            one, every = (self._added(count, decode[count], groups) for groups in (1, self._groups))
            sheet = sheet._replace(chunk=(one, max(one, every)), decode=tuple(sorted(decode.items())))
        return sheet

    def _within(self, sheet: Sheet) -> list[tuple[int, float]]:
        """Batches that would be within the limit if a request's share of prompts took no time beside them."""
        return [one for one in sheet.decode if one[1] <= self._limit_s]

    def _added(self, count: int, seconds: float, groups: int) -> float:
        """What a chunk in so many groups adds: the step beside `count` requests less that without it; all of its own
        step where prompts are alone in theirs (SGLang)."""
        if self._instances.scheduling.scheduler == "sglang":
            return self._mixed(0, groups)
        return max(self._mixed(count, groups) - seconds, 0.0)

    def _decodes(self, most: int) -> tuple[tuple[int, float], ...]:
        """The fewest requests of a group, some powers of two times as many, and what lies around the limit."""
        found = {self._fewest: self._decode(self._fewest)}
        low, high = 0, POWERS
        while low < high and found[self._fewest] <= self._limit_s:  # the largest power within the limit
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._is_within(found, self._fewest << middle, most) else (low, middle - 1)
        least, above = self._fewest << low, min(self._fewest << low + 1, most)
        if found[least] <= self._limit_s and above > least and not self._is_within(found, above, most):
            self._between(found, least, above)
        return tuple(sorted(found.items()))

    def _is_within(self, found: dict[int, float], count: int, most: int) -> bool:
        """Whether memory has room for so many, and the step is fast enough."""
        if count <= most and count not in found:
            found[count] = self._decode(count)
        return count <= most and found[count] <= self._limit_s

    def _between(self, found: dict[int, float], low: int, high: int) -> None:
        """Batches between one that is fast enough and one that is not: where the limit lies on the line of both, in
        whole captured graphs."""
        for _ in range(BETWEEN):
            share = (self._limit_s - found[low]) / (found[high] - found[low])
            middle = low + max(int(share * (high - low)), 1)
            middle = max((size for size in self._instances.capture if low < size <= middle), default=middle)
            if not low < middle < high:
                return
            found[middle] = self._decode(middle)
            low, high = (middle, high) if found[middle] <= self._limit_s else (low, middle)

    def _decode(self, count: int) -> float:
        groups = [self._decoding(count, True)] * self._groups
        if not self._row_by_row or self._many_pairs:
            return self._with_host(self._seconds("decode", count, groups), count)
        return self._with_host(self._even_and("decode", count, groups, ALL_TO_ALL), count)

    def _even_and(self, what: str, count: object, groups: Sequence[MicroBatch], beside: dict[str, str]) -> float:
        """A step with even rows, and what uneven ones add where the exchange is another one."""
        even, drawn_all, even_all = (self._simulated(changes, what, count, groups)
                                     for changes in (EVEN, beside, EVEN | beside))  # fmt: skip
        return even + max(drawn_all - even_all, 0.0)

    def _with_host(self, seconds: float, requests: int) -> float:
        """A step with what its host does, of so many requests of a group."""
        host = self._instances.host
        host_s = host.step_ms / 1e3 + host.request_us / 1e6 * requests
        return max(seconds, host_s) if host.overlapped else seconds + host_s

    def _mixed(self, count: int, groups: int) -> float:
        chunk = ((self._tokens, self._before()),)
        one, beside = MicroBatch(0, self._decoding(count, False).decodes, chunk, 1), self._decoding(count, False)
        beside = beside if count else MicroBatch(padded=1)
        seconds = self._seconds(f"mixed {self._tokens} {groups}", count,
                                [one] * groups + [beside] * (self._groups - groups))  # fmt: skip
        return self._with_host(seconds, count + 1)

    def _prefill_steps(self, sheet: Sheet) -> Sheet:
        """With a prompt of each group, or all its chunks; and as many as a step takes and the cache has room for."""
        held = sheet.capacity // self._ask.input_tokens
        most = max(min(self._instances.scheduling.max_num_batched_tokens // self._ask.new_tokens, held), 1)
        chunks = -(-self._ask.new_tokens // self._tokens)
        return sheet._replace(prefill=tuple((count, chunks * self._prompts(count))
                                            for count in dict.fromkeys((1, most))))

    def _prompts(self, count: int) -> float:
        prompts = ((-(-self._ask.new_tokens // -(-self._ask.new_tokens // self._tokens)), self._before()),) * count
        groups = [MicroBatch(0, (), prompts, count)] * self._groups
        if not self._row_by_row or self._many_pairs or count == 1:
            return self._seconds("prefill", (count, prompts[0]), groups)
        one = self._simulated(EVEN, "prefill", (1, prompts[0]), [MicroBatch(0, (), prompts[:1], 1)] * self._groups)
        return self._prompts(1) * self._simulated(EVEN, "prefill", (count, prompts[0]), groups) / one

    def _before(self) -> int:
        """Tokens before a chunk, on average: what is cached, and half of the other chunks."""
        ask = self._ask
        return ask.input_tokens - ask.new_tokens + (ask.new_tokens - self._tokens) // 2

    def _decoding(self, count: int, padded: bool) -> MicroBatch:
        size = next((size for size in self._instances.capture if size >= count), 0)
        return MicroBatch(0, tuple((self._queries, held) for held in lengths_about(self._ask.cached_tokens, count)),
                          padded=self._queries * size * padded)  # fmt: skip

    @property
    def _row_by_row(self) -> bool:
        knobs: Any = self._drawn.knobs
        return knobs.exchange in HOSTS and self._drawn.routing.skew is not None

    @property
    def _many_pairs(self) -> bool:
        """Whether all pairs of many ranks exchange rows that differ."""
        layout, knobs = (_any(one) for one in (self._drawn.layout, self._drawn.knobs))
        return (layout.ranks > PAIRS and not layout.apart and self._drawn.routing.skew is not None
                and knobs.exchange in (*HOSTS, "all_to_all", "sorted_rows"))

    def _seconds(self, what: str, count: object, groups: Sequence[MicroBatch]) -> float:
        if self._many_pairs:
            return self._even_and(what, count, groups, ALL_GATHER)
        return self._simulated({}, what, count, groups)

    def _simulated(self, changes: Mapping[str, str], what: str, count: object, groups: Sequence[MicroBatch]) -> float:
        key = what, count, *changes.items()
        if key not in self._known:
            self._known[key] = step_seconds(self._drawn.replace(changes) if changes else self._drawn, groups)
        return self._known[key]


def _any(value: object) -> Any:
    return value
