"""Atlas A3's numbers: sources for all, and derived ones recomputed from what they are derived from."""

import pytest

from simulator.spec.load import load_machine
from simulator.spec.typed_toml import quantities

A3 = load_machine("atlas_a3")
NUMBERS = dict(quantities(A3))


def test_every_number_says_where_it_comes_from_and_how_sure_it_is() -> None:
    assert len(NUMBERS) > 90
    for key, number in NUMBERS.items():
        assert number.confidence, key
        assert len(number.source) > 15, key
        assert number.kind != "assumed" or number.confidence in ("L", "M"), key


def test_the_published_sizes() -> None:
    assert A3.dies == 768  # 384 packages of two
    assert {pool: count.count for pool, count in A3.chip.cores.items()} == {"cube": 24, "vector": 48, "sdma": 16}
    assert A3.chip.peak["cube"]["int8"].si == 752e12
    assert A3.chip.hbm.peak.si == 1.6e12
    assert A3.chip.l2.capacity.si == 192 * 2**20


@pytest.mark.parametrize(("key", "value", "tolerance"), [
    ("chip.peak.cube.fp32", 376e12 / 4, 1e-12),
    ("chip.hbm.efficiency", (0.69 + 0.84) / 2, 1e-12),
    ("chip.l2.port_rate.cube", 110 * 1.85e9, 1e-9),
    ("chip.l2.port_rate.cube", 4.88e12 / 24, 2e-3),
    ("chip.l2.port_rate.vector", 110 * 1.85e9 / 2, 1e-9),
    ("fabric.supernode.link_rate", 16 * 196e9, 1e-12),
    ("collectives.sdma.startup_per_peer", 90e-6 / 31, 2e-3),
    ("collectives.sdma.ladder.default.0.rate", 3e9 / (1 / 102 + 2 / 95) / 1.09, 1e-3),
    ("collectives.sdma.ladder.all_gather.0.rate", 150e9 / 1.09, 1e-3),
    ("collectives.aiv.ladder.default.0.rate", 1e9 / ((1 / 102 + 2 / 95) / 3 + 2 * 1.95 / (0.765 * 1600)), 1e-3),
    ("collectives.aiv_zero_copy.ladder.default.0.rate", 3e9 / (1 / 102 + 2 / 95), 1e-3),
    ("chip.l2.rate", (0.774 + 0.827) / 2 * 752e12 * (1 / 128 + 1 / 256 + 2 / 7168) / 2, 2e-3),
    ("kernels.cann_recipes_2025.flash_attention_tnd.score_bytes", 1.15 * (8.84 + 320 * 2 / 128) - 320 * 2 / 128, 2e-3),
])
def test_derived_numbers_follow_from_their_expressions(key: str, value: float, tolerance: float) -> None:
    assert NUMBERS[key].si == pytest.approx(value, rel=tolerance)


def test_few_numbers_are_fitted() -> None:
    fitted = {key.split(".")[-1] for key, number in NUMBERS.items() if number.kind == "fitted"}
    assert fitted == {"transfer_bytes", "copy_bytes", "score_bytes"}


def test_kernels_that_use_both_kinds_of_cores_hold_them_one_to_two() -> None:
    for kernel in A3.kernels["cann_recipes_2025"].values():
        counts = {pool: count.count for pool, count in kernel.cores.items()}
        assert counts in ({"cube": 1, "vector": 2}, {"cube": 1}, {"vector": 1})
