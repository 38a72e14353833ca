"""Which protocol a library takes for a collective: the one that its own latencies and rate make the fastest.

Worked example: 8 ranks sum 64 KiB. One shot starts in 4 us and sends 7 x 64 KiB at 250 GB/s, 5.8 us; in two shots each
part starts in 4 us, and both send 2 x 7 x 8 KiB at 200 GB/s, 8.6 us: one shot it is. Of 1 MiB it is two shots, 17 us.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.program.task import Collective
from simulator.spec.machine import BandwidthCurves, CollectiveSpec
from simulator.spec.protocols import ProtocolSpec


def parts(algorithm: str, kind: str) -> int:
    """How many times a collective pays its start-up."""
    return 2 if kind == "all_reduce" and algorithm in ("direct", "ring") else 1


def wire_bytes(algorithm: str, kind: str, buffer_bytes: float, members: int) -> float:
    """Bytes that a rank puts on the wire; buffer_bytes as in `ProtocolSpec.up_to`."""
    each = buffer_bytes * (members - 1) / members
    if kind != "all_reduce":
        return each
    return {"one_shot": buffer_bytes * (members - 1), "nvls": buffer_bytes * (members + 1) / members}.get(
        algorithm, 2.0 * each)  # fmt: skip


def alone_s(protocol: ProtocolSpec, buffer_bytes: float, members: int) -> float:
    """How long a protocol takes on idle links, without hops."""
    starts = parts(protocol.algorithm, protocol.kind)
    latency_s = protocol.startup_s(members)
    wire = wire_bytes(protocol.algorithm, protocol.kind, buffer_bytes, members)
    return starts * latency_s + wire / protocol.rate.si


def chosen(collective: Collective, members: int, engine: CollectiveSpec,
           one_switch: bool = True) -> tuple[Collective, CollectiveSpec]:
    """A collective as one of the engine's protocols, and the engine with the numbers of that one.

    one_switch: whether one switch joins all members, without which none can sum for them. Where no protocol fits it is
    direct, at the engine's own numbers.
    """
    size = buffer_bytes(collective, members)
    there = [one for one in engine.protocols.values() if one.kind == collective.kind and one.takes(size)
             and (one_switch or one.algorithm != "nvls")]  # fmt: skip
    if not there:
        return replace(collective, algorithm="direct"), engine
    best = min(there, key=lambda one: alone_s(one, size, members))
    return replace(collective, algorithm=best.algorithm), _with_numbers(engine, best)


def buffer_bytes(collective: Collective, members: int) -> float:
    """The size that a library decides by: see `ProtocolSpec.up_to`."""
    if collective.sizes:
        return sum(map(sum, collective.sizes)) / members
    return float(collective.bytes_per_pair * (1 if collective.kind == "all_reduce" else members))


def _with_numbers(engine: CollectiveSpec, protocol: ProtocolSpec) -> CollectiveSpec:
    """The engine as it is with one protocol for everything."""
    point = engine.ladder.default[0].model_copy(update={"rate": protocol.rate})
    ladder = BandwidthCurves(default=[point])
    return engine.model_copy(update={
        "startup": protocol.startup, "startup_per_peer": protocol.startup_per_peer, "ladder": ladder,
        "rate_per_core": None, "step_latencies": None, "protocols": {}})  # fmt: skip
