"""Small scenarios of what-ifs, on a machine whose times can be worked out by hand: 1 us, and 10 us for each MB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulator.program.rank import Rank
from simulator.study.scenario import LadderStep, Layout, Part, Scenario, Workload
from tests.replay.small import passes_mb

TINY = str(Path(__file__).parents[1] / "data" / "tiny.toml")
US = 10**6


class Knobs(Part):
    """Two ways of having the second kernel for nothing, and a third that is off."""

    beside: bool = True
    left_out: bool = True
    slower: bool = False


def scenario(program: Callable[[Rank, Any], None], cards: int = 1, ladder: tuple[LadderStep, ...] = ()) -> Scenario:
    """One that runs a program on the tiny machine."""
    return Scenario(title="small", machine=TINY, model="deepseek_r1", kernels="round", cards=cards, batch=Part(),
                    layout=Layout(), knobs=Knobs(), workload=Workload(program=program), ladder=ladder)


def serial(npu: Rank, case: Any) -> None:
    """Kernels and an exchange, one after the other."""
    npu.launch(passes_mb(10), "first.a")
    npu.launch(passes_mb(2), "second")
    npu.group("world").all_to_all("move", 100_000, "dma")
    npu.launch(passes_mb(3), "first.b")


def contending(npu: Rank, case: Any) -> None:
    """Two streams with half the cores each, which share HBM: the longer one takes 61 us for its 4 MB instead of 41."""
    npu.confine("other", {"vector": 4})
    npu.launch(passes_mb(4), "long")
    with npu.stream("other"):
        npu.launch(passes_mb(2), "short")


def switched(npu: Rank, case: Any) -> None:
    """A kernel of 21 us that either knob takes off the path, and one of 31 us that a third adds."""
    npu.launch(passes_mb(10), "always")
    if not case.knobs.left_out and not case.knobs.beside:
        npu.launch(passes_mb(2), "sometimes")
    if case.knobs.slower:
        npu.launch(passes_mb(3), "more")
