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
    numbers = dict(quantities(load_model(name)))
    grouped = 2 * ("shapes.expert_groups" in numbers)
    assert len(numbers) == (13 if "shapes.kv_heads" in numbers else 16) + grouped
    assert all("config.json" in number.source for number in numbers.values())


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


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(paths.NotFound, match=r"did you mean 'deepseek_r1'\?.*kimi_k2"):
        load_model("deepseek_r2")
