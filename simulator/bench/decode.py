"""Speed of one decode iteration: 61 MoE layers, two micro-batches on two streams with cores of their own.

A synthetic workload of the size of a published one: every die computes MLA for 96 tokens in two halves and holds one
expert; dispatch and combine go to all dies of an expert-parallel group of 288. Balanced routing uses All2Alls; skewed
routing draws the rows of every expert per layer and half, and every die puts and collects bytes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from simulator import np
from simulator.bench.benchmark import Measurement, looked_at, timed
from simulator.model.micro_batch import MicroBatch
from simulator.model.routing import power_law
from simulator.model.transformer import Experts, Model, with_precision
from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.stack.cann_decode import CannDecode
from simulator.stack.stacks import Kernels, labelled
from simulator.study.library import load_scenario
from simulator.study.scenario import Case, Scenario, Workload
from simulator.study.simulate import simulate

EXPERT_PARALLEL, LAYERS, HALVES, TOKENS, CONTEXT = 288, 61, 2, 48, 4096
STACK = CannDecode(quantises=False)
CORES = {"attention": {"cube": 12, "vector": 24}, "moe": {"cube": 12, "vector": 24}}


@cache
def _rows(layer: int, half: int) -> Sequence[int]:
    """Rows for every die's expert, drawn from a power law."""
    random = np.random.default_rng((layer, half))
    popularity = power_law(EXPERT_PARALLEL, 0.1, random)
    rows: list[int] = random.multinomial(TOKENS * 8 * EXPERT_PARALLEL, popularity).tolist()
    return rows


def _model(case: Case) -> tuple[Model, Experts]:
    """INT8, and the experts of its layers."""
    model = with_precision(case.model, {"all": "int8"})
    experts = model.layers[-1].feed_forward
    assert isinstance(experts, Experts)
    return model, experts


def _attention(npu: Rank, case: Case, layer: int) -> None:
    model, _ = _model(case)
    attention, batch = model.layers[-1].attention, MicroBatch(decodes=((1, CONTEXT),) * TOKENS)
    kernels = [*STACK.norm(model, TOKENS, "attention"), *STACK.inputs(model, attention, TOKENS, 1, False),
               *STACK.attend(model, attention, batch, 1, 1), *STACK.output(model, attention, TOKENS, 1)]
    for name, work in labelled(kernels, layer):
        npu.launch(work, name)


def _moe(npu: Rank, case: Case, layer: int, half: int, kinds: int) -> None:
    """kinds: how many loads of experts there are, dealt out in turn; 0: balanced."""
    (model, experts), ep = _model(case), npu.group("ep")
    away = TOKENS * 8
    for name, work in labelled(STACK.route(model, experts, TOKENS), layer):
        npu.launch(work, name)

    @cache
    def computed(rows: int) -> Kernels:
        return labelled(STACK.experts(model, experts, 0, (rows,), 1), layer)

    def exchange(name: str, row_bytes: int, back: bool) -> None:
        if not kinds:
            ep.all_to_all(name, away * row_bytes // EXPERT_PARALLEL, "fused_push")
            return

        def put(rank: int) -> Collective:
            ends = (away * row_bytes, _rows(layer, half)[rank % kinds] * row_bytes)
            out, into = ends[::-1] if back else ends
            return Collective("put", ep.name, "fused_push", sent_bytes=out, received_bytes=into)

        npu.launch_by_rank(put, f"{name}.write")
        ep.collect(f"{name}.arrive", "fused_push")

    exchange("dispatch", model.hidden + 4, back=False)
    loads = _rows(layer, half)[:kinds] if kinds else (away,)
    kernels = [computed(rows) for rows in loads]
    for place, (name, work) in enumerate(kernels[0]):
        if kinds:
            npu.launch_by_rank(lambda rank, place=place: kernels[rank % kinds][place][1], name)  # type: ignore[misc]
        else:
            npu.launch(work, name)
    exchange("combine", 2 * model.hidden, back=True)


def _iteration(npu: Rank, case: Case, layers: int, kinds: int) -> None:
    npu.program.captured = True
    for stream, cores in CORES.items():
        npu.confine(stream, cores)
    done = [npu.record() for _ in range(HALVES)]
    for layer in range(layers):
        for half in range(HALVES):
            with npu.scope(layer=layer, micro_batch=half):
                with npu.stream("attention"):
                    npu.wait(done[half])
                    _attention(npu, case, layer)
                    attended = npu.record()
                with npu.stream("moe"):
                    npu.wait(attended)
                    _moe(npu, case, layer, half, kinds)
                    done[half] = npu.record()


def scenario(dies: int, layers: int = LAYERS, kinds: int = 0) -> Scenario:
    """The iteration on so many dies, a multiple of 288; supernodes are as large as it takes.

    kinds: of experts by their load, in every group (288: each has its own); 0: routing is balanced.
    """
    workload = Workload(
        program=lambda npu, case: _iteration(npu, case, layers, kinds),
        groups=lambda case: {"ep": [
            tuple(range(first, first + EXPERT_PARALLEL)) for first in range(0, case.ranks, EXPERT_PARALLEL)
        ]},
    )  # fmt: skip
    changes = {"fabric.supernode.size": str(max(24, -(-dies // 16)))}
    return load_scenario("a3_prefill:dp").variant(
        machine="cloudmatrix384", kernels="cann_decode_2025", cards=dies // 2, workload=workload, expected=(),
        machine_changes=changes)


def run(dies: int = EXPERT_PARALLEL, ranks: str = "roles", layers: int = LAYERS, kinds: int = 0) -> Measurement:
    """CPU seconds of a whole run, recording of programs, replay and metrics included."""
    cpu_s, result = timed(lambda: looked_at(simulate(scenario(dies, layers, kinds), ranks=ranks)))
    return Measurement(cpu_s, cpu_s, {"tasks": len(result.timeline), "ranks": dies})
