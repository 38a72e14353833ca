"""RL weight update: training GPUs write a model's weights straight into inference GPUs (arXiv 2510.27656).

Per parameter: host-to-device copy, unshard over the training group, fuse, quantise to FP8, submit writes. One thread
runs these stages and waits for each, copies and kernels too, so they add up; only the writes go on beside them. At the
end of every mesh group the thread waits for its writes and then for the slowest rank, behind a barrier of all training
ranks. What a call of a stage takes, and waiting for others, are inputs (published); what of the writes stays exposed is
not. All training ranks do the same, so a slice of them stands for all: as many inference ranks as keep the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from simulator.errors import InputError
from simulator.live.host import Host
from simulator.live.thread import HostProcess, Label
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload

STAGES = ("copy", "unshard", "fuse", "quantise")  # before submission


class Model(Part):
    """What is transferred, and between how many GPUs."""

    parameters: float = Field(1e12, gt=0, description="of the model; a byte each on the wire (FP8)")
    training_gpus: int = Field(256, gt=0)
    inference_gpus: int = Field(128, gt=0)


class Knobs(Part):
    """Published calls of every stage on one training rank, and microseconds per call."""

    copy_calls: int = Field(487, gt=0)
    unshard_calls: int = Field(974, gt=0)
    fuse_calls: int = Field(487, gt=0)
    quantise_calls: int = Field(647, gt=0)
    submit_calls: int = Field(1144, gt=0)
    copy_us: float = Field(378.0, ge=0)
    unshard_us: float = Field(532.0, ge=0)
    fuse_us: float = Field(37.0, ge=0)
    quantise_us: float = Field(137.0, ge=0)
    submit_us: float = Field(23.0, ge=0)
    wait_s: float = Field(0.357, ge=0, description="published time that a rank waits for others: an input")
    mesh_groups: int = Field(4, gt=0, description="groups of parameters, a barrier after each (number assumed)")


Case = scenario.Case[Model, scenario.Layout, Knobs]


def proxy(host: Host, case: Case) -> HostProcess:
    """A training rank pushes its share; inference ranks take no part (writes are one-sided)."""
    trainers, knobs = _trainers(case), case.knobs
    if host.rank >= trainers:
        return
    if knobs.mesh_groups > knobs.copy_calls:
        raise InputError(f"knobs.mesh_groups={knobs.mesh_groups}: there are {knobs.copy_calls} parameters "
                         "(knobs.copy_calls) to put into groups")
    others, row = [rank for rank in range(trainers) if rank != host.rank], None
    for group in range(knobs.mesh_groups):
        transfers: list[Any] = []
        for number in range(group, knobs.copy_calls, knobs.mesh_groups):
            for stage in STAGES:
                label, seconds = Label(f"weights.{stage}", group), _us(knobs, stage, number)
                row = yield from host.proxy.work(stage, seconds, label, stage, row)
            row = yield from _submit(host, case, number, group, transfers, row)
        for event in transfers:
            yield from host.until(event, "the writes of a mesh group")
        waits = Label("mesh_group.wait", group)
        row = yield from host.proxy.work("wait", knobs.wait_s / knobs.mesh_groups, waits, "slowest rank", row)
        barrier = Label("mesh_group.barrier", group)
        passed = host.engine.count(barrier, f"group {group}", len(others))
        yield from host.engine.barrier(host.proxy, barrier, others, f"group {group}", because=row)
        yield from host.until(passed, f"the barrier of mesh group {group}")


def _submit(host: Host, case: Case, number: int, group: int, transfers: list[Any], row: Any) -> HostProcess:
    """The writes of one parameter, each to another inference rank; adds the events of their ends, and returns the row
    of the last one."""
    trainers, label = _trainers(case), Label("weights.write", group)
    size = case.batch.parameters / case.batch.training_gpus / case.knobs.submit_calls
    for part in range(_calls(case.knobs, "submit", number)):
        row = yield from host.proxy.work("prepare", case.knobs.submit_us / 1e6, label, "submit", row)
        peer = trainers + (host.rank + number + part) % (case.ranks - trainers)
        transfers.append((yield from host.engine.write(host.proxy, label, peer, int(size), because=row)))
    return row


def _calls(knobs: Any, stage: str, number: int) -> int:
    """Calls of a stage for parameter `number`: all of its calls, spread evenly over the parameters."""
    total, parameters = getattr(knobs, f"{stage}_calls"), knobs.copy_calls
    return int((number + 1) * total // parameters - number * total // parameters)


def _us(knobs: Any, stage: str, number: int) -> float:
    return float(_calls(knobs, stage, number) * getattr(knobs, f"{stage}_us") / 1e6)


def _trainers(case: Case) -> int:
    share = case.batch.training_gpus / (case.batch.training_gpus + case.batch.inference_gpus)
    return round(case.ranks * share)


def groups(case: Case) -> Mapping[str, list[tuple[int, ...]]]:
    """Nobody meets on a GPU."""
    if not 0 < _trainers(case) < case.ranks:
        raise ValueError(f"{case.ranks} ranks leave none to train or none to infer: set cards to more")
    return {}


def memory(case: Case) -> list[MemoryItem]:
    """An inference rank's weights."""
    return [("weights, FP8", "weights", case.batch.parameters / case.batch.inference_gpus)]


def measures(case: Case, seconds: float) -> Mapping[str, float]:
    """The whole update."""
    return {"latency_ms": seconds * 1e3, "update_s": seconds}


def readings(case: Case, columns: Mapping[str, Any]) -> Mapping[str, float]:
    """How long the first rank waits for its writes when the stages of a mesh group have ended, in all."""
    own, starts, ends, exposed = columns["rank"] == 0, columns["start_ps"] / 1e9, columns["end_ps"] / 1e9, 0.0
    for group in range(case.knobs.mesh_groups):
        of_group = own & (columns["layer"] == group)
        submitted = ends[of_group & (columns["name"] == "weights.write") & (columns["kind"] == "submit")].max()
        exposed += float(starts[of_group & (columns["name"] == "mesh_group.wait")].min() - submitted)
    return {"exposed_writes_ms": exposed}


WEIGHT_UPDATE = Workload(groups=groups, memory=memory, measures=measures, live=proxy, readings=readings)
