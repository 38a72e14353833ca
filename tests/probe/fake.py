"""A device of known laws: kernels cost what the library's H100 says, and streams share by a rule of their own code.

It stands for a GPU in tests. What it shares by is written here once more, and differently from `physics`, so that a
report of no error says something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.die.kernels import cost_of
from simulator.probe.device import About, Exchange, Program, Timeline, Unmeasurable
from simulator.probe.kernel import Kernel
from simulator.spec.load import load_machine

MACHINE = load_machine("dgx_h100")
CHIP, KERNELS = MACHINE.chip, MACHINE.kernels_of("vllm")
HBM, L2 = CHIP.hbm.peak.si * CHIP.hbm.efficiency.si, CHIP.l2.rate.si
SMS, LOOP_CORE = 132, 60e9  # bytes/s that a block of a loop moves
LAUNCH_S = {"eager": 5e-6, "eager_rate": 6e-6, "graph": 2e-6, "graph_launch": 8e-6, "device_read": 12e-6,
            "dependent_graph": 3.1e-6, "dependent_eager": 4.2e-6}  # fmt: skip
LEAD_S, START_S = 20e-6, 1e-6
LINK, NCCL_START_S = 400e9, 9e-6
Rates = Callable[[list["Running"]], list[float]]


@dataclass
class Running:
    """A kernel on some cores: bytes through L2 still to move, HBM bytes for each, and the rate that it has alone."""

    left: float
    hbm: float
    limit: float
    units: int
    stream: int
    waits_s: float


class FakeDevice:
    """A GPU whose streams share by `rates`: `max_min`, or another rule."""

    def __init__(self, rates: Rates, gpus: int = 1, fails_after: int = 10**9) -> None:
        self.rates, self.gpus = rates, gpus
        self.asked = 0
        self.fails_after = fails_after  # measurements; then Ctrl-C

    def about(self) -> About:
        return About(name="Fake H100", sms=SMS, memory_bytes=80e9, l2_bytes=50e6, hbm_bytes_per_s=CHIP.hbm.peak.si,
                     clock_hz=1.7e9, gpus=self.gpus, versions={"driver": "1", "cuda": "13.0"})

    def kernel_s(self, kernel: Kernel, repeats: int) -> list[float]:
        self._count()
        if kernel.family == "device_copy" and kernel["buffer_bytes"] < 2**17:
            raise Unmeasurable("too small for this device")
        alone_s = self.timeline([[kernel]])[0][0][1] - START_S
        return [alone_s * (1.0 + 1e-3 * (number - repeats // 2)) for number in range(repeats)]

    def timelines(self, programs: Sequence[Program], repeats: int) -> list[list[Timeline]]:
        self._count()
        return [[self.timeline(program)] * repeats for program in programs]

    def launch_s(self, what: str, repeats: int) -> list[float]:
        self._count()
        return [LAUNCH_S[what]] * repeats

    def exchanges_s(self, exchanges: Sequence[Exchange], repeats: int) -> list[list[float]]:
        self._count()
        wire = [(2 if one.kind == "all_reduce" else 1) * one.size_bytes * (1 - 1 / one.ranks) for one in exchanges]
        return [[NCCL_START_S + each / LINK] * repeats for each in wire]

    def peer_copy_s(self, source: int, target: int, size_bytes: int, repeats: int) -> list[float]:
        self._count()
        return [5e-6 + size_bytes / LINK] * repeats

    def _count(self) -> None:
        self.asked += 1
        if self.asked > self.fails_after:
            raise KeyboardInterrupt

    def timeline(self, program: Program) -> Timeline:
        """Kernels in order in their streams, cores first come first served, bytes by the rule."""
        free, now_s, queues = SMS, START_S, [list(stream) for stream in program]
        times: Timeline = [[] for _ in program]
        last_s = [START_S + LEAD_S * (number > 0) for number in range(len(program))]
        running: list[Running] = []
        waiting = list(range(len(program)))
        while running or any(queues):
            for stream in [one for one in waiting if queues[one] and last_s[one] <= now_s + 1e-15]:
                kernel = queues[stream][0]
                pool_free = free if kernel.family != "device_copy" else 1
                if not pool_free:
                    continue
                queues[stream].pop(0)
                waiting.remove(stream)
                running.append(started(kernel, pool_free, stream))
                free -= running[-1].units
            rates = self.rates([one for one in running if one.waits_s <= 0.0])
            moving = [one for one in running if one.waits_s <= 0.0]
            speed = {id(one): rate for one, rate in zip(moving, rates, strict=True)}
            steps = [one.left / speed[id(one)] if one.waits_s <= 0.0 else one.waits_s for one in running]
            steps += [last_s[one] - now_s for one in waiting if queues[one] and last_s[one] > now_s + 1e-15]
            step_s = min(steps)
            now_s += step_s
            for one in running:
                if one.waits_s > 0.0:
                    one.waits_s = one.waits_s - step_s if one.waits_s > step_s * (1 + 1e-12) else 0.0
                else:
                    one.left -= speed[id(one)] * step_s
            for one in [one for one in running if one.waits_s <= 0.0 and one.left <= 1e-3]:
                running.remove(one)
                free += one.units
                times[one.stream].append((last_s[one.stream], now_s))
                last_s[one.stream] = now_s
                waiting.append(one.stream)
        return times


def started(kernel: Kernel, free: int, stream: int) -> Running:
    """What a kernel does on the cores that are free."""
    hbm_bytes = kernel.hbm_bytes(CHIP.l2.capacity.si)
    if kernel.family in ("copy_loop", "device_copy"):
        units = min(kernel["blocks"], free) if kernel.family == "copy_loop" else 0
        rate = LOOP_CORE * kernel["blocks"] if units else 0.8 * HBM * 2
        moved = kernel.moved_bytes
        limit = min(rate, L2, HBM * moved / hbm_bytes if hbm_bytes else L2)
        return Running(moved, hbm_bytes / moved, limit, units, stream, 1e-9)
    cost = cost_of(kernel.work(), CHIP, KERNELS)
    units = min(cost.want, free)
    from_hbm = min(cost.hbm_rate_bytes_per_s, HBM) * cost.onchip_bytes / hbm_bytes
    memory = min(units * cost.unit_rate_bytes_per_s, L2, from_hbm)
    moving_s, compute_s = cost.onchip_bytes / memory, cost.compute_s(units)
    whole_s = max(moving_s, compute_s) + cost.unoverlapped * min(moving_s, compute_s)
    return Running(cost.onchip_bytes, hbm_bytes / cost.onchip_bytes, cost.onchip_bytes / whole_s, units, stream,
                   cost.latency_s)  # fmt: skip


def max_min(running: list[Running]) -> list[float]:
    """The level that all may rise to, flow by flow: the lowest first, the rest shared among the others."""
    rates: dict[int, float] = {}
    left = {"hbm": HBM, "l2": L2}
    rising = list(range(len(running)))
    while rising:
        levels = {"l2": left["l2"] / len(rising)}
        crossing = [one for one in rising if running[one].hbm > 0]
        if crossing:
            levels["hbm"] = left["hbm"] / sum(running[one].hbm for one in crossing)
        full = min(levels, key=lambda name: levels[name])
        slow = [one for one in rising if running[one].limit <= levels[full]]
        stopped = [min(slow, key=lambda one: running[one].limit)] if slow else crossing if full == "hbm" else rising
        for one in list(stopped):
            rates[one] = min(running[one].limit, levels[full])
            left["hbm"] -= rates[one] * running[one].hbm
            left["l2"] -= rates[one]
            rising = [other for other in rising if other != one]
    return [rates[one] for one in range(len(running))]


def by_demand(running: list[Running]) -> list[float]:
    """Everything that crosses a full capacity is slowed by the same factor."""
    factors = [1.0] * len(running)
    for capacity, loads in ((HBM, [one.hbm for one in running]), (L2, [1.0] * len(running))):
        wanted = sum(one.limit * load for one, load in zip(running, loads, strict=True))
        if wanted > capacity:
            factors = [min(factor, capacity / wanted) if load else factor
                       for factor, load in zip(factors, loads, strict=True)]  # fmt: skip
    return [one.limit * factor for one, factor in zip(running, factors, strict=True)]


