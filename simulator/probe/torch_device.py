"""A GPU through PyTorch: kernels in captured graphs, streams with events between kernels, launches by the host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from math import ceil
from time import perf_counter
from typing import Any

import torch

from simulator.errors import InputError
from simulator.probe import torch_group
from simulator.probe.device import About, Exchange, Program, Timeline, Unmeasurable
from simulator.probe.kernel import Kernel
from simulator.probe.torch_kernels import Launch, launches

GRAPH_S, MOST_IN_GRAPH = 0.02, 200  # of a captured graph: how long it lasts, and how many kernels it has at most
LAUNCHES, HOPS, READS = 200, 200, 20
GATE_CYCLES, LONGEST_GATE_CYCLES = 10_000_000, 400_000_000
LEAD_CYCLES = 30_000  # by which the first stream of several is ahead
COPIES = 8
FP8_CAPABILITY = (8, 9)


class TorchDevice:
    """The first GPU that PyTorch sees, and the others for what goes between them; InputError if there is none."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise InputError(f"PyTorch {torch.__version__} sees no GPU here (torch.cuda.is_available() is False). "
                             "Measurements of another computer: braid probe --from probe.json")  # fmt: skip
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        torch.manual_seed(0)
        self.l2_bytes = self.about().l2_bytes
        self.gate_cycles = GATE_CYCLES

    @cached_property
    def _streams(self) -> list[Any]:
        """The gate's, and two to run kernels on."""
        return [torch.cuda.Stream(self.device) for _ in range(3)]

    def about(self) -> About:
        """As the driver has it. Double data rate: two transfers a clock of the memory."""
        has = torch.cuda.get_device_properties(self.device)
        memory_hz = getattr(has, "memory_clock_rate", 0) * 1e3
        dtypes = ("bf16", "fp8") if (has.major, has.minor) >= FP8_CAPABILITY else ("bf16",)
        return About(name=has.name, sms=has.multi_processor_count, memory_bytes=has.total_memory,
                     l2_bytes=has.L2_cache_size, clock_hz=getattr(has, "clock_rate", 0) * 1e3, dtypes=dtypes,
                     hbm_bytes_per_s=2.0 * memory_hz * getattr(has, "memory_bus_width", 0) / 8.0,
                     gpus=torch.cuda.device_count(), versions=_versions())  # fmt: skip

    def kernel_s(self, kernel: Kernel, repeats: int) -> list[float]:
        """Of one kernel in a captured graph of many, on operands in turn."""
        with _refusals():
            sets = launches(kernel, self.device, self.l2_bytes)
            for launch in sets:
                launch()
            once_s = self._elapsed_s(lambda: [launch() for launch in sets]) / len(sets)
            count = min(max(ceil(GRAPH_S / once_s), min(len(sets), 8)), MOST_IN_GRAPH)
            graph = _captured(lambda: [sets[number % len(sets)]() for number in range(count)])
            graph.replay()
            return [self._elapsed_s(graph.replay) / count for _ in range(repeats)]

    def timelines(self, programs: Sequence[Program], repeats: int) -> list[list[Timeline]]:
        """Every program in turn, again and again; operands are those of a stream and kernel."""
        with _refusals():
            sets: dict[tuple[int, Kernel], list[Launch]] = {}
            for program in programs:
                for place, kernels in enumerate(program):
                    for kernel in set(kernels):
                        if (place, kernel) not in sets:
                            sets[place, kernel] = self._warm(kernel, place)
            rounds = [[self._timeline(program, sets) for program in programs] for _ in range(repeats)]
            return [list(each) for each in zip(*rounds, strict=True)]

    def _warm(self, kernel: Kernel, place: int) -> list[Launch]:
        """Its sets of operands, each launched once on the stream that it will run on, which then has workspaces."""
        sets = launches(kernel, self.device, self.l2_bytes)
        torch.cuda.synchronize()
        with torch.cuda.stream(self._streams[1 + place]):
            for launch in sets:
                launch()
        torch.cuda.synchronize()
        return sets

    def _timeline(self, program: Program, sets: dict[tuple[int, Kernel], list[Launch]]) -> Timeline:
        """Streams wait behind a gate until all is launched; a gate that was too short is made longer."""
        while True:
            opened, recorded = self._launched(program, sets)
            behind_gate = not opened.query()
            torch.cuda.synchronize()
            if behind_gate or self.gate_cycles >= LONGEST_GATE_CYCLES:
                break
            self.gate_cycles *= 2
        times = [[opened.elapsed_time(event) / 1e3 for event in own] for own in recorded]
        return [list(pairwise(own)) for own in times]

    def _launched(self, program: Program, sets: dict[tuple[int, Kernel], list[Launch]]) -> tuple[Any, list[list[Any]]]:
        """The event that opens the gate, and of each stream those before, between and behind its kernels."""
        torch.cuda.synchronize()
        opened, recorded = _event(), []
        with torch.cuda.stream(self._streams[0]):
            torch.cuda._sleep(self.gate_cycles)
            opened.record()
        for place, kernels in enumerate(program):
            with torch.cuda.stream(self._streams[1 + place]):
                torch.cuda.current_stream().wait_event(opened)
                if place:
                    torch.cuda._sleep(LEAD_CYCLES)
                own = [_recorded()]
                for number, kernel in enumerate(kernels):
                    mine = sets[place, kernel]
                    mine[number % len(mine)]()
                    own.append(_recorded())
            recorded.append(own)
        return opened, recorded

    def launch_s(self, what: str, repeats: int) -> list[float]:
        """See `device.LAUNCHES`; the smallest kernel adds 1 to one number."""
        with _refusals():
            one = torch.zeros(1, device=self.device)
            measured = {"eager": self._eager, "eager_rate": self._eager_rate, "graph": self._graph,
                        "graph_launch": self._graph_launch, "device_read": self._read,
                        "dependent_graph": self._dependent_graph, "dependent_eager": self._dependent_eager}[what](one)
            measured()
            return [measured() for _ in range(repeats)]

    def _eager(self, one: Any) -> Callable[[], float]:
        return lambda: self._host_s(lambda: [one.add_(1) for _ in range(LAUNCHES)], ended=False) / LAUNCHES

    def _eager_rate(self, one: Any) -> Callable[[], float]:
        return lambda: self._host_s(lambda: [one.add_(1) for _ in range(LAUNCHES)], ended=True) / LAUNCHES

    def _graph(self, one: Any) -> Callable[[], float]:
        one.add_(1)
        graph = _captured(lambda: [one.add_(1) for _ in range(LAUNCHES)])
        return lambda: self._elapsed_s(graph.replay) / LAUNCHES

    def _graph_launch(self, one: Any) -> Callable[[], float]:
        one.add_(1)
        graph = _captured(lambda: one.add_(1))
        return lambda: self._host_s(graph.replay, ended=False)

    def _read(self, one: Any) -> Callable[[], float]:
        return lambda: self._host_s(lambda: [one.item() for _ in range(READS)], ended=False) / READS

    def _dependent_graph(self, one: Any) -> Callable[[], float]:
        one.add_(1)
        graph = _captured(lambda: self._hops(one, torch.cuda.current_stream(), self._streams[1]))
        return lambda: self._elapsed_s(graph.replay) / HOPS

    def _dependent_eager(self, one: Any) -> Callable[[], float]:
        def measured() -> float:
            gate, here, there = self._streams
            torch.cuda.synchronize()
            begin, end = _event(), _event()
            with torch.cuda.stream(gate):
                torch.cuda._sleep(4 * self.gate_cycles)
            here.wait_stream(gate)
            begin.record(here)
            self._hops(one, here, there)
            end.record(here)
            torch.cuda.synchronize()
            return float(begin.elapsed_time(end)) / 1e3 / HOPS

        return measured

    def _hops(self, one: Any, here: Any, there: Any) -> None:
        """Kernels that go from stream to stream, and back to the first in the end."""
        for number in range(HOPS):
            now, after = (here, there) if number % 2 == 0 else (there, here)
            with torch.cuda.stream(now):
                one.add_(1)
            after.wait_stream(now)

    def exchanges_s(self, exchanges: Sequence[Exchange], repeats: int) -> list[list[float]]:
        """Collectives of NCCL, a process for each GPU."""
        return torch_group.exchanges_s(exchanges, repeats)

    def peer_copy_s(self, source: int, target: int, size_bytes: int, repeats: int) -> list[float]:
        """Copies in a row, on a stream of the GPU that they are read from."""
        with _refusals(), torch.cuda.device(source):
            read = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8, device=torch.device("cuda", source))
            written = torch.empty(size_bytes, dtype=torch.uint8, device=torch.device("cuda", target))

            def copies() -> None:
                for _ in range(COPIES):
                    written.copy_(read, non_blocking=True)

            copies()
            return [self._elapsed_s(copies) / COPIES for _ in range(repeats)]

    def _elapsed_s(self, launch: Callable[[], object]) -> float:
        """Of what is launched on the current stream, on the device."""
        begin, end = _event(), _event()
        torch.cuda.synchronize()
        begin.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _host_s(self, launch: Callable[[], object], ended: bool) -> float:
        """On the host, until the last is launched, or has ended."""
        torch.cuda.synchronize()
        began_s = perf_counter()
        launch()
        if ended:
            torch.cuda.synchronize()
        return perf_counter() - began_s


def _captured(launch: Callable[[], object]) -> Any:
    """A captured graph of what is launched on the current stream, ready to replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def _recorded() -> Any:
    """On the current stream."""
    event = _event()
    event.record()
    return event


@contextmanager
def _refusals() -> Iterator[None]:
    """What PyTorch refuses (no such kernel, no memory) is a measurement that is left out."""
    try:
        yield
    except RuntimeError as error:
        raise Unmeasurable(str(error).strip().partition("\n")[0]) from error


def _versions() -> dict[str, str]:
    """Of the driver and the software that kernels come from."""
    found = {"driver": _driver(), "cuda": torch.version.cuda or torch.version.hip or "", "torch": torch.__version__}
    if cudnn := torch.backends.cudnn.version():
        found["cudnn"] = str(cudnn)
    return {name: str(version) for name, version in found.items() if version}


def _driver() -> str:
    """As nvidia-smi says; "" where there is none."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.strip().partition("\n")[0]
