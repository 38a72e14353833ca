"""CloudMatrix384, 16 cards = 32 dies: prefill of DeepSeek-R1, like Atlas A2 with All2All for the experts."""

from __future__ import annotations

from scenarios.a3_prefill import microbatch, sp_tp_sp_one_stream
from simulator.study.scenario import Prompts, Scenario

EIGHT_OF_2K = Prompts(requests=8, prompt_tokens=2048)


def converted() -> Scenario:
    """8 prompts of 2K: projections on own tokens, attention tensor parallel, All2All between them and for experts."""
    return sp_tp_sp_one_stream().variant(
        title="CloudMatrix384 prefill: 16 cards, 8 x 2K, layer-internal parallel conversion",
        machine="cloudmatrix384",
        batch=EIGHT_OF_2K,
        expected=(),
    )


def microbatch_dp() -> Scenario:
    """64 prompts of 4K: two micro-batches with data-parallel MLA."""
    return microbatch().variant(
        title="CloudMatrix384 prefill: 16 cards, 64 x 4K, two micro-batches", machine="cloudmatrix384", expected=(),
        studies=(),
    )  # fmt: skip
