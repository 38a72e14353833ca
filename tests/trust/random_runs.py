"""Random programs on random machines: streams, events, hosts, cores, exchanges of all kinds, faults, drawn launches.

All ranks issue their exchanges in one order, so that no program is wrong; it may still come to a deadlock where two
exchanges hold the cores that each other's late members want, as on real machines. Times are unround, so that hardly
any two events of a rank fall in one picosecond by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

from simulator.die.kernels import Work
from simulator.fabric.graph import Fabric
from simulator.model import ops
from simulator.model.layout import blocks, strides
from simulator.program.rank import Event, Rank
from simulator.program.world import Groups, OfSome, World, record_world
from simulator.replay.jitter import NONE, Jitter
from simulator.spec.faults import Fault
from simulator.spec.machine import MachineSpec
from simulator.spec.typed_toml import validate
from tests.die.machines import level, number
from tests.replay.small import TINY

STREAMS = ("main", "comm", "copy", "side")
ALGORITHMS = {"all_to_all": ("direct", "pairwise"), "all_gather": ("direct", "ring", "hierarchical"),
              "reduce_scatter": ("direct", "ring", "hierarchical"),
              "all_reduce": ("direct", "ring", "hierarchical", "one_shot", "nvls")}  # fmt: skip
Op = tuple[Any, ...]
"""What is done, its stream, the variants of ranks that do it, and how."""


@dataclass(frozen=True)
class RandomRun:
    """One world on one machine. exchange: how collectives are lowered, "auto" or "pairwise". jitter: what launches and
    kernels draw."""

    seed: int
    world: World
    machine: MachineSpec
    faults: tuple[Fault, ...]
    exchange: str
    jitter: Jitter = NONE

    def fabric(self) -> Fabric:
        """The machine's links, made anew."""
        return Fabric(self.machine, self.world.ranks)


def random_run(seed: int) -> RandomRun:
    """The same for the same seed."""
    random = Random(seed)
    fabric, ranks = _levels(random)
    machine = _machine(random, fabric)
    script = _Script(random, ranks, machine)
    faults = [_fault(random, machine, ranks) for _ in range(random.choice([0, 0, 0, 1, 2, 4]))]
    jitter = Jitter(random.choice([0.0, 0.3]), seed, random.choice([0.0, 0.2]))
    return RandomRun(seed, script.world(), machine, tuple(faults), random.choice(["auto", "pairwise"]),
                     jitter if random.random() < 0.2 else NONE)


def _levels(random: Random) -> tuple[list[dict[str, Any]], int]:
    """Of the fabric, and how many ranks are on it."""
    rate, near_us, far_us = random.uniform(0.3, 3), random.uniform(0.3, 2), random.uniform(2, 4)
    kind = random.choice(["switch", "switch", "mesh", "tiers", "nodes", "ports", "torus", "rails"])
    if kind in ("switch", "mesh"):
        size = random.choice([1, 2, 3, 4, 4, 8])
        return [level("box", kind, max(size, 2), rate, near_us)], size
    if kind == "torus":
        extents = random.choice([(4,), (2, 2), (2, 3)])
        size = extents[0] * (*extents, 1)[1]
        return [level("grid", "torus", size, rate, near_us, extents=[number(one) for one in extents])], size
    inner, size = random.choice([2, 3, 4]), random.choice([2, 3])
    ranks = inner * size if random.random() < 0.7 else random.randint(2, inner * size)
    if kind == "tiers":
        return [level("node", "switch", inner, rate, near_us), level("top", "switch", size, rate * random.uniform(
            0.5, 4), far_us)], ranks
    if kind == "rails":
        return [level("node", "switch", inner, rate, near_us), level("rail", "rails", size, rate / 2, far_us)], ranks
    first = level("node", "mesh" if kind == "nodes" else "switch", inner, rate, near_us)
    outer_us = far_us if kind == "nodes" else random.uniform(0.2, 4)  # a card may be nearer than the switch of a node
    return [first, level("top", "switch", size, rate * random.uniform(0.2, 1), outer_us, ports="die")], ranks


def _machine(random: Random, fabric: list[dict[str, Any]]) -> MachineSpec:
    """The tiny machine with other numbers."""
    tables = {**TINY.model_dump(), "name": "random", "fabric": fabric}
    uniform = random.uniform
    tables["host"] = {"launch_eager": number(random.choice([0, uniform(0.5, 5)]), "us"),
                      "operator": number(uniform(0, 2), "us") if random.random() < 0.3 else None,
                      "launch_graph": number(uniform(2, 9), "us"), "device_read": number(uniform(0.5, 4), "us")}
    chip = tables["chip"]
    chip["hbm"]["peak"] = number(random.choice([uniform(150, 300), uniform(8, 60)]), "GB/s")
    chip["l2"]["rate"] = number(random.choice([uniform(300, 500), uniform(20, 90)]), "GB/s")
    chip["l2"]["capacity"] = number(random.choice([10_000, 300, 120]), "kB")
    chip["cores"] = {"cube": number(random.randint(2, 5)), "vector": number(random.randint(8, 12)),
                     "sdma": number(random.randint(1, 3))}
    for name, engine in tables["collectives"].items():
        engine["startup"] = number(uniform(2, 12), "us")
        engine["startup_per_peer"] = number(uniform(0, 1.5), "us")
        engine["copy_bytes"] = number(random.choice([0, 2]) if name == "aiv" else random.choice([2, 1.5]))
        engine["weight"] = number(random.choice([1, 1, 2.5, 0.4]))
        engine["startup_eager"] = number(uniform(5, 20), "us") if random.random() < 0.4 else None
        engine["step_latencies"] = number(random.randint(1, 3)) if random.random() < 0.5 else None
    for kernel in tables["kernels"]["round"].values():
        kernel["floor"] = number(uniform(0.2, 3), "us")
        kernel["prologue"] = number(uniform(0.1, 2), "us")
        if kernel["law"] == "gemm":
            kernel["unoverlapped"] = number(random.choice([0, 0.5, uniform(0.1, 1), 1]))
    return validate(MachineSpec, tables, "random")


class _Script:
    """What ranks do: operations in one order, of which each variant of ranks takes part in some."""

    def __init__(self, random: Random, ranks: int, machine: MachineSpec) -> None:
        self.random, self.ranks, self.machine = random, ranks, machine
        kinds = random.choice([1, 1, 2, 3])
        self.variants = [random.randrange(kinds) for _ in range(ranks)]
        self.streams = STREAMS[: random.randint(1, 4)]
        self.groups = self._groups()
        self.ops = [self._op() for _ in range(random.randint(3, 16))]
        self.captured = [random.random() < 0.3 for _ in range(kinds)]
        self.programmatic, self.operators = random.random() < 0.2, random.choice([0.0, 0.0, 1.0, 2.5])
        self.priorities = {stream: random.randint(0, 2) for stream in self.streams if random.random() < 0.4}
        self.confined = self._confined()

    def world(self) -> World:
        """Every rank's program."""
        return record_world(self.program, self.ranks, self.groups, lambda rank: {"variant": self.variants[rank]})

    def _groups(self) -> Groups:
        size = next(one for one in (2, 3, 1) if self.ranks % one == 0)
        order = list(range(self.ranks))
        if self.random.random() < 0.3:
            self.random.shuffle(order)
        groups: dict[str, Any] = {"world": [tuple(order)], "near": blocks(self.ranks, size),
                                  "far": strides(self.ranks, size)}
        if self.ranks >= 6 and self.random.random() < 0.5:
            groups["some"] = OfSome([(0, 1), (3, 4)] if self.random.random() < 0.5 else [(0, 2, 3)])
        return groups

    def _confined(self) -> dict[str, dict[str, int]]:
        if self.random.random() < 0.8:
            return {}
        return {self.random.choice(self.streams): {"vector": self.random.randint(2, 5), "cube": 1}}

    def _op(self) -> Op:
        random, stream = self.random, self.random.choice(self.streams)
        kinds = sorted(set(self.variants))
        some = tuple(kind for kind in kinds if random.random() < 0.7) or (kinds[0],)
        sided = 0 if self.machine.fabric[0].kind == "torus" else 2  # bytes would pass through other dies
        what = random.choices(["kernel", "prefetch", "exchange", "sided", "uneven", "message", "wait", "host"],
                              [6, 2, 6, sided, 2, 1.5, 4, 1.5])[0]
        engine = random.choice(["dma", "aiv"])
        name = random.choice(sorted(self.groups))
        if what == "kernel":
            return what, stream, some, random.choice(["vector", "bf16", "int8", "grouped", "flash", "empty"]), \
                random.uniform(0.2, 4), random.choice([0, 0, 0, 0.37]), random.choice(["", "a", "b", "c"])
        if what == "prefetch":
            return what, stream, some, random.choice("abc"), random.randint(1, 400) * 1000, random.choice(
                [0.0, 3.7e9]), random.choice([1, 1, 2])
        if what == "exchange":
            kind = random.choice([*ALGORITHMS, "barrier"])
            algorithm = self._algorithm(kind, name)
            return what, stream, name, kind, random.choice([0, 1, random.randint(1, 200) * 1000, random.randint(
                1, 99_999)]), engine, algorithm
        if what == "sided":
            return what, stream, random.choice(self.streams), name, random.choice([0, random.randint(1, 300) * 1000]), \
                engine, random.choice([0, 0, 1234])
        if what == "uneven":
            return what, stream, name, self._sizes(len(self.groups[name][0])), engine, self._algorithm(
                "all_to_all", name)
        if what == "message":
            shift = random.randrange(1, self.ranks) if self.ranks > 1 else 0
            return what, stream, shift, random.randint(0, 200_000), engine
        return what, stream, some, random.randrange(20), random.randint(0, 3)

    def _algorithm(self, kind: str, group: str) -> str:
        """One that this group can go by: over nodes only where all nodes have as many members."""
        ways = list(ALGORITHMS.get(kind, ("direct",)))
        inner = self.machine.fabric[0].size.count
        level_count = len(self.machine.fabric)
        for members in self.groups[group]:
            nodes = [sum(rank // inner == node for rank in members) for node in range(self.ranks)]
            if len({count for count in nodes if count}) > 1:
                ways = [way for way in ways if way in ("direct", "one_shot", "nvls")]
        if level_count > 1 or self.machine.fabric[0].kind != "switch" or len(self.groups[group][0]) == 1:
            ways = [way for way in ways if way != "nvls"]
        return self.random.choice(ways)

    def _sizes(self, n: int) -> tuple[tuple[int, ...], ...]:
        random = self.random
        how = random.choice(["any", "rows", "columns", "sparse"])
        by = [random.randint(0, 150) * 1000 for _ in range(n)]
        draw = {"any": lambda i, j: random.randint(1, 150_000), "rows": lambda i, j: by[i],
                "columns": lambda i, j: by[j], "sparse": lambda i, j: random.choice([0, 0, 70_000])}[how]
        return tuple(tuple(draw(i, j) for j in range(n)) for i in range(n))

    # recording ------------------------------------------------------------------------------------------------------

    def program(self, npu: Rank) -> None:
        """What one rank does."""
        variant = npu.coordinate("variant")
        assert isinstance(variant, int)
        program = npu.program
        program.captured, program.programmatic = self.captured[variant], self.programmatic
        program.operators = self.operators
        for stream, cores in self.confined.items():
            npu.confine(stream, cores)
        for stream, priority in self.priorities.items():
            npu.prioritise(stream, priority)
        events: list[Event] = []
        for place, (what, stream, *how) in enumerate(self.ops):
            with npu.stream(stream):
                getattr(self, f"_{what}")(npu, variant, f"{what} {place}", events, *how)

    def _kernel(self, npu: Rank, variant: int, name: str, events: list[Event], some: tuple[int, ...], family: str,
                size: float, by_rank: float, weights: str) -> None:  # fmt: skip
        if variant not in some:
            return
        if by_rank:
            events.append(npu.launch_by_rank(lambda rank: _work(family, size * (1 + by_rank * rank), weights), name))
        else:
            events.append(npu.launch(_work(family, size * (1 + 0.61 * variant), weights), name))

    def _prefetch(self, npu: Rank, variant: int, _: str, events: list[Event], some: tuple[int, ...], weights: str,
                  size: float, rate: float, pieces: int) -> None:  # fmt: skip
        if variant in some:
            events.append(npu.prefetch(weights, size, rate, pieces))

    def _exchange(self, npu: Rank, _: int, name: str, events: list[Event], group: str, kind: str, size: int,
                  engine: str, algorithm: str) -> None:  # fmt: skip
        if not self._member(npu, group):
            return
        call = getattr(npu.group(group), kind)
        events.append(call(name, engine) if kind == "barrier" else call(name, size, engine, algorithm))

    def _sided(self, npu: Rank, variant: int, name: str, events: list[Event], later: str, group: str, size: int,
               engine: str, more: int) -> None:  # fmt: skip
        if self._member(npu, group):
            own = npu.group(group)
            events.append(own.put(name, size + more * variant, size, engine))
            with npu.stream(later):
                events.append(own.collect(f"collect {name}", engine))

    def _uneven(self, npu: Rank, _: int, name: str, events: list[Event], group: str, sizes: Any, engine: str,
                algorithm: str) -> None:  # fmt: skip
        if self._member(npu, group):
            events.append(npu.group(group).all_to_all_uneven(name, sizes, engine, algorithm))

    def _message(self, npu: Rank, _: int, name: str, events: list[Event], shift: int, size: int, engine: str) -> None:
        """From the first rank of the world to another, so that there is no circle."""
        if shift:
            place = self.groups["world"][0].index(npu.rank)
            own = npu.group("world")
            if place == 0:
                events.append(own.send(name, shift, size, engine))
            elif place == shift:
                events.append(own.recv(name, 0, size, engine))

    def _wait(self, npu: Rank, variant: int, _: str, events: list[Event], some: tuple[int, ...], which: int,
              reads: int) -> None:  # fmt: skip
        if events and variant in some:
            npu.wait(events[which % len(events)])

    def _host(self, npu: Rank, variant: int, _: str, events: list[Event], some: tuple[int, ...], which: int,
              reads: int) -> None:  # fmt: skip
        if events and variant in some:
            npu.host_wait(npu.record() if which % 3 == 0 else events[which % len(events)], reads)

    def _member(self, npu: Rank, group: str) -> bool:
        return not isinstance(self.groups[group], OfSome) or any(npu.rank in one for one in self.groups[group])


def _work(family: str, size: float, weights: str) -> Work:
    """A kernel of about so many times 10 us."""
    if family in ("vector", "empty"):
        return ops.passes(size * 311_000 if family == "vector" else 0.0, 0)
    rows = max(int(size * 97), 1)
    if family == "flash":
        return ops.flash_attention(((rows, rows + 40, True), (17, 90, False)), 4, 64, 32, family)
    if family == "grouped":
        return ops.grouped_gemm((rows, 31), 200, 300, "bf16", weights=weights)
    return ops.gemm(rows, 200, 500, dtype=family, weights=weights)


def _fault(random: Random, machine: MachineSpec, ranks: int) -> Fault:
    """Of a random kind, in the middle of what a run takes; for a while or to the end."""
    at_s, for_s = random.choice([0.0, random.uniform(0, 4e-4)]), random.uniform(1e-5, 2e-4)
    what = random.choices(["rank", "node", "host", "link", "card"], [4, 1, 2, 3, 1])[0]
    graph, rank = Fabric(machine, ranks).graph, random.randrange(ranks)
    cards = sum(not other.startswith("die") for other in graph[f"die {rank}"]) if f"die {rank}" in graph else 0
    if what == "host" or (what == "link" and not graph.edges) or (what == "card" and not cards):
        return Fault("host", str(rank), "paused", at_s, for_s)
    if what in ("link", "card"):
        name = random.choice([" - ", " to "]).join(random.choice(sorted(graph.edges))) if what == "link" else \
            f"rank{rank}.nic{random.randrange(cards)}"
        effect = random.choice(["rate", "rate", "cut", "flaps"])
        value = {"rate": random.uniform(0.2, 1), "cut": 0.0, "flaps": random.uniform(3e-6, 4e-5)}[effect]
        return Fault("link", name, effect, at_s, inf if effect == "rate" and random.random() < 0.4 else for_s, value)
    number = str(rank // machine.node_dies if what == "node" else rank)
    effect = random.choices(["clock", "hbm", "lost"], [4, 3, 0.5])[0]
    if effect == "lost":
        return Fault(what, number, effect, at_s)
    return Fault(what, number, effect, at_s, random.choice([inf, for_s]), random.choice([0.3, 0.77, 0.5, 1.0]))
