"""The budget of a layer: what is hidden under what, what is exposed, what waits."""

from __future__ import annotations

from simulator.observe.layer_budget import layer_budget
from tests.observe.hand import comm, task, timeline

US = 10**6
RUN = [
    task("attention.q", 0, 40 * US, kind="gemm", layer=0, stream="compute", bound_by="HBM"),
    task("attention.core", 40 * US, 100 * US, kind="attention", layer=0, stream="compute", bound_by="compute"),
    comm("dispatch.write", 60 * US, 130 * US, ready=50 * US, after=(0,), layer=0),
    task("attention.q", 100 * US, 140 * US, kind="gemm", layer=1, stream="compute", bound_by="HBM"),
]


def test_blocks_in_order_with_what_ran_beside_them() -> None:
    budget = layer_budget(timeline(RUN).columns(), rank=0, layer=0)
    assert budget is not None
    assert (budget.span_ps, budget.step_ps) == (130 * US, 100 * US)
    attention, dispatch = budget.blocks
    assert (attention.block, attention.tasks, attention.work_ps) == ("attention", 2, 100 * US)
    assert (attention.accompanied_ps, attention.alone_ps) == (40 * US, 60 * US)
    assert attention.beside_ps == {"dispatch": 40 * US}
    assert attention.bound_by == "compute"
    assert (dispatch.accompanied_ps, dispatch.alone_ps, dispatch.waiting_ps) == (70 * US, 0, 10 * US)
    assert dispatch.beside_ps == {"attention": 70 * US}  # of this layer and the next


def test_no_layers_no_budget_and_no_next_layer_no_step() -> None:
    columns = timeline(RUN).columns()
    last = layer_budget(columns, rank=0)
    assert last is not None
    assert (last.layer, last.step_ps) == (1, None)
    assert layer_budget(columns, rank=0, layer=7) is None
    assert layer_budget(timeline([task("head", 0, US)]).columns(), rank=0) is None
