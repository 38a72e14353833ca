"""RL weight update: training GPUs write a model's weights straight into inference GPUs (arXiv 2510.27656).

Per parameter: host-to-device copy, unshard over the training group, fuse, quantise to FP8, submit writes. Copies, GPU
work and writes are stages of a pipeline; a barrier of all training ranks ends every mesh group. The times of the stages
are inputs (published per call); what they overlap to is not. All training ranks do the same, so a slice of them stands
for all: as many inference ranks as keep the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from simulator.live.host import Host
from simulator.live.stages import Stages
from simulator.live.thread import HostProcess, HostThread, Label
from simulator.study import scenario
from simulator.study.scenario import MemoryItem, Part, Workload

STAGES = ("copy", "unshard", "fuse", "quantise", "submit")


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
    wait_s: float = Field(0.36, ge=0, description="published time that a rank waits for others: an input")
    mesh_groups: int = Field(4, gt=0, description="groups of parameters, a barrier after each (number assumed)")
    ahead: int = Field(4, gt=0, description="parameters that are copied before the GPU is done with them (assumed)")
    overlap: bool = Field(True, description="stages as a pipeline; otherwise a parameter is finished before the next")


Case = scenario.Case[Model, scenario.Layout, Knobs]


def proxy(host: Host, case: Case) -> HostProcess:
    """A training rank pushes its share; inference ranks take no part (writes are one-sided). GPU work is a stage of
    the live pipeline, too: its times are inputs."""
    trainers = _trainers(case)
    if host.rank >= trainers:
        return
    others = [rank for rank in range(trainers) if rank != host.rank]
    copier = HostThread(host.env, host.rank, "copy engine", 0.0, host.journal)
    gpu = HostThread(host.env, host.rank, "gpu", 0.0, host.journal)
    knobs = case.knobs
    for group in range(knobs.mesh_groups):
        mine = range(group, knobs.copy_calls, knobs.mesh_groups)
        yield from _pipeline(host, case, copier, gpu, mine, group)
        label = Label("mesh_group.wait", group)
        yield from gpu.work("wait", knobs.wait_s / knobs.mesh_groups, label, "slowest rank")
        barrier = Label("mesh_group.barrier", group)
        passed = host.engine.count(barrier, f"group {group}", len(others))
        yield from host.engine.barrier(host.proxy, barrier, others, f"group {group}")
        yield from host.until(passed, f"the barrier of mesh group {group}")


def _pipeline(host: Host, case: Case, copier: HostThread, gpu: HostThread, mine: range, group: int) -> HostProcess:
    """Copy, GPU stages and submission of some parameters, each stage on a thread of its own."""
    knobs = case.knobs

    def copy(number: int, _: Any) -> HostProcess:
        return (yield from copier.work("copy", _us(knobs, "copy", number), Label("weights.copy", group), "copy"))

    def compute(number: int, row: Any) -> HostProcess:
        for stage in ("unshard", "fuse", "quantise"):
            label = Label(f"weights.{stage}", group)
            row = yield from gpu.work(stage, _us(knobs, stage, number), label, stage, row)
        if knobs.overlap:
            line.leave()
        return row

    line, transfers = Stages(host.env, mine, (copy, compute), knobs.ahead if knobs.overlap else 1), []
    for _ in mine:
        number, row = yield line.through()
        done = yield from _submit(host, case, number, group, row)
        if not knobs.overlap:
            for event in done:
                yield from host.until(event, "weights")
            line.leave()
        transfers += done
    for event in transfers:
        yield from host.until(event, "the weights of a mesh group")


def _submit(host: Host, case: Case, number: int, group: int, row: Any) -> HostProcess:
    """The writes of one parameter, each to another inference rank."""
    trainers, label = _trainers(case), Label("weights.write", group)
    writes = _calls(case.knobs, "submit", number)
    size = case.batch.parameters / case.batch.training_gpus / case.knobs.submit_calls
    done = []
    for part in range(writes):
        row = yield from host.proxy.work("prepare", case.knobs.submit_us / 1e6, label, "submit", row)
        peer = trainers + (host.rank + number + part) % (case.ranks - trainers)
        done.append((yield from host.engine.write(host.proxy, label, peer, int(size), because=row)))
    return done


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


WEIGHT_UPDATE = Workload(groups=groups, memory=memory, measures=measures, live=proxy)
