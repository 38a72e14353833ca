"""What output tokens cost: in money at a price per GPU hour, in energy where the machine's file says a card's power."""

from __future__ import annotations

from typing import NamedTuple

from simulator.errors import InputError
from simulator.search.deployment import Found
from simulator.spec.machine import MachineSpec

SECONDS_PER_HOUR, TOKENS, WATTS_PER_MW = 3600.0, 1e6, 1e6


class Cost(NamedTuple):
    """Of output tokens. dollars: per million (none: no price is given); joules: per token, with all servers at the most
    power that they take; tok_s_per_mw: tokens a second of a megawatt of such servers (none: no power is known)."""

    dollars: float | None
    joules: float | None
    tok_s_per_mw: float | None


def cost_of(found: Found, machine: MachineSpec, dollars_per_gpu_hour: float | None) -> Cost:
    """Of a deployment whose GPUs are paid for, and powered, whether they work or not. InputError: the price is none."""
    if dollars_per_gpu_hour is not None and dollars_per_gpu_hour <= 0:
        raise InputError(f"--price {dollars_per_gpu_hour:g}: dollars for an hour of a GPU, more than 0")
    rate = found.tok_s_per_gpu
    power_w = machine.card_power.si if machine.card_power else None
    return Cost(None if dollars_per_gpu_hour is None else dollars_per_gpu_hour / SECONDS_PER_HOUR / rate * TOKENS,
                None if power_w is None else power_w / rate,
                None if power_w is None else rate / power_w * WATTS_PER_MW)
