"""The library of services, step times of the batches of their engines, and the published signs of a deployment."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.model.micro_batch import MicroBatch
from simulator.serving.build import bytes_of_reused, tokens_of_cache
from simulator.serving.kept import Kept
from simulator.serving.library import load_service, service_names
from simulator.serving.loop import Loop
from simulator.serving.offered import drawn as offered
from simulator.serving.record import Served
from simulator.serving.requests import independent
from simulator.serving.settings import CacheSettings, Front, Instances, Scheduling, Service, Transfer
from simulator.serving.steps import StepTimes, step_seconds
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from simulator.study.simulate import simulate
from simulator.study.step import StepWords, step_of
from tests.serving.services import load_of

ONE = independent(np.zeros(1), np.ones(1, int), np.ones(1, int))
OWN = '''
from services.atlas_a2 import service as theirs

def mine():
    """Two instances that prefill."""
    service = theirs()
    return service.model_copy(update={"prefill": service.prefill.model_copy(update={"count": 2})})

def wrong():
    return 3
'''


@pytest.mark.parametrize("name", [name for name, _ in service_names()])
def test_every_service_of_the_library_has_engines_on_its_machine(name: str) -> None:
    service = load_service(name)
    assert service.name == name
    for one in filter(None, (service.engines, service.prefill)):
        assert one.step.name
        assert one.step.cards % one.step.data_parallel in (0, one.step.cards)
    assert service.gpus <= service.engines.step.machine_spec().dies


def test_a_service_of_a_users_own_file_is_one_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text(OWN, encoding="utf-8")
    assert load_service(f"{file}:mine").gpus == load_service("atlas_a2:service").gpus + 16
    for reference, what in ((f"{file}:wrong", "returns int, not a Service"), (f"{file}:myne", "did you mean"),
                            ("atlas_a2:servise", r"did you mean 'atlas_a2:service'"), ("atlas_a4:service", "atlas_a3"),
                            ("atlas_a2", "is no service: write FILE:FUNCTION")):  # fmt: skip
        with pytest.raises(InputError, match=what):
            load_service(reference)


# --- any batch of the published systems -------------------------------------------------------------------------------


def _plain(name: str, layers: int = 0) -> Scenario:
    changes = {"model.shapes.layers": str(layers)} if layers else {}
    return load_scenario(name).replace(changes).variant(expected=(), studies=())


def _decoding(*lengths: int, queries: int = 2) -> MicroBatch:
    return MicroBatch(0, tuple((queries, length) for length in lengths))


@pytest.mark.parametrize(("name", "ranks", "each"), [("cm384_decode:decode_even", 288, 48), ("a2_decode:even", 32, 72)])
def test_a_batch_given_rank_by_rank_takes_as_long_as_the_same_one_in_words(name: str, ranks: int, each: int) -> None:
    scenario = _plain(name, 5)
    cached = scenario.batch.cached_tokens  # type: ignore[attr-defined]
    given = [_decoding(*(cached,) * each)] * ranks
    assert scenario.data_parallel == ranks
    assert step_seconds(scenario, given) * 1e3 == pytest.approx(simulate(scenario).metrics["iteration_ms"], rel=1e-9)


@pytest.mark.parametrize("name", ["a3_prefill:sp_tp_sp_one_stream", "a3_prefill:dp", "a2_prefill:convert"])
def test_prompts_given_one_by_one_take_as_long_as_the_same_in_words_and_longer_behind_a_prefix(name: str) -> None:
    scenario = _plain(name, 5)
    lengths = scenario.batch.lengths  # type: ignore[attr-defined]
    given = MicroBatch(0, (), tuple((length, 0) for length in lengths), len(lengths))
    alone = step_seconds(scenario, [given])
    assert alone * 1e3 == pytest.approx(simulate(scenario).metrics["latency_ms"], rel=1e-9)
    behind = MicroBatch(0, (), tuple((length, 2048) for length in lengths), len(lengths))
    assert step_seconds(scenario, [behind]) > 1.02 * alone


@pytest.mark.parametrize(("name", "groups"), [
    ("a2_decode:even", [MicroBatch(0, ((1, 9),), ((9, 0),), 1)] * 32), ("a2_decode:even", [MicroBatch()] * 32),
    ("a3_prefill:dp", [MicroBatch(0, ((1, 9),))]), ("a3_prefill:dp", [MicroBatch(0, ((1, 9),), ((9, 0),), 1)])])
def test_a_batch_that_an_engine_cannot_have_is_refused(name: str, groups: list[MicroBatch]) -> None:
    with pytest.raises(InputError, match="alone: a batch of it has"):
        step_seconds(_plain(name), groups)


def test_three_layers_stand_for_all_where_every_rank_is_different() -> None:
    random = np.random.default_rng(5)
    groups = [_decoding(*random.integers(100, 8000, int(count)).tolist()) for count in random.integers(1, 20, 32)]
    for scenario in (_plain("a2_decode:even", 12), _plain("a2_decode:even", 12).replace({"knobs.streams": "false"})):
        some = step_seconds(scenario.replace({"knobs.layers": "3"}), groups)
        assert some == pytest.approx(step_seconds(scenario, groups), rel=1e-9)


def test_the_lattice_is_near_what_is_simulated_on_dies_and_on_instances_that_prefill() -> None:
    random = np.random.default_rng(2)
    decode = _plain("a2_decode:even", 6)
    times = StepTimes(decode, [1, 2, 4, *range(8, 73, 8)], 300_000, Kept(decode, None), {})
    for most in (3, 21, 60):
        groups = [MicroBatch(0, tuple((2, int(one)) for one in random.integers(2000, 3000, most)), (), 0,
                             2 * min(size for size in (4, 24, 64) if size >= most)) for _ in range(32)]  # fmt: skip
        assert times.seconds(load_of(groups)) == pytest.approx(times.exact(groups), rel=0.03)
    prefill = _plain("a2_prefill:convert", 6)
    times = StepTimes(prefill, [], 10**6, Kept(prefill, None), {})
    for lengths in ((16384,), (3000, 900, 5000), (700,)):
        groups = [MicroBatch(0, (), tuple((length, 0) for length in lengths), len(lengths))]
        assert times.seconds(load_of(groups)) == pytest.approx(times.exact(groups), rel=0.05)


# --- signs ------------------------------------------------------------------------------------------------------------


@cache
def _llama(mesh: str) -> Scenario:
    return step_of(StepWords("llama_3_1_8b", "dgx_h100", "vllm", mesh, "decode", {}))


def _engines(mesh: str) -> Instances:
    return Instances(step=_llama(mesh), scheduling=Scheduling(max_num_seqs=64),
                     cache=CacheSettings(tokens=200_000), capture=(8, 16, 32, 64))  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where step times are kept, so that services with the same engines simulate them once."""
    return tmp_path_factory.mktemp("steps")


def _served(service: Service, inputs: list[int], outputs: list[int], concurrency: int, folder: Path) -> Served:
    requests = independent(np.zeros(len(inputs)), np.array(inputs), np.array(outputs))
    return Loop(service, requests, concurrency=concurrency, folder=folder, steps="lattice").run()


def _rate(served: Served) -> float:
    return len(served.requests) / served.times["last_token"].max() * 1e12


def test_one_api_server_becomes_the_bottleneck_and_one_for_each_group_removes_it(folder: Path) -> None:
    rates = {}
    for servers in (1, 4):
        service = Service(title="", engines=_engines("dp=4"), front=Front(api_servers=servers))
        for concurrency in (2, 64):
            rates[servers, concurrency] = _rate(_served(service, [256] * 192, [16] * 192, concurrency, folder))
    assert rates[1, 2] == pytest.approx(rates[4, 2], rel=0.25)
    assert rates[1, 64] == pytest.approx(1 / 13.1e-3, rel=0.1)
    assert rates[4, 64] > 2 * rates[1, 64]


def test_routers_that_know_lengths_or_caches_beat_round_robin(folder: Path) -> None:
    inputs = [8000 if place % 4 == 0 else 200 for place in range(64)]  # every long one to the same engine in turn
    first_ps = {}
    for router in ("round_robin", "length_aware", "kv"):
        front = Front(api_servers=4, request_ms=0.1, router=router)
        engines = _engines("tp=1").model_copy(update={"count": 4})
        served = _served(Service(title="", engines=engines, front=front), inputs, [16] * 64, 32, folder)
        first_ps[router] = float((served.times["first_token"] - served.times["arrival"]).mean())
    assert first_ps["length_aware"] < 0.8 * first_ps["round_robin"]
    assert first_ps["kv"] < 0.8 * first_ps["round_robin"]


def test_placing_requests_by_length_shortens_the_steps_of_decode(folder: Path) -> None:
    inputs = [6000 if place % 4 == 0 else 500 for place in range(64)]
    decode_ps = {}
    for router in ("round_robin", "length_aware"):
        front = Front(api_servers=4, request_ms=0.1, router=router)
        served = _served(Service(title="", engines=_engines("dp=4"), front=front), inputs, [400] * 64, 64, folder)
        decode_ps[router] = float((served.times["last_token"] - served.times["first_token"]).mean())
    assert decode_ps["length_aware"] < decode_ps["round_robin"]


def test_keys_and_values_that_move_layer_by_layer_come_earlier_than_after_the_prefill(folder: Path) -> None:
    waits = {}
    for layer_by_layer in (True, False):
        service = Service(title="", engines=_engines("tp=2"), prefill=_engines("tp=2"), front=Front(request_ms=0.1),
                          transfer=Transfer(layer_by_layer=layer_by_layer, rate_gb_s=10))  # fmt: skip
        served = _served(service, [4000] * 24, [32] * 24, 4, folder)
        waits[layer_by_layer] = float((served.times["joined"] - served.times["prefilled"]).mean())
    assert waits[True] < 0.2 * waits[False]


def test_where_ranks_keep_parts_of_a_prompt_all_of_them_need_it_whole_to_reuse_it() -> None:
    """Latents of DeepSeek in BF16: 576 values on each of 61 layers."""
    whole = 2 * 576 * 61
    for name, kept in (("cloudmatrix384:no_context_cache", whole / 32), ("one_server:deepseek_r1", whole)):
        settings = load_service(name).engines
        assert tokens_of_cache(settings)[1] == kept
        assert bytes_of_reused(settings) == whole


def test_a_context_cache_shortens_the_prefill_of_prompts_that_share_their_start(folder: Path) -> None:
    """As published of CloudMatrix384; how much, `braid validate` says."""
    first_ps = {}
    for name in ("no_context_cache", "context_cache"):
        service = load_service(f"cloudmatrix384:{name}")
        load = service.load.model_copy(update={"requests": 192})
        served = Loop(service, offered(load, 0, service.engines.cache.block_size).requests, concurrency=64,
                      folder=folder).run()  # fmt: skip
        first_ps[name] = float((served.times["first_token"] - served.times["arrival"])[-64:].mean())
    assert first_ps["context_cache"] < 0.9 * first_ps["no_context_cache"]
    assert served.lower is not None
    assert served.lower.tokens["pool"].sum() == served.cached_tokens.sum() > 0.3 * served.requests.input_tokens.sum()


def test_a_cache_that_memory_cannot_hold_is_refused() -> None:
    service = load_service("one_server:llama_3_1_70b")
    engines = service.engines.model_copy(update={"cache": CacheSettings(tokens=10**8)})
    with pytest.raises(InputError, match=r"cache.tokens is 100,000,000: memory has room for [\d,]+ beside weights"):
        Loop(service.model_copy(update={"engines": engines}), ONE)


def test_what_does_not_fit_says_what_takes_the_memory() -> None:
    step = step_of(StepWords("llama_3_1_405b", "dgx_h100", "vllm", "tp=1", "decode", {}))
    with pytest.raises(InputError, match=r"for 0 tokens, .* these take [\d.]+ GiB of a rank, of which"):
        Loop(Service(title="too large", engines=Instances(step=step)), ONE)
