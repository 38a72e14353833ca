"""RL weight update of a 1T-parameter model from 256 training GPUs (BF16) to 128 inference GPUs (FP8), ConnectX-7."""

from __future__ import annotations

from simulator.study.scenario import Scenario, Source, Study
from workloads.weight_update import WEIGHT_UPDATE, Knobs, Model

_expect = Source("TransferEngine and MoE kernels of Perplexity, arXiv 2510.27656").expects


def update() -> Scenario:
    """Stages one after the other, writes beside them; a slice of 8 training and 4 inference GPUs stands for all."""
    inputs = ": times of the stages (834 ms) and waiting for other ranks (357 ms) are inputs"
    exposed = (": writes that nothing hides. Here the wire is idle four fifths of the time, and only the last writes of"
               " a mesh group are left; how many groups there are, and which parameters are large, is not published")
    waiting = Study(
        title="Waiting for other ranks is an input", key="knobs.wait_s", values=("0", "0.18", "0.357"),
        metrics=("update_s", "exposed_writes_ms"),
    )  # fmt: skip
    mesh_groups = Study(
        title="Mesh groups, of which each ends with its writes and a barrier (number assumed)",
        key="knobs.mesh_groups", values=("1", "4", "16", "61"), metrics=("update_s", "exposed_writes_ms"),
    )  # fmt: skip
    slower = Study(
        title="Goodput of a card: writes hide under the stages until the wire takes longer than these",
        key="machine.nic.goodput", values=("46.7 GB/s", "20 GB/s", "10 GB/s", "5 GB/s"),
        metrics=("update_s", "exposed_writes_ms"),
    )  # fmt: skip
    return Scenario(
        title="RL weight update of 1T parameters, 256 to 128 GPUs",
        machine="h200_cx7",
        model="kimi_k2",
        kernels="pplx_2025",
        cards=12,
        batch=Model(),
        knobs=Knobs(),
        workload=WEIGHT_UPDATE,
        expected=(_expect("pplx.rl", "update_s", 1.3, inputs),
                  _expect("pplx.rl.stages", "update_s", 1.233, inputs),
                  _expect("pplx.rl.stages", "exposed_writes_ms", 42, exposed)),
        studies=(waiting, mesh_groups, slower),
    )
