"""Steps of all models on all machines: kernels in the nearest precision, and reasons where there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from simulator.errors import InputError
from simulator.model.transformer import Precision
from simulator.spec.kernels import KernelSpec
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.study import nearest as kernels
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from simulator.study.steps import Cell, cells_of, machines
from simulator.study.steps_report import beyond, by_machine, markdown, reasons, summary

Of = Callable[[MachineSpec, str], Mapping[str, KernelSpec]]


def chosen(model: str, machine: MachineSpec, monkeypatch: pytest.MonkeyPatch, *missing: str) -> kernels.Kernels:
    """For decode on one card of a machine that has not these families."""

    def without(spec: MachineSpec, generation: str, of: Of = MachineSpec.kernels_of) -> Mapping[str, KernelSpec]:
        return {name: one for name, one in of(spec, generation).items() if not name.endswith(missing)}

    if missing:
        monkeypatch.setattr(MachineSpec, "kernels_of", without)
    scenario = load_scenario("transformer:decode").replace({
        "model": model, "machine": machine.name, "cards": "1", "layout.tp": "1"})
    return kernels.nearest(scenario, machine)


H200 = load_machine("dgx_h200")
MATRICES = ("attention", "dense", "experts", "shared", "drafts")


def test_the_checkpoints_precision_where_there_are_kernels_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen("deepseek_r1", H200, monkeypatch)
    assert (found.generation, found.instead) == ("vllm", {})


@pytest.mark.parametrize(("model", "missing", "instead"), [
    ("deepseek_r1", ["fp8_block"], dict.fromkeys(MATRICES, "fp8")),
    ("deepseek_r1", ["fp8_block", "fp8"], dict.fromkeys(MATRICES, "bf16")),
    ("gpt_oss_20b", ["mxfp4"], {"experts": "bf16"}),
    ("gpt_oss_20b", ["mxfp4", "grouped_gemm_bf16"], {"experts": "fp8"}),
], ids=str)  # fmt: skip
def test_the_nearest_where_there_are_none(model: str, missing: list[str], instead: dict[str, str],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(model, H200, monkeypatch, *missing)
    assert {name: dtype for name, dtype in found.instead.items() if name in instead} == instead
    assert set(found.instead) <= {*instead, "kv_b"}


def test_what_no_precision_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="vllm: has no kernels generation_attention"):
        chosen("llama_3_1_8b", H200, monkeypatch, "generation_attention")


@pytest.mark.parametrize(("own", "instead", "experts", "said"), [
    (Precision(), {}, True, "bf16"),
    (Precision(experts="mxfp4"), {}, True, "bf16, experts mxfp4"),
    (Precision(experts="mxfp4"), {}, False, "bf16"),
    (Precision(experts="mxfp4"), {"experts": "bf16"}, True, "bf16, experts mxfp4 -> bf16"),
    (Precision("fp8", "fp8", "fp8"), {"attention": "bf16", "experts": "bf16"}, True, "fp8 -> bf16"),
], ids=str)  # fmt: skip
def test_precision_in_words(own: Precision, instead: dict[str, str], experts: bool, said: str) -> None:
    assert kernels.words(own, instead, experts) == said


def test_machines_are_those_with_a_stack_of_transformers() -> None:
    there = machines()
    assert {"dgx_h100", "dgx_h200", "atlas_a2", "h20_node"} <= set(there)
    assert all(kernels.generations(load_machine(name)) for name in there)


# --- cells ------------------------------------------------------------------------------------------------------------


def test_cells_are_numbers_or_reasons() -> None:
    cells = cells_of("llama_3_1_70b", "dgx_h100")
    assert len(cells) == 9
    assert {cell.refused for cell in cells if cell.cards == 1} == {"memory"}
    assert all(cell.ms and not cell.reason for cell in cells if cell.cards == 8)
    eight = {cell.load: cell.ms or 0.0 for cell in cells if cell.cards == 8}
    assert eight["decode 1"] < eight["decode 64"] < eight["prefill"]
    assert all((cell.ms is None) == bool(cell.reason) == bool(cell.refused) for cell in cells)


def test_experts_that_are_drawn_are_drawn_for_all_layers() -> None:
    cell = next(one for one in cells_of("gpt_oss_20b", "dgx_h200") if (one.cards, one.load) == (1, "decode 64"))
    settings = {"model": "gpt_oss_20b", "machine": "dgx_h200", "cards": "1", "layout.tp": "1"}
    assert cell.ms == simulate(load_scenario("transformer:decode").replace(settings)).metrics["tpot_ms"]
    assert any(text.startswith("gate.router: n = 32") for text in cell.outside)


# --- the report -------------------------------------------------------------------------------------------------------

CELLS = [Cell("a", "dgx_h100", 1, "decode 1", "vllm", "bf16", 12.345),
         Cell("a", "dgx_h100", 1, "decode 64", "vllm", "bf16", 20.0, outside=("head.logits: n = 9, measured 1..2",)),
         Cell("a", "dgx_h100", 1, "prefill", "vllm", "bf16", refused="memory", reason="1 GiB too much"),
         Cell("b", "dgx_h100", 1, "decode 1", refused="kernels", reason="vllm: b has no experts"),
         Cell("a", "dgx_h200", 1, "decode 1", refused="kernels", reason="vllm: a has no experts"),
         Cell("b", "dgx_h200", 1, "prefill", refused="memory", reason="2 GiB too much")]  # fmt: skip


def test_rows_have_numbers_signs_and_short_reasons() -> None:
    rows = by_machine(CELLS)
    assert rows["dgx_h100"] == [("a", "vllm", "bf16", "12.35", "20+", "memory"), ("b", "-", "-", "no kernels")]


def test_reasons_are_counted_and_what_is_outside_is_named() -> None:
    assert reasons(CELLS) == [
        ("memory", "weights, cache and activations exceed it", 2, "a, dgx_h100, 1x prefill"),
        ("no kernels", "vllm: it has no experts", 2, "b, dgx_h100, 1x decode 1")]
    assert beyond(CELLS) == [("dgx_h100", "head.logits", 1, "a, dgx_h100, 1x decode 64", "n = 9, measured 1..2")]
    assert summary(CELLS) == ("6 steps of 2 models on 2 machines; 2 simulated, 4 refused: 2 memory, 2 no kernels")


def test_the_report_is_the_same_every_time() -> None:
    full = cells_of("llama_3_1_8b", "dgx_h100")
    assert markdown(full) == markdown(full)
    assert "| llama_3_1_8b | vllm    | bf16      |" in markdown(full)
