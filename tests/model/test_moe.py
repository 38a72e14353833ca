"""Mixture of experts of DeepSeek-R1: rows and bytes from one kernel to the next."""

from __future__ import annotations

from simulator.model import mla, moe
from simulator.model.routing import Balanced
from simulator.spec.load import load_machine
from simulator.spec.model import load_model, shapes_of

R1 = shapes_of(load_model("deepseek_r1"))
TOKENS = 2048


def weights(kernels: mla.Kernels) -> float:
    return sum(work.weight_bytes for _, work in kernels)


def flops(kernels: mla.Kernels) -> float:
    return sum(work.flops for _, work in kernels)


def test_the_router_scores_every_expert_in_fp32() -> None:
    router = dict(moe.gate(R1, TOKENS))["gate.router"]
    assert (router.rows, router.k, router.n, router.dtype) == ((TOKENS,), 7168, 256, "fp32")
    assert dict(moe.gate(R1, TOKENS))["gate.cast"].write_bytes == router.read_bytes


def test_experts_read_their_weights_and_compute_three_products_for_every_row() -> None:
    rows = (100, 0, 300)
    assert weights(moe.experts(R1, rows)) == 2 * 3 * 7168 * 2048  # the expert without rows stays in HBM
    assert flops(moe.experts(R1, rows)) == 2 * 400 * 3 * 7168 * 2048


def test_what_one_kernel_writes_the_next_one_reads() -> None:
    works = dict(moe.experts(R1, (100, 300)))
    assert works["experts.gate_up"].out_dtype == "int32"
    assert works["experts.gate_up"].write_bytes == works["experts.swiglu"].read_bytes
    assert works["experts.swiglu"].write_bytes == works["experts.down"].read_bytes + 4 * 400  # a scale per row
    assert works["experts.down"].write_bytes == works["experts.unsort"].read_bytes


def test_rows_sent_are_rows_computed_when_routing_is_balanced() -> None:
    routing = Balanced((TOKENS,) * 32, 256, 8)
    sorted_rows = dict(moe.init_routing(R1, TOKENS))["init_routing.sort"].write_bytes
    assert sorted_rows == TOKENS * 8 * (7168 + 4)
    assert routing.arriving() == TOKENS * 8
    assert flops(moe.experts(R1, routing.rows())) == 2 * TOKENS * 8 * 3 * 7168 * 2048


def test_the_shared_expert_sees_every_token() -> None:
    assert flops(moe.shared_expert(R1, TOKENS)) == 2 * TOKENS * 3 * 7168 * 2048
    assert weights(moe.shared_expert(R1, TOKENS)) == 3 * 7168 * 2048


def test_the_dense_layers_are_wider() -> None:
    assert weights(moe.dense(R1, TOKENS)) == R1.dense_parameters == 3 * 7168 * 18432


def test_finalize_reads_all_rows_of_a_token_and_the_shared_expert() -> None:
    assert dict(moe.finalize_routing(R1, TOKENS))["finalize.sum"].read_bytes == TOKENS * 9 * 7168 * 2


def test_vocabulary_shards_cover_the_vocabulary() -> None:
    assert 32 * dict(moe.head_shard(R1, 64, 32))["head.logits"].n >= R1.vocabulary
    assert dict(moe.head_shard(R1, 64, 1))["head.logits"].n == R1.vocabulary


def test_every_kernel_exists_on_the_machine() -> None:
    families = load_machine("atlas_a3").kernels["cann_recipes_2025"]
    kernels = [*moe.gate(R1, 8), *moe.init_routing(R1, 8), *moe.split_sizes(R1), *moe.experts(R1, (8, 8)),
               *moe.shared_expert(R1, 8), *moe.finalize_routing(R1, 8), *moe.dense(R1, 8),
               *moe.embedding_shard(R1, 8), *moe.head_shard(R1, 8, 4)]
    assert {work.family for _, work in kernels} <= set(families)
    assert len({name for name, _ in kernels}) == len(kernels)
