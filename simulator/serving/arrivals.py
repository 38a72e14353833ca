"""When requests arrive: gaps from a gamma distribution, as the benchmarks of vLLM and TensorRT-LLM draw them.

Three special cases have names of their own: burstiness 1 is Poisson, infinite burstiness is a constant gap, and an
infinite rate is all at once (then the concurrency of a closed loop alone says when a request is sent).
"""

from __future__ import annotations

import math

from simulator import np
from simulator.errors import InputError
from simulator.serving.draws import stream_of


def arrivals(count: int, rate_per_s: float, seed: int = 0, burstiness: float = 1.0) -> np.Array:
    """Times of arrival (s): the first at 0, the others after independent gaps of mean 1 / rate.

    burstiness: the shape of the gamma distribution, 1 / cv^2 for a coefficient of variation cv of the gaps; less than 1
    is burstier than Poisson, more is more even. The times are a renewal process, not rescaled to end at count / rate
    (as vLLM's benchmark does): the rate of a draw is within 3 cv / sqrt(count) of `rate_per_s` in 997 of 1000 seeds.
    """
    for name, value in (("rate_per_s", rate_per_s), ("burstiness", burstiness)):
        if not value > 0:
            raise InputError(f"{name} is {value}; it must be more than 0 (inf is allowed)")
    if count < 1:
        raise InputError(f"count is {count}; there must be at least 1 request")
    if math.isinf(rate_per_s):
        return np.zeros(count)
    if math.isinf(burstiness):
        return np.arange(count) / rate_per_s
    gaps = stream_of(seed, "arrivals").standard_gamma(burstiness, count - 1) / (rate_per_s * burstiness)
    return np.concatenate(([0.0], np.cumsum(gaps)))
