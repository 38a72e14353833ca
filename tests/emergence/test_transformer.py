"""Any transformer on any mesh: signs and laws that nobody coded, on models and machines that no paper has."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.program.task import Collective
from simulator.study.library import load_scenario
from simulator.study.simulate import Result, prepare, simulate

DENSE = {"model": "llama_3_1_70b", "model.shapes.layers": "4"}
MIXED = {"model": "qwen3_235b", "model.shapes.layers": "4"}
SPREAD = MIXED | {"layout.tp": "1", "layout.dp": "8", "layout.ep": "8", "knobs.exchange": "all_to_all"}
PROMPTS = {"batch.requests": "16", "batch.context": "8192"}


@cache
def _run(phase: str, changes: tuple[tuple[str, str], ...]) -> Result:
    return simulate(load_scenario(f"transformer:{phase}").replace(dict(changes)))


def run(phase: str, **changes: str) -> Result:
    return _run(phase, tuple(sorted({key.replace("__", "."): text for key, text in changes.items()}.items())))


def ms(phase: str, base: dict[str, str], **changes: object) -> float:
    named = {key.replace("__", "."): str(value) for key, value in changes.items()}
    return run(phase, **base, **named).makespan_ps / 1e9  # type: ignore[arg-type]


# --- in the right direction, without jumps ----------------------------------------------------------------------------


def test_more_requests_take_longer_and_never_jump() -> None:
    times = [ms("decode", DENSE, batch__requests=count) for count in (*range(1, 18), 31, 32, 33, 63, 64, 65)]
    assert all(later >= 0.999 * earlier for earlier, later in pairwise(times))
    neighbours = [(times[place], times[place + 1]) for place in (*range(16), 17, 18, 20, 21)]
    assert max(later / earlier for earlier, later in neighbours) < 1.06


@pytest.mark.parametrize("changes", [
    SPREAD | {"model": "deepseek_r1", "batch.requests": "7", "batch.drafts": "1"},
    SPREAD | {"model": "deepseek_r1", "batch.phase": "mixed", "batch.prompt": "64", "batch.requests": "3",
              "batch.drafts": "1"},
    DENSE | {"layout.tp": "1", "layout.dp": "8", "layout.head": "8", "batch.requests": "3"},
    DENSE | {"layout.tp": "1", "layout.dp": "8", "layout.head": "8", "layout.embedding": "8", "batch.requests": "9"},
    DENSE | {"layout.tp": "1", "layout.dp": "8", "layout.head": "8", "batch.phase": "prefill", "batch.requests": "9",
             "batch.context": "100", "batch.chunk": "150"},
], ids=str)  # fmt: skip
def test_groups_with_fewer_requests_take_part_in_what_all_do(changes: dict[str, str]) -> None:
    assert run("decode", **changes, machine="dgx_h200").makespan_ps > 0


def test_a_shared_expert_that_a_group_splits_is_summed_where_tokens_are() -> None:
    base = SPREAD | {"model": "llama_4_scout", "layout.tp": "2", "layout.dp": "4", "knobs.schedule": "one_stream"}
    split, whole = (run("decode", **base, **more) for more in ({"layout.shared": "2"}, {}))
    assert "shared.reduce_scatter" in set(split.columns["name"].tolist())
    assert "shared.reduce_scatter" not in set(whole.columns["name"].tolist())


def test_mixed_without_prompts_is_decode_on_any_number_of_stages() -> None:
    for stages in ({}, {"layout.tp": "4", "layout.pp": "2"}):
        decode, mixed = (run("decode", **DENSE, **stages, **{"batch.phase": phase, "knobs.graph": "always"})
                         for phase in ("decode", "mixed"))  # fmt: skip
        assert mixed.metrics["tpot_ms"] == pytest.approx(decode.metrics["tpot_ms"], rel=0.005)


def test_what_pads_a_captured_graph_draws_no_experts() -> None:
    """Nine requests on eight groups are padded to two each; the seven that pad are nobody's."""
    for count in (8, 9, 16):
        result = run("decode", **SPREAD, **{"batch.requests": str(count), "routing.skew": "0.0"})
        rows = sum(sum(task.work.rows) for program in result.world.programs for task in program.tasks
                   if task.name == "experts.gate_up" and task.layer == 0)  # fmt: skip
        assert rows == 8 * count
    eight, nine = (ms("decode", SPREAD, batch__requests=count) for count in (8, 9))
    assert eight < nine < 1.05 * eight


def test_longer_caches_take_longer() -> None:
    times = [ms("decode", DENSE, batch__requests=32, batch__context=tokens) for tokens in (512, 2048, 8192, 32768)]
    assert times == sorted(times)
    assert times[3] / times[2] < 4.0


def test_faster_memory_helps_decode_and_a_slower_host_harms_eager_launches() -> None:
    plain = ms("decode", DENSE)
    assert ms("decode", DENSE, **{"machine.chip.hbm.peak": "4.8 TB/s"}) < plain
    eager = ms("decode", DENSE, knobs__graph="never")
    assert eager > plain
    assert ms("decode", DENSE, knobs__graph="never", **{"machine.host.launch_eager": "40 us"}) > eager


def test_more_ranks_are_faster_and_never_as_many_times() -> None:
    times = {tp: ms("decode", DENSE, layout__tp=tp, cards=tp, batch__requests=16) for tp in (1, 2, 4, 8)}
    assert times[1] > times[2] > times[4] > times[8] > times[1] / 8


# --- the same work, wherever it is done -------------------------------------------------------------------------------


def flops(result: Result, *kinds: str) -> float:
    """Of all ranks."""
    return sum(work.flops for program in result.world.programs for _, work in program.works()
               if isinstance(work, Work) and work.kind in kinds)


@pytest.mark.parametrize("changes", [
    {"knobs.schedule": "shared_beside"}, {"knobs.schedule": "two_batches"}, {"knobs.schedule": "single_batch"},
    {"knobs.schedule": "side_by_side"},
    {"knobs.exchange": "all_gather"}, {"knobs.exchange": "put_collect"}, {"layout.tp": "2", "layout.dp": "4"},
], ids=str)  # fmt: skip
def test_schedules_and_exchanges_move_work_and_make_none(changes: dict[str, str]) -> None:
    base, other = (run("decode", **SPREAD | {"batch.requests": "512"} | more) for more in ({}, changes))
    assert flops(other, "attention") == pytest.approx(flops(base, "attention"))
    assert flops(other, "grouped_gemm") == pytest.approx(flops(base, "grouped_gemm"))


def test_a_stage_of_a_pipeline_has_a_part_of_the_layers() -> None:
    whole, piped = run("prefill", **DENSE), run("prefill", **DENSE, **{"layout.tp": "4", "layout.pp": "2"})
    assert flops(piped, "attention") == pytest.approx(flops(whole, "attention"), rel=0.01)
    sent = [work for program in piped.world.programs for _, work in program.works()
            if isinstance(work, Collective) and work.kind in ("send", "recv")]
    assert len(sent) == 2 * 8, "two pieces of the prompt, from each rank of the first stage to one of the second"


def test_chunks_of_a_prompt_attend_to_as_much_as_the_prompt() -> None:
    whole, chunks = run("prefill", **DENSE), run("prefill", **DENSE, **{"batch.chunk": "1024"})
    assert flops(chunks, "attention") == pytest.approx(flops(whole, "attention"))
    assert chunks.makespan_ps > whole.makespan_ps


# --- overlap ----------------------------------------------------------------------------------------------------------


def test_two_batches_hide_an_exchange_of_many_tokens() -> None:
    schedules = ("one_stream", "two_batches")
    one, two = (run("prefill", **SPREAD, **PROMPTS, **{"knobs.schedule": name}) for name in schedules)
    assert two.metrics["ttft_ms"] < one.metrics["ttft_ms"]
    assert two.metrics["exposed_comm_ms"] < 0.5 * one.metrics["exposed_comm_ms"]


def test_two_batches_of_few_tokens_read_the_weights_twice() -> None:
    schedules = ("one_stream", "two_batches")
    one, two = (ms("decode", SPREAD, batch__requests=16, knobs__schedule=name) for name in schedules)
    assert two > one


def test_nothing_is_left_to_hide_where_links_take_no_time() -> None:
    """The gain of two batches is that of hidden communication."""
    fast = {"knobs.engine": "nccl", "machine.collectives.nccl.startup": "0 us"}
    fast |= {f"machine.collectives.nccl.protocols.{name}.rate": "100 TB/s" for name in (
        "all_to_all_direct_ll", "all_to_all_direct_simple")}
    slow = {name: ms("prefill", SPREAD | PROMPTS, knobs__schedule=name) for name in ("one_stream", "two_batches")}
    free = {name: ms("prefill", SPREAD | PROMPTS | fast | {"machine.fabric.slow": ""}, knobs__schedule=name)
            for name in ("one_stream", "two_batches")}
    assert slow["one_stream"] / slow["two_batches"] > free["one_stream"] / free["two_batches"]


def test_a_shared_expert_beside_the_routed_ones_takes_no_time_of_its_own() -> None:
    base = {"model": "deepseek_r1", "machine": "dgx_b200", "kernels": "sglang", "model.shapes.layers": "8",
            "routing.skew": "none"}  # fmt: skip
    line, beside = (run("decode", **base, **{"knobs.schedule": name}) for name in ("one_stream", "shared_beside"))
    assert flops(beside, "gemm") == flops(line, "gemm")
    shared = sum(int(end - start) for name, rank, start, end in zip(
        *(line.columns[key] for key in ("name", "rank", "start_ps", "end_ps")), strict=True)
        if rank == 0 and str(name).startswith("shared."))  # fmt: skip
    gained = line.makespan_ps - beside.makespan_ps
    assert 0.25 * shared < gained <= shared, "they share memory with the routed ones"


def test_drafts_pay_if_they_are_accepted() -> None:
    base = DENSE | {"batch.requests": "4"}
    plain = run("decode", **base).metrics["tpot_ms"]
    good, bad = (run("decode", **base, **{"batch.drafts": "2", "batch.acceptance": text}).metrics["tpot_ms"]
                 for text in ("1.0", "0.0"))
    assert good < plain < bad


def test_context_parallelism_pays_for_long_caches_alone() -> None:
    base = MIXED | {"layout.tp": "4", "cards": "8", "batch.requests": "8"}
    wider, split = {"layout.tp": "8"}, {"layout.cp": "2"}

    def gain(context: str) -> float:
        long = base | {"batch.context": context}
        return ms("decode", long | wider) / ms("decode", long | split)

    assert gain("65536") > gain("1024")


def test_a_prompt_beside_decode_costs_less_than_after_it() -> None:
    base = DENSE | {"batch.requests": "32", "batch.context": "2048"}
    decode, mixed = ms("decode", base), ms("mixed", base, batch__prompt=512)
    prompt = ms("prefill", DENSE, batch__requests=1, batch__context=512)
    assert decode < mixed < decode + prompt


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "words"), [
    (DENSE | {"layout.tp": "3", "cards": "3"}, "tp=3 does not divide the 64 heads of llama_3_1_70b"),
    (DENSE | {"cards": "4"}, "mesh tp=8 has 8 ranks, but cards=4 are 4"),
    (SPREAD | {"knobs.exchange": "all_reduce"}, "exchange all_reduce: dp=8 groups have tokens of their own"),
    (MIXED | {"layout.ep": "4", "knobs.exchange": "all_to_all"}, "ep=4 leaves 2 ranks to split each expert"),
    (SPREAD | {"knobs.schedule": "two_batches", "batch.requests": "8"}, "2 micro-batches need 2 requests"),
    (DENSE | {"knobs.precision": "all=fp7"}, "precision.all: got 'fp7': must be one of"),
    (DENSE | {"knobs.precision": "fp8"}, "write MODULE=DTYPE, as experts=mxfp4"),
    (MIXED | {"batch.drafts": "1"}, "has no draft layer of its own"),
], ids=lambda one: one if isinstance(one, str) else "")  # fmt: skip
def test_what_cannot_be_is_refused_in_words(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError) as refused:
        prepare(load_scenario("transformer:decode").replace(changes))
    assert words in str(refused.value)
