"""Kernels outside the table of their family are named."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from simulator.die.coverage import outside, ranges
from simulator.model import library_kernels as lib
from tests.die.test_tiles import GEMM, SPLIT, kernel


def test_what_is_beyond_the_table_is_said() -> None:
    gemm = kernel(GEMM, "stream_gemm").model_copy(update={"covers": "m 1..32768, n 128..65536"})
    assert outside(lib.linear(16, 4096, 64), gemm) is None
    assert outside(lib.linear(65536, 64, 64), gemm) == "m = 65536, measured 1..32768; n = 64, measured 128..65536"


def test_attention_by_its_longest_request() -> None:
    covers = "sequences 1..256, queries 1..1, keys 2..131072, heads 1..96, kv_heads 1..8, sharing 2..16"
    family = kernel(SPLIT, "split_attention").model_copy(update={"covers": covers})
    assert outside(lib.generation_attention(((1, 4096), (1, 131072)), 32, 8, 128), family) is None
    assert outside(lib.generation_attention(((1, 8), (2, 200_000)), 32, 8, 128), family) == (
        "queries = 2, measured 1..1; keys = 200000, measured 2..131072")


def test_a_family_without_a_table_says_nothing() -> None:
    assert outside(lib.linear(1 << 30, 1, 1), kernel(GEMM, "stream_gemm")) is None


@pytest.mark.parametrize("text", ["m 1-4", "m 1..4,n 1..4", "", "m ..4"])
def test_other_text_is_refused(text: str) -> None:
    given = kernel(GEMM, "stream_gemm").model_dump()
    with pytest.raises(ValidationError, match="covers"):
        type(kernel(GEMM, "stream_gemm")).model_validate({**given, "covers": text})


def test_ranges() -> None:
    assert ranges("m 1..4, head_dim 64..256") == {"m": (1, 4), "head_dim": (64, 256)}
