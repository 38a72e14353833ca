"""Model files against the published figures, and what their loader refuses."""

from pathlib import Path

import pytest

from simulator import paths
from simulator.spec.model import load_model, load_shapes, override_model, shapes_of
from simulator.spec.typed_toml import SpecError, quantities


def test_deepseek_r1_against_its_published_counts() -> None:
    shapes = load_shapes("deepseek_r1")
    assert shapes.parameters == pytest.approx(671e9, rel=0.005)
    assert shapes.mla_parameters == pytest.approx(187.1e6, rel=0.001)
    assert shapes.o_proj_parameters == pytest.approx(117.4e6, rel=0.001)
    assert shapes.expert_parameters == pytest.approx(44.04e6, rel=0.001)
    with_mtp = shapes.parameters + shapes.mtp_parameters + 2 * shapes.embedding_parameters  # stored with its own pair
    assert with_mtp == pytest.approx(685e9, rel=0.005)
    assert (shapes.kv_values, shapes.qk_dim, shapes.moe_layers) == (576, 192, 58)
    assert shapes.layers * shapes.kv_values * 2 == 70_272  # bytes per token in BF16


def test_kimi_k2_against_its_published_counts() -> None:
    shapes = load_shapes("kimi_k2")
    assert shapes.parameters == pytest.approx(1.04e12, rel=0.02)
    assert (shapes.heads, shapes.routed_experts, shapes.moe_layers, shapes.mtp_parameters) == (64, 384, 60, 0)


@pytest.mark.parametrize("name", paths.names("workloads/models"))
def test_every_number_has_a_source(name: str) -> None:
    spec = load_model(name)
    numbers = dict(quantities(spec))
    shapes = [number for key, number in numbers.items() if key.startswith("shapes.")]
    assert len(shapes) >= 7
    assert all("config.json on the model card" in number.source for number in shapes)
    assert any(key.startswith("published.") for key in numbers)
    assert spec.name == name


@pytest.mark.parametrize(("name", "changes", "says"), [
    ("qwen3_8b", {"shapes.qk_norm": "2"}, "shapes.qk_norm: got 2: 0 or 1"),
    ("gpt_oss_20b", {"shapes.kv_heads": "7"}, "shapes.kv_heads: got 7: a divisor of heads, which is 64"),
])
def test_what_an_override_of_other_shapes_refuses(name: str, changes: dict[str, str], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        override_model(load_model(name), changes)
    assert says in str(caught.value)


@pytest.mark.parametrize(("name", "was", "now", "says"), [
    ("qwen3_235b", "shared_experts = {", "moe_every = {",
     "shapes.shared_experts: got 'nothing': given with dense_layers, routed_experts"),
    ("qwen3_8b", "qk_norm = {", "expert_bias = {", "shapes.expert_bias: got 1: given with dense_layers"),
    ("qwen3_8b", "dense_intermediate = {", "window = {", "shapes.dense_intermediate: got 'nothing': given, since"),
    ("qwen3_8b", "qk_norm = {", "window_every = {", "shapes.window_every: got 1: given with window only"),
    ("qwen3_8b", "qk_norm = {", "q_lora = {", "shapes.q_lora: got 1: given with latent attention only"),
    ("deepseek_v2", "q_lora = {", "window = {", "shapes.window: got 1536: given with grouped-query attention only"),
    ("deepseek_r1", 'attention = "fp8_block"', 'attention = "fp6"',
     "precision.attention: got 'fp6': must be one of fp32"),
])
def test_numbers_that_do_not_fit_together(name: str, was: str, now: str, says: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    text = paths.find("workloads/models", name).read_text(encoding="utf-8")
    assert f"\n{was}" in text
    mine.write_text(text.replace(f"\n{was}", f"\n{now}", 1), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_model(mine)
    assert says in str(caught.value)


def test_a_smaller_model_by_override() -> None:
    model = override_model(load_model("deepseek_r1"), {"shapes.layers": "5"})
    assert shapes_of(model).layers == 5
    assert (model.shapes.layers.kind, model.shapes.layers.source) == ("assumed", "command line")
    assert override_model(model, {}) is model


@pytest.mark.parametrize(("changes", "says"), [
    ({"shapes.layer": "5"}, "no key 'layer' (did you mean 'layers'?)"),
    ({"shapes.layers": "2"}, "shapes.dense_layers: got 3: at most layers, which is 2"),
    ({"shapes.heads": "0"}, "shapes.heads: got '0': must be a whole number, 1 or more"),
    ({"shapes.hidden": "7168 B"}, "wanted is a plain number"),
    ({"shapes.experts_per_token": "257"}, "at most routed_experts, which is 256"),
    ({"shapes.groups_per_token": "9"}, "at most expert_groups, which is 8"),
    ({"shapes.expert_groups": "7"}, "a divisor of routed_experts, 256"),
    ({"shapes.expert_groups": "64", "shapes.groups_per_token": "1"}, "so many groups that they hold the 8 experts"),
])
def test_what_an_override_refuses(changes: dict[str, str], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        override_model(load_model("deepseek_r1"), changes)
    assert says in str(caught.value)


@pytest.mark.parametrize(("was", "now", "says"), [
    ("kv_heads = { value = 4,", "kv_heads = { value = 5,", "shapes.kv_heads: got 5: a divisor of heads, which is 64"),
    ("head_dim = {", "v_dim = {", "shapes: got 'kv_heads, v_dim': either q_lora, kv_lora, rope_dim"),
])
def test_attention_is_of_one_kind(was: str, now: str, says: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(paths.find("workloads/models", "qwen3_235b").read_text(encoding="utf-8").replace(was, now),
                    encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_model(mine)
    assert says in str(caught.value)


def test_a_users_own_model_with_mistakes(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    text = paths.find("workloads/models", "deepseek_r1").read_text(encoding="utf-8")
    mine.write_text(text.replace("hidden = {", "hiden = {").replace("value = 128,", 'value = "128",'),
                    encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_model(mine)
    assert [line.split(": ")[1] for line in caught.value.lines] == [
        "shapes.hidden", "shapes.heads.value", "shapes.nope_dim.value", "shapes.v_dim.value", "shapes.hiden"]
    assert all(line.startswith(f"{mine}: ") for line in caught.value.lines)


@pytest.mark.parametrize("key", ["layers", "routed_experts", "expert_intermediate"])
def test_what_is_made_one_by_one_has_a_most(key: str) -> None:
    with pytest.raises(SpecError, match=f"shapes.{key}: got 1e\\+15: at most 1"):
        override_model(load_model("deepseek_r1"), {f"shapes.{key}": "1e15"})


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(paths.NotFound, match=r"did you mean 'deepseek_r1'\?.*kimi_k2"):
        load_model("deepsek_r1")
