"""Effects that nobody coded, in prefill on Atlas A2."""

from __future__ import annotations

from tests.published.runs import run

TWO, CONVERT, SMALL = "a2_prefill:micro_batch", "a2_prefill:convert", {"model__shapes__layers": "8"}


def rate(name: str, **changes: str) -> float:
    return run(name, **{**SMALL, **changes}).metrics["throughput_tok_s_per_card"]


def test_whole_prompts_lie_on_a_card_so_few_of_them_make_no_second_micro_batch() -> None:
    """8 prompts leave half of 16 cards without attention to do, 16 leave nothing to hide the exchange under."""
    rates = [rate(TWO, batch__requests=requests) for requests in ("8", "16", "32")]
    assert rates[0] < 0.7 * rates[1] < 0.7 * 0.8 * rates[2]
    exposed = [run(TWO, **SMALL, batch__requests=requests).metrics["exposed_comm_ms"] for requests in ("16", "32")]
    assert exposed[0] > 2 * exposed[1]


def test_one_long_prompt_wants_its_heads_split_not_its_card_alone() -> None:
    one = {"batch__requests": "1", "batch__prompt_tokens": "16384"}
    assert rate(CONVERT, **one) > 5 * rate(TWO, **one)
    assert rate(TWO) > 1.5 * rate(CONVERT, batch__requests="32")


def test_longer_prompts_cost_attention_however_they_are_split() -> None:
    for name, few, many in ((CONVERT, ("2", "8192"), ("16", "1024")), (TWO, ("32", "4096"), ("128", "1024"))):
        long, short = (run(name, **SMALL, batch__requests=requests, batch__prompt_tokens=tokens).metrics["attention_ms"]
                       for requests, tokens in (few, many))  # fmt: skip
        assert long > 2 * short


def test_uneven_prompts_make_cards_wait() -> None:
    uneven = run(TWO, **SMALL, batch__prompt_lengths=str([4096] * 8 + [1024] * 32))
    assert uneven.metrics["waiting_comm_ms"] > 20 * run(TWO, **SMALL).metrics["waiting_comm_ms"] + 1


def test_a_slower_clock_slows_cores_and_their_ports_alike() -> None:
    times = [run(CONVERT, **SMALL, machine=f"atlas_a2{die}").metrics["gemm_ms"] for die in ("", "_313t", "_280t")]
    assert 1.1 * times[0] < 1.06 * times[1] < times[2]
