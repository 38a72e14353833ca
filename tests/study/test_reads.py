"""Settings that nothing reads: whoever sets one is told that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import BaseModel, ConfigDict

from simulator.model import ops
from simulator.program.rank import Rank
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Scenario, Workload
from simulator.study.simulate import simulate
from tests.conftest import Outcome

DP = "a3_prefill:dp"


class Inner(BaseModel):
    """A part inside a part."""

    model_config = ConfigDict(frozen=True)

    rows: int = 256
    spare: int = 0


class Knobs(BaseModel):
    """One knob that the program reads while it is recorded, one that only a metric reads, one that nothing reads."""

    model_config = ConfigDict(frozen=True)

    columns: int = 512
    tokens: int = 1
    colour: str = "red"
    inner: Inner = Inner()

    @property
    def elements(self) -> int:
        """Read by way of a property."""
        return self.columns * self.inner.rows


def program(npu: Rank, case: Case) -> None:
    """A product."""
    npu.launch(ops.gemm(case.knobs.inner.rows, case.knobs.elements // case.knobs.inner.rows, case.shapes.hidden), "a")


def scenario() -> Scenario:
    """The smallest scenario with these knobs."""
    workload = Workload(
        program=program,
        groups=lambda case: {"world": [tuple(range(case.ranks))]},
        coordinates=lambda case, rank: {},
        memory=lambda case: [],
        measures=lambda case, seconds: {"tokens_per_s": case.knobs.tokens / seconds},
    )
    return load_scenario(DP).variant(cards=1, knobs=Knobs(), workload=workload, expected=())


def unread(changes: dict[str, str]) -> list[str]:
    return simulate(scenario().replace(changes)).header["unread"]


def test_what_nothing_reads_is_named() -> None:
    assert unread({"knobs.colour": "blue", "knobs.columns": "1024"}) == ["knobs.colour"]
    assert unread({"knobs.inner.spare": "3", "knobs.inner.rows": "64"}) == ["knobs.inner.spare"]
    assert unread({"layout.expert_parallel": "2", "batch.requests": "3", "routing.skew": "1"}) == [
        "layout.expert_parallel", "batch.requests", "routing.skew"]


def test_what_only_a_metric_reads_is_read() -> None:
    assert unread({"knobs.tokens": "7"}) == []
    assert simulate(scenario().replace({"knobs.tokens": "7"})).metrics["tokens_per_s"] > 0


def test_numbers_of_the_machine_and_the_model_too() -> None:
    assert unread({"model.shapes.hidden": "1024", "model.shapes.layers": "4"}) == ["model.shapes.layers"]
    changes = {"machine.collectives.aiv.startup": "1 us", "machine.chip.hbm.peak": "3 TB/s",
               "machine.kernels.cann_recipes_2025.gemm_int8.floor": "1 us", "machine.fabric.supernode.latency": "9 us"}
    assert unread(changes) == ["machine.collectives.aiv.startup", "machine.fabric.supernode.latency"]


def test_whole_files_and_sizes_are_always_read() -> None:
    changes = {"cards": "2", "machine": "cloudmatrix384", "kernels": "cann_decode_2025", "model": "deepseek_r1"}
    assert unread(changes) == []


def test_a_number_that_another_one_follows_from_is_read() -> None:
    older = {"machine.generations.trtllm_2025.latency_factor": "1.5", "model.shapes.layers": "4"}
    assert simulate(load_scenario("trt_min_latency:base").replace(older)).header["unread"] == []


def test_a_look_at_the_modules_of_a_model_is_one_at_all_its_numbers() -> None:
    brief = {"batch.cached_tokens": "2048", "batch.samples": "2", "batch.requests": "8"}
    fewer = {**brief, "model.shapes.layers": "4", "model.shapes.head_dim": "64"}
    few = load_scenario("flow_mla:qwen3_dp").replace(fewer)
    assert simulate(few).header["unread"] == []
    assert simulate(few).metrics == simulate(few.variant(changes={})).metrics


@pytest.mark.parametrize(("name", "changes"), [
    (DP, {"batch.requests": "32", "knobs.engine": "aiv", "model.shapes.layers": "4", "machine.chip.l2.rate": "3 TB/s"}),
    ("pplx:efa_ep16", {"knobs.private_tokens": "16", "batch.per_rank": "64", "machine.proxy.poll": "1 us"}),
])
def test_watching_changes_no_result(name: str, changes: dict[str, str]) -> None:
    changed = load_scenario(name).replace(changes)
    assert simulate(changed).metrics == simulate(changed.variant(changes={})).metrics


DENSE = {"machine": "dgx_h100", "model": "llama_3_1_70b", "kernels": "vllm", "cards": "4", "layout.tp": "4",
         "model.shapes.layers": "2", "batch.requests": "8"}  # fmt: skip


def test_how_tokens_reach_experts_makes_no_difference_to_a_model_without() -> None:
    settings = {"knobs.exchange": "deepep_ll", "knobs.exchange_engine": "nccl", "knobs.dispatch_dtype": "bf16",
                "routing.skew": "0.3"}  # fmt: skip
    dense = load_scenario("transformer:decode").replace(DENSE)
    result = simulate(dense.replace(settings))
    assert result.header["unread"] == list(settings)
    assert result.metrics == simulate(dense).metrics


def test_run_says_so_in_its_header(braid: Callable[..., Outcome]) -> None:
    small = ("--set", "model.shapes.layers=5")
    done = braid("run", DP, "--set", "knobs.micro_batches=1", "--set", "batch.requests=32", *small)
    assert "changed: knobs.micro_batches = 1 (without effect: nothing in this run reads it)" in done.out
    assert "changed: batch.requests = 32\n" in done.out
    as_json = braid("run", DP, "--set", "knobs.micro_batches=1", *small, "--json")
    assert as_json.json
    assert as_json.err == "warning: knobs.micro_batches has no effect on a3_prefill:dp: nothing in this run reads it\n"


def test_a_sweep_over_what_nothing_reads_says_so(braid: Callable[..., Outcome]) -> None:
    done = braid("sweep", DP, "knobs.micro_batches", "1", "2", "--set", "model.shapes.layers=5")
    assert done.code == 0
    assert "knobs.micro_batches has no effect on a3_prefill:dp" in done.err
    assert not braid("sweep", DP, "batch.requests", "32", "--set", "model.shapes.layers=5").err


def test_a_ladder_says_what_no_step_reads(braid: Callable[..., Outcome]) -> None:
    small = ("--set", "model.shapes.layers=4")
    done = braid("ladder", "trt_min_latency:base", *small, "--set", "machine.chip.clock=1 GHz")
    assert done.err.count("warning:") == 1, done
    assert "machine.chip.clock" in done.err, done
    assert not braid("ladder", "trt_min_latency:base", *small).err
