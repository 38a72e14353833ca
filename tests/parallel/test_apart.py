"""Attention and routed experts on different ranks: what leaves one role comes to the other; no weight is kept twice."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import chain

import pytest

from simulator.die.kernels import Work
from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.transformer import parameters
from simulator.parallel.ledger import weights_of
from simulator.parallel.mesh import Mesh, Role, check, coordinates_of, groups_of
from simulator.program.task import Collective
from simulator.spec.load import load_machine
from simulator.study.library import load_scenario
from simulator.study.simulate import Result, prepare, simulate
from tests.law.timeline_laws import check_timeline

QWEN = load_transformer("qwen3_30b_a3b")
HIDDEN, PER_TOKEN = 2048, 8
MESH = Mesh(dp=6, ep=2, apart=2)
BASE = {"machine": "dgx_h200", "model": "qwen3_30b_a3b", "kernels": "vllm", "cards": "8", "layout.tp": "1",
        "layout.dp": "6", "layout.ep": "2", "layout.apart": "2", "model.shapes.layers": "3", "batch.requests": "144",
        "knobs.exchange": "all_to_all", "knobs.schedule": "ping_pong", "routing.skew": "none"}  # fmt: skip
CARDS = {"machine": "h800_cx7", "model": "deepseek_r1", "kernels": "pplx_2025", "cards": "16", "layout.dp": "8",
         "layout.ep": "8", "layout.apart": "8", "model.shapes.layers": "5", "machine.chip.hbm.capacity": "200 GB",
         "knobs.exchange": "deepep_ll"}  # fmt: skip
WAYS = {"all_to_all": {}, "put_collect": {"knobs.exchange": "put_collect"}, "deepep_ll": CARDS}
SHAPES = {
    "one stream": {"knobs.schedule": "one_stream"},
    "shared beside": {"knobs.schedule": "shared_beside"},
    "single batch": {"knobs.schedule": "single_batch"},
    "hooks": {"knobs.schedule": "hooks"},
    "two batches": {"knobs.schedule": "two_batches"},
    "side by side": {"knobs.schedule": "side_by_side"},
    "three micro-batches": {"knobs.micro_batches": "3"},
    "uneven": {"routing.skew": "0.3", "batch.spread": "0.3"},
    "prompts": {"batch.phase": "prefill", "batch.context": "64", "batch.requests": "24", "batch.chunk": "128"},
    "prompts beside decode": {"batch.phase": "mixed", "batch.prompt": "64"},
    "few layers": {"model.shapes.layers": "8", "knobs.layers": "3"},
}
MESHES = {
    "tensor": {"layout.tp": "2", "layout.dp": "3"},
    "split experts": {"layout.ep": "1"},
    "stages": {"layout.dp": "3", "layout.ep": "1", "layout.apart": "1", "layout.pp": "2"},
}


@cache
def _run(changes: tuple[tuple[str, str], ...]) -> Result:
    return simulate(load_scenario("transformer:decode").replace(dict(changes)))


def run(*settings: dict[str, str]) -> Result:
    together = dict(chain.from_iterable(one.items() for one in (BASE, *settings)))
    return _run(tuple(sorted(together.items())))


def exchanges(result: Result, rank: int, name: str) -> list[Collective]:
    return [work for task, work in result.world.programs[rank].collectives() if task.name == name]


# --- where ranks are ------------------------------------------------------------------------------------------------


def test_ranks_of_experts_stand_behind_those_that_attend() -> None:
    groups = groups_of(MESH)
    assert [coordinates_of(MESH, rank)["role"] for rank in range(8)] == ["attention"] * 6 + ["experts"] * 2
    assert [coordinates_of(MESH, rank)["place"] for rank in range(8)] == [-1] * 6 + [0, 1]
    assert groups["ep"] == groups["back"] == groups["stage"] == [tuple(range(8))]
    assert groups["tensor"] == [(rank,) for rank in range(6)]
    assert groups["place"] == [(6,), (7,)]


def test_every_stage_has_both_roles() -> None:
    mesh = Mesh(tp=2, dp=2, ep=1, apart=2, pp=2)
    groups = groups_of(mesh)
    assert (mesh.ranks, mesh.expert_tensor) == (12, 2)
    assert groups["tensor"] == [(0, 1), (2, 3), (6, 7), (8, 9)]
    assert groups["place"] == [(4, 5), (10, 11)]
    assert groups["pipe"] == [(rank, rank + 6) for rank in range(6)]


# --- what moves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"routing.skew": "0.3"}, {"layout.ep": "1"}, {"knobs.micro_batches": "3"}],
                         ids=str)  # fmt: skip
def test_dispatch_moves_the_rows_that_are_routed_and_combine_moves_them_back(settings: dict[str, str]) -> None:
    result = run(settings)
    there, back = (exchanges(result, 0, f"{block}.tokens") for block in ("dispatch", "combine"))
    micro_batches = int(settings.get("knobs.micro_batches", 2))
    assert len(there) == len(back) == 3 * micro_batches
    assert sum(size for one in there for row in one.sizes for size in row) == 3 * 144 * PER_TOKEN * 2 * HIDDEN
    for out, into in zip(there, back, strict=True):
        assert tuple(zip(*out.sizes, strict=True)) == into.sizes, "each result goes where its token came from"
        assert not any(map(sum, out.sizes[6:])), "ranks of experts have no tokens"
        assert not any(sum(column) for column in list(zip(*out.sizes, strict=True))[:6]), "the others no experts"


@pytest.mark.parametrize("settings", [{}, {"routing.skew": "0.3", "batch.spread": "0.3"}, {"layout.ep": "1"}], ids=str)
def test_what_either_role_puts_the_other_one_collects(settings: dict[str, str]) -> None:
    result = run(WAYS["put_collect"], settings)
    assert not result.header["unread"]
    for block, senders, receivers in (("dispatch", range(6), (6, 7)), ("combine", (6, 7), range(6))):
        sent = sum(work.sent_bytes for rank in senders for work in exchanges(result, rank, f"{block}.write"))
        came = sum(work.received_bytes for rank in receivers for work in exchanges(result, rank, f"{block}.write"))
        assert sent == came == 3 * 144 * PER_TOKEN * 2 * HIDDEN
        assert not any(exchanges(result, rank, f"{block}.arrive") for rank in senders), "who sends goes on"
        assert all(len(exchanges(result, rank, f"{block}.arrive")) == 6 for rank in receivers)


def test_all_rows_cross_the_cards_where_the_roles_are_on_two_nodes() -> None:
    columns = run(CARDS).columns
    for name, row_bytes in (("dispatch.tokens", 7168 + 224 + 16), ("combine.tokens", 2 * 7168)):
        sent = columns["wire_bytes"][(columns["kind"] == "send") & (columns["name"] == name)].sum()
        assert sent == 2 * 144 * 8 * row_bytes, "two layers of experts"


@pytest.mark.parametrize("exchange", WAYS)
def test_either_role_computes_its_part_alone(exchange: str) -> None:
    result = run(WAYS[exchange])
    first, last = (Counter(task.name.partition(".")[0] for task, work in result.world.programs[rank].works()
                           if isinstance(work, Work)) for rank in (0, len(result.world.programs) - 1))  # fmt: skip
    assert not first["experts"]
    assert first["attention"] > 0
    assert first["head"] > 0
    assert last["experts"] > 0
    assert not set(last) - {"experts", "dispatch", "combine"}


@pytest.mark.parametrize("settings", [{}, {"routing.skew": "0.3"}, {"layout.ep": "1"}], ids=str)
def test_experts_compute_as_many_rows_as_beside_attention(settings: dict[str, str]) -> None:
    """Of experts that two neighbours split each has half of the columns of all rows."""

    def flops(result: Result) -> float:
        return sum(work.flops for program in result.world.programs for _, work in program.works()
                   if isinstance(work, Work) and work.kind == "grouped_gemm")  # fmt: skip

    beside = {"layout.dp": "8", "layout.ep": "8", "layout.apart": "0"}
    assert flops(run(settings)) == pytest.approx(flops(run({**settings, **beside})), rel=1e-6)


@pytest.mark.parametrize("exchange", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_phase_and_schedule_runs_and_obeys_the_laws(exchange: str, shape: str) -> None:
    result = run(WAYS[exchange], SHAPES[shape])
    check_timeline(result.columns)
    assert not result.header["unread"]


@pytest.mark.parametrize("exchange", ["all_to_all", "put_collect"])
@pytest.mark.parametrize("shape", MESHES)
def test_every_mesh_runs_and_obeys_the_laws(exchange: str, shape: str) -> None:
    result = run(WAYS[exchange], MESHES[shape])
    check_timeline(result.columns)
    assert not result.header["unread"]


def test_drafts_go_to_experts_apart_too() -> None:
    plain, drafted = run(CARDS), run(CARDS, {"batch.drafts": "1"})
    check_timeline(drafted.columns)
    layers = [{task.layer for task, work in one.world.programs[15].works() if task.name.startswith("experts")}
              for one in (plain, drafted)]  # fmt: skip
    assert layers == [{3, 4}, {3, 4, 5}]


# --- what is kept ---------------------------------------------------------------------------------------------------


def kept(mesh: Mesh, role: Role) -> float:
    return sum(size for _, _, size in weights_of(QWEN, mesh, 0, False, role=role))


@pytest.mark.parametrize("mesh", [Mesh(ep=4, apart=4), Mesh(ep=2, apart=4), Mesh(tp=4, ep=2, apart=2)], ids=Mesh.words)
def test_weights_of_all_ranks_are_those_of_the_model(mesh: Mesh) -> None:
    """One data-parallel group, so that nothing but norms, routers and the embedding is there more than once."""
    one = Mesh(tp=mesh.tp)
    beside = sum(size for name, _, size in weights_of(QWEN, one, 0, False) if name != "routed experts")
    experts = sum(size for name, _, size in weights_of(QWEN, Mesh(), 0, False) if name == "routed experts")
    assert kept(mesh, "attention") == beside
    assert kept(mesh, "experts") * mesh.apart == pytest.approx(experts)
    if mesh.tp == 1:
        whole = kept(mesh, "attention") + kept(mesh, "experts") * mesh.apart
        assert whole == pytest.approx(2 * parameters(QWEN), rel=1e-6)


def test_the_ledger_is_that_of_the_fullest_role() -> None:
    many, few = run({"batch.context": "16384"}), run({"batch.context": "256"})
    names = [{item.name for item in one.ledger.items} for one in (many, few)]
    assert "cache, bf16" in names[0]
    assert "routed experts" not in names[0]
    assert "routed experts" in names[1]
    assert not names[1] & {"cache, bf16", "attention", "embedding", "LM head"}
    cached = next(item.size_bytes for item in many.ledger.items if item.name == "cache, bf16")
    assert cached == 3 * 24 * 16385 * 2 * 4 * 128 * 2, "layers, requests, tokens, keys and values of four heads, BF16"


# --- what cannot be -------------------------------------------------------------------------------------------------

WRONG_MESHES = [
    (Mesh(dp=6, ep=4, apart=2), "ep=4 places do not divide the apart=2 ranks of experts; 1 or 2 would"),
    (Mesh(dp=4, ep=2, apart=2, replicas=2), "replicas=2: experts are apart=2 once for a stage; leave replicas out"),
    (Mesh(dp=4, ep=2, apart=2, shared_places=1), "shared_places=1: with apart=2 the shared expert is where attention"),
    (Mesh(dp=4, ep=1, apart=5), "apart / ep=5 does not divide the 768 columns of an expert"),
    (Mesh(dp=6, ep=2, apart=2, head=4), "head=4 does not divide the 6 ranks of a stage that attend; 1, 2, 3 or 6"),
]


@pytest.mark.parametrize(("mesh", "words"), WRONG_MESHES)
def test_meshes_that_cannot_be_are_refused_with_what_could(mesh: Mesh, words: str) -> None:
    with pytest.raises(InputError) as refused:
        check(mesh, QWEN)
    assert words in str(refused.value)


def test_models_without_experts_are_refused() -> None:
    with pytest.raises(InputError, match=r"apart=2: qwen3_8b has no experts; leave apart out"):
        check(Mesh(dp=4, apart=2), load_transformer("qwen3_8b"))


OTHER_WAYS = ["all_reduce", "all_gather", "sorted_rows", "proxy", "generic_proxy", "deepep_normal"]


@pytest.mark.parametrize("exchange", OTHER_WAYS)
def test_other_ways_name_those_that_lead_from_one_role_to_the_other(exchange: str) -> None:
    words = rf"exchange {exchange}: apart=2: .*; all_to_all, put_collect, deepep_ll bring rows"
    with pytest.raises(InputError, match=words):
        prepare(load_scenario("transformer:decode").replace(BASE | {"knobs.exchange": exchange}))


@pytest.mark.parametrize(("settings", "words"), [
    ({"knobs.exchange": "put_collect", "cards": "16", "layout.dp": "12", "layout.apart": "4"},
     r"put_collect: apart=4: 16 ranks of a stage .* as many as divide 8 have one each, and all_to_all and deepep_ll"),
    ({"knobs.exchange": "put_collect", "cards": "12", "layout.dp": "5", "layout.ep": "1", "layout.apart": "1",
      "layout.pp": "2"}, r"put_collect: apart=1: 6 ranks of a stage .* as many as divide 8 have one each"),
    ({"knobs.gathered.modules": "qkv"}, r"knobs\.gathered\.modules: layout\.apart is 2; it must be 0"),
    ({"knobs.schedule": "two_batches", "knobs.micro_batches": "3"},
     r"knobs\.micro_batches: schedule two_batches takes 2, not 3; one_stream, shared_beside, hooks, "),
    ({"knobs.micro_batches": "25"}, r"25 micro-batches need 25 requests"),
], ids=str)  # fmt: skip
def test_settings_that_cannot_be_are_refused_with_what_could(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        prepare(load_scenario("transformer:decode").replace(BASE | settings))


@pytest.mark.parametrize(("machine", "dies"), [("dgx_h200", 8), ("gb200_nvl72", 72), ("cloudmatrix384", 768)])
def test_dies_that_have_one_port_for_each_other(machine: str, dies: int) -> None:
    """Network cards are a second one; switches above those of a node have the same ports."""
    spec = load_machine(machine)
    assert spec.port_dies == min(dies, spec.dies)
