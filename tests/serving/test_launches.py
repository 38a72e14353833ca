"""How services were launched: what scripts of a campaign set, and what a point says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import InputError
from simulator.serving.launches import DEFAULTS, HOSTS, TOKENS, launch_settings, merged, of_server, of_step

POINT: dict[str, Any] = {"source_kind": "inferencex", "family": "llama-70b", "fw_key": "vllm", "gpu_key": "H200",
                         "date": "2025-10-29"}  # fmt: skip


def settings_of(point: dict[str, Any]) -> dict[str, str]:
    """Those of a step."""
    return of_step(launch_settings(point))


def test_scripts_of_a_campaign_say_more_than_its_table() -> None:
    assert settings_of(POINT) == {"knobs.precision": "kv=fp8", "knobs.norm_in_all_reduce": "false"}
    assert settings_of(POINT | {"source_kind": "ours"}) == {}


def test_the_server_is_as_its_framework_has_it_where_the_script_says_nothing() -> None:
    ours = POINT | {"source_kind": "ours", "fw_key": "trtllm"}
    assert launch_settings(ours) == {**DEFAULTS["trtllm"], **HOSTS["trtllm"]}
    assert launch_settings(POINT | {"fw_key": "trtllm"})[TOKENS] == "16384"
    assert of_server({"cache.tokens": "5", "scheduling.max_num_seqs": "7"}, "cache") == {"tokens": "5"}
    inner = of_server({"scheduling.attention_dp_config.timeout_iters": "60", "scheduling.policy": "fcfs"}, "scheduling")
    assert inner == {"attention_dp_config": {"timeout_iters": "60"}, "policy": "fcfs"}


@pytest.mark.parametrize(("changes", "waits"), [
    ({}, True), ({"layout": {"tp": 8}}, False), ({"isl": 8192}, False), ({"fw_key": "vllm"}, False),
], ids=str)  # fmt: skip
def test_a_script_may_depend_on_lengths_and_ranks(changes: dict[str, Any], waits: bool) -> None:
    point = POINT | {"fw_key": "trtllm", "isl": 1024, "osl": 1024, "layout": {"tp": 4}} | changes
    assert ("scheduling.batch_wait_timeout_iters" in launch_settings(point)) == waits


@pytest.mark.parametrize("changes", [{"gpu_key": "B200"}, {"fw_key": "trtllm"}, {"date": "2026-01-05"}], ids=str)
def test_a_script_counts_for_its_gpus_frameworks_and_dates(changes: dict[str, str]) -> None:
    assert settings_of(POINT | changes) == {"knobs.precision": "kv=fp8"}


def test_what_a_point_says_of_itself_is_added() -> None:
    own = {"knobs.precision": "attention=bf16", "knobs.programmatic_launch": True, "knobs.prefetch_mb": 4}
    assert settings_of(POINT | {"source_kind": "ours", "settings": own}) == {
        "knobs.precision": "attention=bf16", "knobs.programmatic_launch": "true", "knobs.prefetch_mb": "4"}
    assert launch_settings(POINT | {"settings": own})["knobs.precision"] == "kv=fp8,attention=bf16"


def test_precisions_of_different_modules_stand_beside_each_other() -> None:
    one = {"knobs.precision": "all=fp8", "batch.requests": "4"}
    assert merged(one, {"knobs.precision": "kv=fp8"}) == {"knobs.precision": "all=fp8,kv=fp8", "batch.requests": "4"}
    assert merged(one, {}) == one
    assert merged({}, {}) == {}


def test_a_framework_has_its_name_in_any_case_and_a_point_without_a_date_is_of_no_time() -> None:
    named = {key: value for key, value in POINT.items() if key != "fw_key"} | {"framework": "vLLM"}
    assert launch_settings(named)["knobs.norm_in_all_reduce"] == "false"
    assert "knobs.norm_in_all_reduce" not in launch_settings(POINT | {"date": None})


def test_lists_are_words_and_nothing_is_nothing() -> None:
    own = {"knobs.precision": ["attention=bf16", "kv=fp8"], "knobs.cores": None}
    assert launch_settings({"settings": own}) == {"knobs.precision": "attention=bf16,kv=fp8"}


@pytest.mark.parametrize("key", ["layout.tp", "batch.requests", "model", "kernels"])
def test_what_follows_from_the_point_is_no_setting_of_it(key: str) -> None:
    with pytest.raises(InputError, match=f"settings: {key}: a point's own are those of knobs., routing., machine., "):
        launch_settings({"settings": {key: 4}})


def test_settings_that_are_none() -> None:
    with pytest.raises(InputError, match="settings: got 'kv=fp8': an object such as"):
        launch_settings(POINT | {"settings": "kv=fp8"})


@pytest.mark.parametrize(("changes", "steps"), [
    ({"concurrency": 4}, "10"), ({"concurrency": 16}, "30"), ({"concurrency": 4, "gpu_key": "H200"}, None),
    ({"concurrency": 4, "fw_key": "vllm"}, None), ({"concurrency": "max"}, None), ({"concurrency": None}, None),
    ({"concurrency": 4, "mode": "disagg"}, None),
], ids=str)  # fmt: skip
def test_a_script_may_depend_on_requests_in_flight(changes: dict[str, Any], steps: str | None) -> None:
    point = POINT | {"family": "deepseek-v3arch", "fw_key": "sglang", "gpu_key": "B200"} | changes
    assert launch_settings(point).get("scheduling.scheduler_recv_interval") == steps


def test_ranks_wait_for_each_other_where_a_script_says_so() -> None:
    point = POINT | {"family": "deepseek-v3arch", "fw_key": "trtllm"}
    config = of_server(launch_settings(point), "scheduling")["attention_dp_config"]
    assert config == {"enable_balance": "true", "timeout_iters": "60", "batching_wait_iters": "0"}
    assert "attention_dp_config" not in of_server(launch_settings(POINT), "scheduling")
