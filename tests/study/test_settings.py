"""Text of a command line as values of settings: what is no JSON is text, which its key refuses."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.serving.library import load_service
from simulator.serving.settings import changed
from simulator.study.library import load_scenario


@pytest.mark.parametrize("text", ["1" * 5000, "[" * 5000, "[1", "nan", "{", "1" + "0" * 400, "1e16", "-1e300"])
def test_what_no_value_can_be_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(InputError, match=r"^--set batch.size: got '"):
        load_scenario("contention:staging").replace({"batch.size": text})


@pytest.mark.parametrize(("key", "text"), [
    ("engines.count", "11000000000000"), ("front.api_servers", "1000000000000"), ("engines.capture", "1000000"),
    ("load.output_tokens", "1" + "0" * 30), ("engines.scheduling.max_num_seqs", "1" + "0" * 400),
    ("pool.size_gib", "inf"), ("front.input_token_us", "0" + "9" * 5000), ("front.input_token_us", "1.7e308"),
    ("load.prefixes", "10000000"), ("load.turns", "10000000"),
])
def test_what_no_service_can_have_is_refused_by_its_key(key: str, text: str) -> None:
    with pytest.raises(InputError, match=rf"^--set {key}: got '{text}': .*(1000000|65536|e\+?15)"):
        changed(load_service("one_server:llama_3_1_70b"), {key: text})


def test_infinity_stays_where_it_means_something() -> None:
    assert changed(load_service("one_server:llama_3_1_70b"), {"load.burstiness": "inf"}).load.burstiness == float("inf")
