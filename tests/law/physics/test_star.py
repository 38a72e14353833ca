"""The benchmark of coupled flows ends as a plain solve of all rates at every event says, one end after the other."""

from __future__ import annotations

import subprocess
import sys
from math import ceil

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.bench.benchmark import environment
from simulator.bench.flows import RATE_BYTES_PER_S, all_to_all
from simulator.physics.clock import Clock
from simulator.physics.flows import Network

Floats = NDArray[np.float64]
ROUNDING_PS = 2**-7  # see units.to_ps


def star_rates(there: NDArray[np.bool_]) -> Floats:
    """Max-min rates of flows from host a up and down to host b, where there[a, b]: one port after the other is full."""
    hosts = len(there)
    nobody = np.zeros((hosts, hosts))
    crossing = np.block([[nobody, there], [there.T, nobody]])  # of ports: those up, then those down
    left, rising, given = np.full(2 * hosts, RATE_BYTES_PER_S), np.ones(2 * hosts), np.zeros_like(crossing)
    many = crossing.sum(axis=1)
    for _ in left:
        level = left / np.maximum(many, 0.5)
        port = int(level.argmin())
        stops = crossing[port] * rising
        given[port] = taken = stops * level[port]
        many -= stops
        left -= taken
        left[port], rising[port] = np.inf, 0.0
    return given[:hosts, hosts:] + given[hosts:, :hosts].T


def plain_ends_s(size: Floats) -> Floats:
    """When each flow ends, in whole picoseconds rounded up as on the clock; none where the size is 0."""
    left, end_s, now_ps, there = size.copy(), np.zeros_like(size), 0, size > 0.0
    while there.any():
        rates = star_rates(there)
        wait_ps = np.where(there, left, np.inf) / np.where(there, rates, 1.0) * 1e12
        step_ps = ceil(wait_ps.min() - ROUNDING_PS)
        now_ps += step_ps
        left -= rates * step_ps * 1e-12
        ended = wait_ps <= step_ps + ROUNDING_PS
        end_s[ended] = now_ps * 1e-12
        there &= ~ended
    return end_s


@pytest.mark.parametrize("hosts", [16, 40, pytest.param(64, marks=pytest.mark.slow)])
def test_every_end_of_an_all_to_all_is_that_of_a_plain_solve_at_every_event(hosts: int) -> None:
    env = Clock()
    network = Network(env)
    size, end_s = np.zeros((hosts, hosts)), np.zeros((hosts, hosts))

    for flow in all_to_all(hosts):
        size[flow.tag] = flow.size_bytes
        network.start(flow, lambda flow: end_s.__setitem__(flow.tag, env.now * 1e-12))
    env.run()
    assert np.count_nonzero(end_s) == hosts * (hosts - 1)
    np.testing.assert_allclose(end_s, plain_ends_s(size), rtol=1e-9, atol=1e-12)


def test_levels_that_are_equal_but_for_rounding_do_not_change_places_for_ever() -> None:
    """On 144 hosts nearly all of a capacity is held elsewhere, and its level is a small difference of large numbers."""
    program = ("from simulator.bench.flows import all_to_all\n"
               "from simulator.physics.clock import Clock\n"
               "from simulator.physics.flows import Network\n"
               "env, ended = Clock(), []\n"
               "network = Network(env)\n"
               "for flow in all_to_all(144):\n"
               "    network.start(flow, ended.append)\n"
               "env.run(until=1_440_000_000)\n"
               "assert len(ended) > 1, ended\n")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], env=environment(), timeout=120, check=False)
    assert done.returncode == 0
