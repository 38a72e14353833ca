"""Deployments that nobody published: they run plausibly or are refused with a reason."""

from __future__ import annotations

import pytest

from simulator.die.memory import DoesNotFit
from simulator.errors import InputError
from tests.published.runs import run

A2, CM384 = "a2_decode:even", "cm384_decode:decode_even"
FEW = {"model__shapes__layers": "6"}
EP = "layout__expert_parallel"


def iteration_ms(name: str, **changes: str) -> float:
    return run(name, **FEW, **changes).metrics["iteration_ms"]


@pytest.mark.parametrize("name", [A2, CM384])
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("batch__per_card", ("1", "8", "32", "72")),
        ("batch__prompt_tokens", ("128", "1024", "2048", "3000")),
        ("batch__draft_tokens", ("0", "1", "2", "3")),
    ],
)
def test_more_to_do_takes_longer(name: str, key: str, values: tuple[str, ...]) -> None:
    times = [iteration_ms(name, **{key: value}) for value in values]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_slower_dies_take_longer() -> None:
    times = [iteration_ms(A2, machine=machine) for machine in ("atlas_a2", "atlas_a2_313t", "atlas_a2_280t")]
    assert times == sorted(set(times))


@pytest.mark.parametrize("name", [A2, CM384])
def test_acceptance_changes_what_an_iteration_yields_not_how_long_it_takes(name: str) -> None:
    poor, good = (run(name, **FEW, batch__acceptance=share).metrics for share in ("0.5", "0.9"))
    assert poor["iteration_ms"] == good["iteration_ms"]
    assert poor["tpot_ms"] / good["tpot_ms"] == pytest.approx(1.9 / 1.5)


def test_groups_of_experts_do_not_feel_each_other() -> None:
    """Twice the cards in two groups take as long; in one larger group of CloudMatrix384, dies hold fewer experts."""
    assert iteration_ms(A2, cards="64") == pytest.approx(iteration_ms(A2), rel=1e-3)
    by_ep = [iteration_ms(CM384, cards=cards, **{EP: ep}) for cards, ep in (("64", "128"), ("144", "288"))]
    assert by_ep[0] > by_ep[1] == pytest.approx(iteration_ms(CM384, cards="160", **{EP: "320"}), rel=0.02)


def test_all_gather_grows_with_the_ranks_that_it_gathers_from() -> None:
    times = [iteration_ms(A2, cards=ranks, **{EP: ranks}) for ranks in ("32", "64", "128")]
    assert times == sorted(times)
    assert times[2] - times[1] > times[1] - times[0]


@pytest.mark.parametrize("name", [A2, CM384])
def test_long_contexts_run_with_few_requests_and_do_not_fit_with_many(name: str) -> None:
    for tokens, requests in (("13312", "16"), ("65536", "2")):
        assert run(name, **FEW, batch__prompt_tokens=tokens, batch__per_card=requests).metrics["iteration_ms"] > 0
        with pytest.raises(DoesNotFit, match="latent cache"):
            run(name, batch__prompt_tokens=tokens)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        (CM384, {"cards": "64"}, r"128 ranks .* groups of 288 \(layout.expert_parallel\)"),
        (A2, {EP: "128"}, r"32 ranks .* groups of 128 \(layout.expert_parallel\)"),
        (A2, {"cards": "40", EP: "40"}, "256 experts do not divide over 40 ranks"),
        (CM384, {"layout__tensor_parallel": "3"}, "128 heads do not divide over 3 ranks"),
        (CM384, {"layout__shared_dies": "288"}, "none are left for routed ones"),
        ("a2_prefill:convert", {"cards": "48"}, "128 heads do not divide over 48 ranks"),
        ("cm384_prefill:converted", {"cards": "128"}, "128 heads do not divide over 256 ranks"),
    ],
)
def test_what_cannot_be_split_is_refused_with_its_reason(name: str, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        run(name, **changes)


def test_prefill_nodes_and_their_partners_do_not_feel_other_pairs() -> None:
    double = {"cards": "32", "layout__dp": "16", "layout__replicas": "2", "batch__requests": "16"}
    one, two = (run("pplx_kv:long_prompt", **changes).metrics for changes in ({}, double))
    for metric in ("layer_us", "kv_transfer_us", "kv_exposed_us"):
        assert two[metric] == pytest.approx(one[metric])


@pytest.mark.parametrize("cards", ["2", "8", "24"])
def test_prefill_nodes_without_partners_are_refused(cards: str) -> None:
    with pytest.raises(InputError, match=f"cards is {cards}.* set cards so that there are 16 ranks"):
        run("pplx_kv:long_prompt", cards=cards)


@pytest.mark.parametrize("tokens", ["1", "2", "5", "100"])
def test_prompts_with_fewer_rows_than_experts_run(tokens: str) -> None:
    """Fewer tokens take less, and at some experts there is nothing to do."""
    short, long = (run("pplx_kv:long_prompt", batch__context=text).metrics for text in (tokens, "512"))
    assert 0 < short["layer_us"] < long["layer_us"]


@pytest.mark.parametrize(
    "name",
    [A2, "a2_prefill:all_reduce", "a2_prefill:convert", "a2_prefill:micro_batch", "a3_prefill:dp", "pplx_decode:ep16",
     "trt_min_latency:base", "trt_min_latency:final"],
)  # fmt: skip
def test_without_a_shared_expert_none_is_computed(name: str) -> None:
    few = {} if name.startswith("pplx") else FEW
    without, usual = (run(name, **few, model__shapes__shared_experts=experts) for experts in ("0", "1"))
    shared = ("shared.", "finalize.add_shared")
    assert any(str(task).startswith(shared) for task in set(usual.columns["name"]))
    assert not any(str(task).startswith(shared) for task in set(without.columns["name"]))
    assert without.metrics["compute_ms"] < usual.metrics["compute_ms"]


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        *((name, {EP: ep}, f"expert_parallel is {ep}: it must divide the 8 ranks")
          for name in ("flow_mla:h20_tp", "flow_mla:h20_flow") for ep in ("3", "7", "16", "256")),
        ("flow_mla:h800_dp", {"cards": "40", EP: "40"}, "expert_parallel is 40: it must divide the 256 routed experts"),
        ("flow_mla:qwen3_tp", {"cards": "24"}, r"64 heads \(knobs.attention tp\) do not divide over 24 ranks"),
        ("flow_mla:qwen3_dp", {"cards": "40"}, r"columns of an expert .layout.expert_parallel. do not divide over 40"),
        ("flow_mla:h20_flow", {"knobs__shards": "3"}, r"8 ranks do not divide into groups of 3 \(knobs.shards\)"),
        ("flow_mla:h20_tp", {"batch__prompt_tokens": "8191"},
         "batch.chunk_tokens is .*: it must be a multiple of batch.prompt_tokens, 8191"),
        ("flow_mla:h20_tp", {"batch__cached_tokens": "1000000", "batch__requests": "8"}, "cache of 8 requests"),
    ],
)  # fmt: skip
def test_sglang_does_not_run_what_cannot_be_split_or_held(name: str, changes: dict[str, str], reason: str) -> None:
    with pytest.raises((InputError, DoesNotFit), match=reason):
        run(name, **changes)


def test_as_many_requests_fit_as_have_room_for_what_is_cached() -> None:
    """As many bytes of cache, in fewer requests where each has more of it."""
    few, some, usual = (run("flow_mla:h20_tp", batch__samples="2", batch__cached_tokens=tokens).metrics["requests"]
                        for tokens in ("30719", "6143", "2048"))  # fmt: skip
    assert usual / 10 - 1 < few <= usual / 10
    assert usual / 2 - 1 < some <= usual / 2


def test_a_stall_is_not_told_of_the_one_iteration_for_which_nothing_was_gathered_ahead() -> None:
    one, two = (run("flow_mla:h20_flow", batch__cached_tokens="2048", batch__samples=samples).metrics
                for samples in ("1", "2"))  # fmt: skip
    assert "prefetch_stall_ms" in two
    assert "prefetch_stall_ms" not in one
    assert one["iteration_ms"] > 0


NO_MTP = {"model__shapes__mtp_layers": "0"}


@pytest.mark.parametrize("name", [A2, CM384, "trt_min_latency:gtc"])
def test_without_an_mtp_layer_nothing_is_drafted(name: str) -> None:
    with pytest.raises(InputError, match=r"batch.draft_tokens is [13], but .* no MTP layer .*: it must be 0"):
        run(name, **FEW, **NO_MTP)
    assert run(name, **FEW, **NO_MTP, batch__draft_tokens="0").metrics["iteration_ms"] > 0


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("final", {"batch__relaxed_accepted": "100"}, "batch.relaxed_accepted has 100 for 3 draft tokens: .* 1 to 4"),
        ("final", {"batch__relaxed_accepted": "0.5"}, "batch.relaxed_accepted has 0.5 for 3 draft tokens: .* 1 to 4"),
        ("gtc", {"batch__draft_tokens": "1", "batch__accepted": "1,9,9,9"},
         "batch.accepted has 9 for 1 draft tokens: it must be from 1 to 2"),
        ("base", {"batch__accepted": "0.1"}, "batch.accepted has 0.1 for 0 draft tokens: it must be from 1 to 1"),
    ],
)  # fmt: skip
def test_no_more_is_accepted_than_was_drafted(name: str, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        run(f"trt_min_latency:{name}", **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"cards": cards}, f"cards is {cards}, but one rank writes to one other: set cards to 2") for cards in "134"),
        ({"batch__single_kib": "64,-64"}, "single_kib: got '64,-64': .* greater than 0"),
        ({"batch__page_kib": "0"}, "page_kib: got '0': .* greater than 0"),
        ({"batch__pages": "1"}, "pages: got '1': .* greater than or equal to 500"),
    ],
)
def test_point_to_point_refuses_what_it_does_not_measure(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        run("point_to_point:efa", **changes)


def test_the_rate_of_pages_does_not_depend_on_how_many_there_are() -> None:
    few, many = (run("point_to_point:efa", batch__pages=pages).metrics for pages in ("500", "4000"))
    for kib in (1, 8, 16, 64):
        name = f"paged_{kib}KiB_gbit_s"
        assert few[name] == pytest.approx(many[name], rel=0.03)


def test_programs_for_latent_attention_refuse_another() -> None:
    with pytest.raises(InputError, match="qwen3_235b has grouped-query attention"):
        run("pplx_decode:ep16", model="qwen3_235b", batch__draft_tokens="0")


@pytest.mark.parametrize("name", [A2, CM384])
def test_decode_on_ascend_takes_grouped_queries_and_refuses_what_has_no_experts(name: str) -> None:
    few = {"batch__draft_tokens": "0", "batch__per_card": "8"}
    columns = run(name, model="qwen3_235b", **FEW, **few).columns
    assert "attention.norm_rope_cache" in set(columns["name"])
    with pytest.raises(InputError, match=r"llama_3_1_70b has no experts.*transformer:decode"):
        run(name, model="llama_3_1_70b", **few)


@pytest.mark.parametrize("name", ["a2_prefill:convert", "a2_prefill:micro_batch", "a3_prefill:microbatch",
                                  "a3_prefill:sp_tp_sp"])  # fmt: skip
def test_published_prefill_runs_models_that_its_source_does_not_have(name: str) -> None:
    """Grouped-query attention has no latents to gather: hidden states are."""
    columns = run(name, **FEW, model="qwen3_235b").columns
    assert not any(str(task).startswith(("attention.gather_", "dense.", "shared.")) for task in set(columns["name"]))
    assert ("attention.gather" in set(columns["name"])) == (name in ("a2_prefill:convert", "a3_prefill:sp_tp_sp"))


def test_requests_of_a_card_are_shared_by_its_dies() -> None:
    """As long as one die with a share each, and twice the throughput of a card; what cannot be shared is refused."""
    dies, alike = {"machine__dies_per_card": "2"}, {EP: "32", **FEW}
    both = run(A2, cards="16", **alike, **dies, batch__per_card="32").metrics
    single = run(A2, cards="32", **alike, batch__per_card="16").metrics
    assert both["iteration_ms"] == pytest.approx(single["iteration_ms"], rel=0.01)
    name = "throughput_tok_s_per_card"
    assert both[name] == pytest.approx(2 * single[name], rel=0.01)
    with pytest.raises(InputError, match="33: it must be a multiple of machine"):
        run(A2, cards="16", **alike, **dies, batch__per_card="33")


def test_prefill_in_two_groups_of_experts_exchanges_inside_them() -> None:
    """Twice the cards and prompts in two groups of 16: as long as one; not so if everybody exchanged with everybody."""
    one, two, wide = (
        run("a2_prefill:micro_batch", **FEW, **changes).metrics["latency_ms"]
        for changes in ({}, {"cards": "32", "batch__requests": "64"},
                        {"cards": "32", "batch__requests": "64", EP: "32"})
    )  # fmt: skip
    assert two == pytest.approx(one, rel=0.1)  # embedding and head are shared by all
    assert wide > 1.2 * two
