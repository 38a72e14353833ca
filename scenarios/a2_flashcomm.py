"""Atlas 800I A2, one node of 8 cards: decode of Llama-3.1-70B, W8A8, tensor parallel, with and without FlashComm.

Published by Huawei ("FlashComm", 2025) as time per output token at batches of 16 and 512. What is not known of these
runs was decided before their results were looked at: 1024 cached tokens of every request (512 requests find room for
2.4K), a captured graph, HCCL as it is by default, and no time of the host between iterations.
"""

from __future__ import annotations

from scenarios.transformer import decode
from simulator.study.scenario import Expected, Scenario, Source, Study
from workloads.transformer import Knobs, Step

_expect = Source("Huawei, FlashComm: communication optimisation in LLM inference on Ascend, 2025").expects
FLASHCOMM = Knobs(precision=("all=int8",), residual="split")
_HOST = "the host's time between iterations, 2 ms in a2_decode, is not in it"
_RATE = ("half of it is communication, at 57 GB/s out of a card, the rate for 1 MB per link, fitted on a2.decode.2k2k"
         " over four nodes; and contexts are not published: with 256 cached tokens instead of 1024 it is {} (see the"
         " studies)")  # fmt: skip


def _llama(title: str, requests: int, expected: Expected) -> Scenario:
    return decode().variant(
        title=f"Atlas A2 decode of Llama-3.1-70B, TP8: {title}",
        machine="atlas_a2",
        kernels="cann_2025",
        batch=Step(requests=requests, context=1024),
        knobs=Knobs(precision=("all=int8",)),
        expected=(expected,),
    )


def llama_16() -> Scenario:
    """16 requests, an AllReduce behind attention and one behind the FFN."""
    row = _expect("a2.flashcomm.llama", "tpot_ms", 17.9, note=f": {_HOST}")
    studies = (
        Study(
            title="Atlas A2 decode of Llama-3.1-70B at 16 requests: start-up of collectives in a graph",
            key="machine.collectives.sdma.startup",
            values=("5 us", "10 us", "20 us"),
            metrics=("tpot_ms", "exposed_comm_ms"),
            beside=("a2_flashcomm:llama_16_flashcomm",),
        ),
        Study(
            title="Atlas A2 decode of Llama-3.1-70B at 16 requests: HCCL by default (SDMA, expanded by the host), or in"
            " one kernel on vector cores (HCCL_OP_EXPANSION_MODE=AIV)",
            key="knobs.engine",
            values=("sdma", "aiv"),
            metrics=("tpot_ms", "exposed_comm_ms"),
            beside=("a2_flashcomm:llama_16_flashcomm",),
        ),
    )
    return _llama("16 requests", 16, row).variant(studies=studies)


def llama_16_flashcomm() -> Scenario:
    """The same with ReduceScatter, norm and quantisation on a rank's own tokens, and AllGather of INT8."""
    row = _expect("a2.flashcomm.llama", "tpot_ms", 17.2, note=f": {_HOST}")
    return llama_16().variant(title="Atlas A2 decode of Llama-3.1-70B, TP8: 16 requests, FlashComm", knobs=FLASHCOMM,
                              expected=(row,), studies=())  # fmt: skip


def llama_512() -> Scenario:
    """512 requests, with AllReduces."""
    row = _expect("a2.flashcomm.llama", "tpot_ms", 70.3, note=f": {_RATE.format(72.9)}")
    studies = (
        Study(
            title="Atlas A2 decode of Llama-3.1-70B at 512 requests: cached tokens of each, not published",
            key="batch.context",
            values=("256", "512", "1024", "2048"),
            metrics=("tpot_ms", "exposed_comm_ms"),
            beside=("a2_flashcomm:llama_512_flashcomm",),
        ),
        Study(
            title="Atlas A2 decode of Llama-3.1-70B at 512 requests: what the mesh carries up to 4 MB per link, as"
            " fitted on a2.decode.2k2k, before that fit (0.35 of 196 GB/s), and at 0.7",
            key="machine.collectives.sdma.ladder.default.0.rate",
            values=("57.35 GB/s", "68.6 GB/s", "137.2 GB/s"),
            metrics=("tpot_ms", "exposed_comm_ms"),
            beside=("a2_flashcomm:llama_512_flashcomm",),
        ),
    )
    return _llama("512 requests", 512, row).variant(studies=studies)


def llama_512_flashcomm() -> Scenario:
    """The same with FlashComm."""
    row = _expect("a2.flashcomm.llama", "tpot_ms", 60.5, note=f": {_RATE.format(60.9)}")
    return llama_512().variant(title="Atlas A2 decode of Llama-3.1-70B, TP8: 512 requests, FlashComm", knobs=FLASHCOMM,
                               expected=(row,), studies=())  # fmt: skip
