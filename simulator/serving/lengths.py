"""How long prompts and outputs are (tokens): uniform as benchmarks draw them, log-normal, or drawn from a table."""

from __future__ import annotations

from simulator import np
from simulator.errors import InputError
from simulator.serving.requests import Requests


def uniform(count: int, tokens: int, range_ratio: float, random: np.random.Generator) -> np.Array:
    """Whole numbers in [range_ratio * tokens, tokens], each as likely: `--random-range-ratio` as SGLang's benchmark and
    InferenceX have it; a ratio of 1 is a fixed length.

    vLLM's draws from [(1 - r) L, (1 + r) L]: here `tokens` is (1 + r) L and `range_ratio` (1 - r) / (1 + r).
    """
    _check_mean(tokens)
    if not 0 < range_ratio <= 1:
        raise InputError(f"range_ratio is {range_ratio}; it must be more than 0 and at most 1 (1: all of one length)")
    return random.integers(max(1, int(tokens * range_ratio)), tokens, count, endpoint=True)


def log_normal(count: int, mean_tokens: float, cv: float, random: np.random.Generator) -> np.Array:
    """Log-normal lengths with this mean and coefficient of variation (of the distribution before it is rounded to whole
    tokens, at least 1: the mean is kept to less than 0.1% where lengths are rarely below 10)."""
    _check_mean(mean_tokens)
    if not 0 <= cv < np.inf:
        raise InputError(f"cv is {cv}; it must be at least 0 and finite (0: all of one length)")
    variance = np.log1p(cv**2)
    drawn = random.lognormal(np.log(mean_tokens) - variance / 2, np.sqrt(variance), count)
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def from_table(count: int, table: Requests, random: np.random.Generator) -> tuple[np.Array, np.Array]:
    """Input and output lengths of `count` requests of a trace or table of lengths, drawn with replacement and as pairs:
    what a prompt's length says of its output's is kept."""
    rows = random.integers(len(table), size=count)
    return table.input_tokens[rows], table.output_tokens[rows]


def _check_mean(tokens: float) -> None:
    if not 1 <= tokens < np.inf:
        raise InputError(f"the length is {tokens} tokens; it must be at least 1 and finite")
