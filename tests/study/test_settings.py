"""Text of a command line as values of settings: what is no JSON is text, which its key refuses."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.study.library import load_scenario


@pytest.mark.parametrize("text", ["1" * 5000, "[" * 5000, "[1", "nan", "{"])
def test_what_no_value_can_be_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(InputError, match=r"^--set batch.size: got '"):
        load_scenario("contention:staging").replace({"batch.size": text})
