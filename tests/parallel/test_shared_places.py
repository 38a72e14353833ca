"""A shared expert on ranks of its own: every token goes there, evenly, and no other rank keeps or computes it."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.model.library import transformer_of
from simulator.model.transformer import Experts
from simulator.parallel.ledger import weights_of
from simulator.parallel.mesh import Mesh, check, coordinates_of
from simulator.parallel.routed import Routing, routed
from simulator.spec.model import load_model
from simulator.study.library import load_scenario
from simulator.study.simulate import Result, simulate

R1 = transformer_of(load_model("deepseek_r1"))
EXPERTS = Experts(routed=256, per_token=8, intermediate=2048, shared_intermediate=2048)
MESH = Mesh(dp=36, ep=36, shared_places=4)
SERVED = {"machine": "cloudmatrix384", "kernels": "cann_decode_2025", "knobs.precision": "all=int8", "cards": "18",
          "model": "deepseek_r1", "layout.tp": "1", "layout.dp": "36", "layout.ep": "36", "layout.shared_places": "4",
          "knobs.exchange": "put_collect", "knobs.exchange_engine": "fused_push",
          "batch.requests": "720", "model.shapes.layers": "5"}  # fmt: skip


def run(**changes: str) -> Result:
    settings = {key.replace("__", "."): text for key, text in changes.items()}
    return simulate(load_scenario("transformer:decode").replace({**SERVED, **settings}))


@pytest.mark.parametrize("skew", [None, 0.0, 0.3])
@pytest.mark.parametrize("places", [32, 29])  # 29: slots that are left over hold copies
def test_every_token_goes_to_its_experts_and_once_to_the_shared_one(skew: float | None, places: int) -> None:
    tokens = (300,) * 36
    found = routed(EXPERTS, tokens, Routing(skew, 0, places, shared=4), 3, 0)
    assert len(found.rows) == places + 4
    assert sum(map(sum, found.rows[:places])) == sum(tokens) * 8
    assert sum(map(sum, found.rows[places:])) == sum(tokens)
    sent = sum(map(sum, found.sizes(1.0)))
    assert sent == pytest.approx(sum(tokens) * 9, rel=0.01)


def test_the_last_places_are_the_shared_experts() -> None:
    assert [coordinates_of(MESH, rank)["shared_place"] for rank in (0, 31, 32, 35)] == [0, 0, 1, 1]


def test_routed_ranks_do_not_keep_it() -> None:
    alone, beside = ({name: size for name, _, size in weights_of(R1, mesh, 0, False)}
                     for mesh in (MESH, Mesh(dp=32, ep=32)))  # fmt: skip
    assert "shared experts" not in alone
    assert beside["shared experts"] > 0
    assert alone["routed experts"] == beside["routed experts"]


@pytest.mark.parametrize("exchange", ["put_collect", "all_to_all", "sorted_rows"])
def test_ranks_of_both_roles_compute_their_rows_alone(exchange: str) -> None:
    result = run(knobs__exchange=exchange, routing__skew="none")
    roles = result.world.programs[0], result.world.programs[35]
    works = [{task.name: task.work for task in program.tasks if task.layer == 4} for program in roles]
    assert [len(one["experts.gate_up"].rows) for one in works] == [8, 1]
    assert all("shared.gate_up" not in one for one in works)
    assert result.header["classes"] == 2


def test_uneven_contexts_and_drawn_rows_are_recorded_once_for_each_role() -> None:
    result = run(routing__skew="0.1", batch__spread="0.3")
    recordings = {id(program.items) for program in result.world.programs}
    assert len(recordings) == 2
    cores = {task.work.scores for program in result.world.programs for task in program.tasks
             if task.name == "attention.core" and task.layer == 0}  # fmt: skip
    assert len(cores) == 36


def test_streams_that_have_all_cores_do_what_stands_around_the_layers_too() -> None:
    result = run(knobs__schedule="side_by_side", knobs__cores="12/12")
    assert {task.stream for task in result.world.programs[0].tasks} == {"attention", "moe"}


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"shared_places=36 of ep=36 leave no place"):
        check(Mesh(dp=36, ep=36, shared_places=36), R1)
    with pytest.raises(InputError, match=r"qwen3_235b has no shared expert; leave shared_places out"):
        check(MESH, transformer_of(load_model("qwen3_235b")))
    with pytest.raises(InputError, match=r"only exchanges of rows \(all_to_all, sorted_rows, put_collect"):
        run(knobs__exchange="all_gather")
