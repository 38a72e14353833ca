"""What GPUs ask their hosts for: served as flags come, in whatever order they were launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.live.host import Inbox
from simulator.live.thread import Label
from simulator.model import ops
from simulator.program.rank import Rank
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Workload
from simulator.study.simulate import simulate
from tests.law.timeline_laws import check_timeline


@dataclass(frozen=True)
class Ask:
    """A request that is answered by a flag of its own."""

    flag: str

    @property
    def answer(self) -> str:
        return f"{self.flag} answered"


def _asking(npu: Rank, case: Case) -> None:
    """Two streams that each ask: the first one is launched first, and its flag comes last."""
    npu.program.captured = True
    for stream, kernels in (("slow", 40), ("fast", 1)):
        with npu.stream(stream):
            for _ in range(kernels):
                npu.launch(ops.copy(1e3), f"{stream} before")
            npu.set_flag(f"{stream} ask", stream, request=Ask(stream))
            npu.wait_flag(f"{stream} answer", f"{stream} answered")
            npu.launch(ops.copy(1e6), f"{stream} after")


def _serving(host: Any, case: Case) -> Any:
    expected: list[str] = []
    inbox = Inbox(host, lambda asked: expected.append(asked.flag))
    served = []
    while inbox:
        asked, seen, _ = yield from inbox.take()
        served.append(asked.flag)
        yield from host.set_flag(Label(f"answer {asked.flag}"), asked.answer, seen)
    assert expected == ["slow", "fast"]  # what is launched next is expected before its flag comes
    assert served == ["fast", "slow"]


def test_requests_are_served_in_the_order_in_which_flags_come() -> None:
    nothing: Any = lambda *_: {}  # noqa: E731
    workload = Workload(_asking, nothing, nothing, lambda _: [], lambda _, s: {"latency_ms": s * 1e3}, _serving)
    scenario = load_scenario("pplx:efa_ep16").variant(name="asking", cards=2, expected=(), workload=workload)
    result = simulate(scenario)
    check_timeline(result.columns)
    ends = dict(zip(result.columns["name"].tolist(), result.columns["end_ps"].tolist(), strict=True))
    assert ends["fast answer"] < ends["slow ask"] < ends["slow answer"]


def test_hosts_take_part_only_where_the_case_has_them() -> None:
    nothing: Any = lambda *_: {}  # noqa: E731

    def alone(npu: Rank, case: Case) -> None:
        npu.launch(ops.copy(1e6), "alone")

    def never(host: Any, case: Case) -> Any:
        raise AssertionError("there is no host in this case")
        yield

    workload = Workload(alone, nothing, live=never, has_hosts=lambda case: False)
    scenario = load_scenario("pplx:efa_ep16").variant(name="alone", cards=4, expected=(), workload=workload)
    assert simulate(scenario).header["classes"] == 1


def test_a_name_that_is_given_again_is_numbered() -> None:
    npu = Rank({"rank": 0}, {})
    assert [npu.new_name("step 3") for _ in range(3)] == ["step 3", "step 3 again 1", "step 3 again 2"]
    assert npu.new_name("step 4") == "step 4"


def test_a_request_is_part_of_what_makes_programs_differ_and_not_of_how_they_print() -> None:
    flags = []
    for rank in range(2):
        npu = Rank({"rank": rank}, {})
        npu.set_flag("ask", "flag", request=Ask(str(rank)))
        flags.append(npu.program)
    assert flags[0] != flags[1]
    assert str(flags[0]) == str(flags[1])
    assert repr(flags[0].tasks) == repr(flags[1].tasks)
