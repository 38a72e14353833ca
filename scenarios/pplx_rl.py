"""RL weight update of a 1T-parameter model from 256 training GPUs (BF16) to 128 inference GPUs (FP8), ConnectX-7."""

from __future__ import annotations

from simulator.study.scenario import Scenario, Source, Study
from workloads.weight_update import WEIGHT_UPDATE, Knobs, Model

_expect = Source("TransferEngine and MoE kernels of Perplexity, arXiv 2510.27656").expects


def pipelined() -> Scenario:
    """Copies, GPU stages and writes overlap; a slice of 8 training and 4 inference GPUs stands for all."""
    note = (": 1.3 s. Waiting for other ranks (0.36 s) and the times of the stages are inputs; these overlap "
            "to 0.63 s here, and nothing published says what the remaining 0.3 s are; mesh groups and how far copies "
            "run ahead are assumed")
    total = _expect("pplx.rl", "update_s", 1.3, note)
    waiting = Study(
        title="Waiting for other ranks is an input",
        key="knobs.wait_s", values=("0", "0.18", "0.36"), metrics=("update_s",), beside=("pplx_rl:serial",),
    )  # fmt: skip
    return Scenario(
        title="RL weight update of 1T parameters, 256 to 128 GPUs, as a pipeline",
        machine="h200_cx7",
        model="kimi_k2",
        kernels="pplx_2025",
        cards=12,
        batch=Model(),
        knobs=Knobs(),
        workload=WEIGHT_UPDATE,
        expected=(total,),
        studies=(waiting,),
    )


def serial() -> Scenario:
    """Every parameter is finished before the next one is begun."""
    slower = _expect("pplx.rl", "update_s", 1.0, ": the stages overlap", against="pplx_rl:pipelined", band=(1.0, None))
    return pipelined().variant(title="RL weight update of 1T parameters, 256 to 128 GPUs, one by one",
                               knobs=Knobs(overlap=False), expected=(slower,), studies=())
