"""A generation that is another one with longer latencies, and what grouped products spend beside their bytes."""

from __future__ import annotations

import pytest

from simulator.die.kernels import cost_of
from simulator.errors import InputError
from simulator.model import ops
from simulator.spec.load import _checked, load_machine, override
from simulator.spec.machine import MachineSpec
from simulator.spec.model import load_model, shapes_of
from simulator.spec.typed_toml import SpecError, validate
from simulator.stack.trtllm_min_latency import touched_experts

B200 = load_machine("dgx_b200")
R1 = shapes_of(load_model("deepseek_r1"))
FACTOR = B200.generations["trtllm_2025"].latency_factor.value


@pytest.mark.parametrize("work", [
    ops.gemm(4, 7168, 2048, "bf16"), ops.latent_attention(((4, 2048),), 16, 512, 64, "mla"), ops.rms_norm(4, 7168)])
def test_latencies_are_longer_and_rates_are_the_same(work: ops.Work) -> None:
    old, new = (cost_of(work, B200.chip, B200.kernels_of(name)) for name in ("trtllm_2025", "trtllm_1_3"))
    assert old.latency_s == pytest.approx(FACTOR * new.latency_s)
    assert (old.tile_s, old.onchip_bytes, old.hbm_rate_bytes_per_s) == (new.tile_s, new.onchip_bytes,
                                                                        new.hbm_rate_bytes_per_s)


def test_steps_per_expert_are_latencies_and_unchanged_families_stay() -> None:
    old, new = B200.kernels_of("trtllm_2025"), B200.kernels["trtllm_1_3"]
    assert old["experts_sort"].per_slot.si == pytest.approx(FACTOR * new["experts_sort"].per_slot.si)
    assert old["experts_bf16"].per_group.si == pytest.approx(FACTOR * new["experts_bf16"].per_group.si)
    kept = B200.generations["trtllm_2025"].unchanged
    assert kept
    assert all(old[family] is new[family] for family in kept)


def test_wrong_names_in_a_generation_are_refused_with_the_right_ones() -> None:
    tables = B200.model_dump()
    tables["generations"]["trtllm_2025"]["unchanged"] = ["framwork"]
    with pytest.raises(SpecError, match="did you mean 'framework'"):
        _checked(tables, "B200")


def test_the_factor_is_one_number_of_the_machine() -> None:
    same = override(B200, {"generations.trtllm_2025.latency_factor": "1"})
    assert {name: kernel.floor_s for name, kernel in same.kernels_of("trtllm_2025").items()} == {
        name: kernel.floor_s for name, kernel in B200.kernels_of("trtllm_1_3").items()}


def test_kernels_of_exchanges_stand_beside_every_generation_and_are_no_slower_in_an_older_one() -> None:
    assert B200.exchange_kernels
    for generation in ("trtllm_1_3", "trtllm_2025"):
        assert B200.exchange_kernels.items() <= B200.kernels_of(generation).items()


def test_wrong_generations_are_refused_with_the_right_ones() -> None:
    with pytest.raises(InputError, match="trtllm_1_3, trtllm_2025"):
        B200.kernels_of("trtllm_2024")
    tables = B200.model_dump()
    tables["generations"]["trtllm_2025"]["base"] = "trtllm_1_2"
    assert validate(MachineSpec, tables, "B200")
    with pytest.raises(SpecError, match="trtllm_1_3"):
        _checked(tables, "B200")


def test_few_tokens_pay_for_experts_held_and_for_experts_touched() -> None:
    kernel = B200.kernels["trtllm_1_3"]["experts_sort"]

    def latency_us(rows: tuple[int, ...]) -> float:
        work = ops.sort_rows(sum(rows), rows, R1.hidden)
        return cost_of(work, B200.chip, B200.kernels["trtllm_1_3"]).latency_s * 1e6

    none, one, two = latency_us((0,) * 64), latency_us((1,) + (0,) * 63), latency_us((1, 3) + (0,) * 62)
    assert one - none == pytest.approx(kernel.per_group.value)
    assert two - one == pytest.approx(kernel.per_group.value)
    assert none - latency_us((0,) * 32) == pytest.approx(32 * kernel.per_slot.value)


def test_only_the_librarys_own_collectives_start_more_slowly() -> None:
    own, old = B200.collectives, B200.of_generation("trtllm_2025").collectives
    assert old["one_shot"].startup.si == pytest.approx(FACTOR * own["one_shot"].startup.si)
    assert old["nccl"] == own["nccl"]
    assert B200.of_generation("trtllm_1_3") is B200
    tables = B200.model_dump()
    tables["generations"]["trtllm_2025"]["collectives"] = ["two_shot"]
    with pytest.raises(SpecError, match=r"there are nccl, .*one_shot"):
        _checked(tables, "B200")


def test_a_longer_loop_along_k_is_split_and_its_latency_is_not_longer() -> None:
    family = B200.kernels["trtllm_1_3"]["gemm_bf16"]
    longest = family.split_k.count

    def latency_s(k: int) -> float:
        return cost_of(ops.gemm(4, 256, k, "bf16"), B200.chip, {"gemm_bf16": family}).latency_s

    assert latency_s(longest) == pytest.approx(family.floor_s + family.serial_per_k.si * longest)
    assert latency_s(longest // 2) < latency_s(longest) == latency_s(4 * longest)


def test_only_touched_experts_are_read() -> None:
    work = touched_experts((0, 2, 0, 1), 7168, 2048 // 4, "experts_bf16")
    assert work.weight_bytes == 2 * 3 * 7168 * 2048 / 4 * 0.5625
    assert work.flops == 3 * 2 * 3 * 7168 * 2048 / 4
