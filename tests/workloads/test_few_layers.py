"""Few layers stand for all: the law is the run of the whole model."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.transformer import Dense, Grouped, Layer
from simulator.study.library import load_scenario
from simulator.study.simulate import Result, prepare, simulate
from workloads.few_layers import few_layers

EVEN = {"routing.skew": "none"}
H200 = EVEN | {"machine": "dgx_h200"}
SPREAD = H200 | {"model": "qwen3_235b", "layout.tp": "1", "layout.dp": "8", "layout.ep": "8", "batch.requests": "64",
                 "knobs.exchange": "all_to_all"}  # fmt: skip


def run(phase: str, changes: dict[str, str]) -> Result:
    return simulate(load_scenario(f"transformer:{phase}").replace(changes))


def step_ms(result: Result) -> float:
    return result.metrics["ttft_ms" if "ttft_ms" in result.metrics else "iteration_ms"]


# --- equal to the whole -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("phase", "changes"), [
    ("decode", {"model": "llama_3_1_70b"}),
    ("prefill", {"model": "llama_3_1_70b"}),
    ("mixed", {"model": "llama_3_1_70b"}),
    ("decode", {"model": "llama_3_1_70b", "knobs.graph": "never", "machine.host.launch_eager": "30 us"}),
    ("decode", {"model": "llama_3_1_70b", "knobs.schedule": "two_batches"}),
    ("decode", {"model": "llama_3_1_70b", "batch.drafts": "2"}),
    ("decode", H200 | {"model": "qwen3_235b"}),
    ("prefill", SPREAD | {"knobs.schedule": "two_batches"}),
    ("decode", SPREAD | {"knobs.schedule": "side_by_side", "batch.spread": "0.3"}),
], ids=str)  # fmt: skip
def test_layers_that_are_alike_take_as_long_as_all_of_them(phase: str, changes: dict[str, str]) -> None:
    whole, few = run(phase, changes), run(phase, changes | {"knobs.layers": "4"})
    assert step_ms(few) == pytest.approx(step_ms(whole), rel=1e-6)
    assert few.metrics["layers_simulated"] == 4
    assert few.ledger.used_bytes == whole.ledger.used_bytes
    for name in ("throughput_tok_s", "throughput_tok_s_per_card"):
        assert few.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-6)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("changes", [
    EVEN | {"model": "gpt_oss_120b"},
    {"model": "gemma_3_27b", "layout.tp": "2", "cards": "2"},
    H200 | {"model": "deepseek_r1"},
    H200 | {"model": "llama_4_scout"},
    H200 | {"model": "glm_4_5", "knobs.precision": "all=fp8", "knobs.schedule": "single_batch"},
], ids=lambda one: one["model"])  # fmt: skip
def test_windows_and_dense_layers_among_others_are_within_half_a_percent(phase: str, changes: dict[str, str]) -> None:
    whole, few = run(phase, changes), run(phase, changes | {"knobs.layers": "1"})
    assert few.metrics["layers_simulated"] <= 10
    assert step_ms(few) == pytest.approx(step_ms(whole), rel=0.005)


def test_at_least_as_many_layers_as_asked_for_and_never_more_than_all() -> None:
    times = {}
    for layers in ("3", "9", "80", "500"):
        result = run("decode", {"knobs.layers": layers})
        times[result.metrics["layers_simulated"]] = step_ms(result)
    assert list(times) == [3, 9, 80]
    assert max(times.values()) == pytest.approx(min(times.values()), rel=1e-6)


def test_without_a_timeline_nothing_is_said_of_the_whole() -> None:
    result = simulate(load_scenario("transformer:decode").replace({"knobs.layers": "4"}), record=False)
    assert not {"tpot_ms", "iteration_ms", "throughput_tok_s"} & set(result.metrics)


# --- which layers -----------------------------------------------------------------------------------------------------

KINDS = [Layer(Grouped(8, 8, 64, window), Dense(256)) for window in (0, 128, 512)]


def places(layers: tuple[Layer, ...]) -> list[tuple[Layer | None, Layer, Layer | None]]:
    return list(zip((None, *layers), layers, (*layers[1:], None), strict=False))


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=24).map(tuple), st.integers(1, 12))
def test_few_and_left_out_are_all_with_the_neighbours_they_have(layers: tuple[Layer, ...], least: int) -> None:
    few = few_layers(layers, least)
    counted = Counter(places(few.layers))
    for number, count in few.left_out:
        counted[places(few.layers)[number]] += count
    assert counted == Counter(places(layers))
    assert min(least, len(layers)) <= len(few.layers)
    assert (few.layers[0], few.layers[-1]) == (layers[0], layers[-1])


@pytest.mark.parametrize(("model", "count"), [("llama_3_1_405b", 4), ("deepseek_r1", 6), ("gpt_oss_120b", 4),
                                              ("gemma_3_27b", 10), ("llama_4_maverick", 10)])  # fmt: skip
def test_few_are_few(model: str, count: int) -> None:
    assert len(few_layers(load_transformer(model).layers, 1).layers) <= count


# --- where layers need not be alike -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("phase", "changes", "words"), [
    ("decode", {"layout.tp": "4", "layout.pp": "2"}, "knobs.layers: layout.pp is 2: stages have layers of their own"),
    ("decode", {"model": "gpt_oss_120b"}, "knobs.layers: routing.skew is 0.0: every layer draws experts of its own"),
    ("prefill", {"batch.chunk": "1024"}, "knobs.layers: batch.chunk is 1024: a prompt takes several passes"),
], ids=["pipeline", "draws", "chunks"])  # fmt: skip
def test_layers_that_differ_are_refused(phase: str, changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError) as refused:
        prepare(load_scenario(f"transformer:{phase}").replace({"knobs.layers": "4"} | changes))
    assert words in str(refused.value)
