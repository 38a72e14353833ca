"""What the metrics mean: a line for each that the library's scenarios report, in the unit that ends its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from simulator.errors import InputError, RunError
from simulator.program.task import Task
from simulator.program.world import record_shared
from simulator.study.refusals import numbers_of
from simulator.study.scenario import Case, Scenario
from simulator.study.simulate import Prepared, prepare

# What a workload measures or reads from the timeline; * is any text.
OF_WORKLOADS = {"latency_ms": "all that is simulated, until its last task has ended",
                "ttft_ms": "time to first token, here of the batch prefilled at once",
                "iteration_ms": "one decode iteration: all layers, sampling, drafts",
                "tpot_ms": "time per output token: iteration / tokens of a request in it",
                "throughput_tok_s": "tokens a second: of prompts in prefill, of output in decode",
                "throughput_tok_s_per_card": "tokens a second and card: of prompts in prefill, else of output",
                "accepted_tokens": "output tokens of a request in an iteration: one, and drafts",
                "prefill_iteration_ms": "an iteration that prefills prompts too, in the mean",
                "run_s": "all requests that fit, from their prompts to their last tokens",
                "requests": "requests that fit at once, on all ranks together",
                "requests_per_card": "the same for each card",
                "fitting_requests_unsharded": "requests that would fit if no weights were sharded",
                "free_gib_per_card": "memory left beside all that a card holds",
                "prefetch_stall_ms": "attention waits for gathered weights alone, per iteration",
                "mfu": "useful FLOPs of products and attention, of the peak of their type",
                "mbu": "bytes of weights, caches and activations, of the peak of HBM",
                "layer_us": "one layer, from the end of the one before to its own",
                "dispatch_us": "MoE dispatch, from start to end, mean over ranks",
                "combine_us": "MoE combine, from start to end, mean over ranks",
                "least_*_us": "the shortest of all ranks and layers, where nobody waits",
                "dispatch_gb_s": "values of all copies of a rank's tokens, by time",
                "combine_gb_s": "the same of the results that come back, BF16",
                "latency_us": "one collective, from start to end",
                "bus_gb_s": "bytes that a rank puts on the wire, by time",
                "dispatch_combine_us": "a dispatch and a combine together",
                "*_rdma_gb_s": "bytes of tokens, once for every node they go to, by time",
                "nvlink_share": "share of tokens to experts in their own node, over NVLink",
                "*_hop_flag_to_host_us": "slowest rank: until the proxy on the host sees the GPU's flag",
                "*_hop_proxy_polls_us": "slowest rank: until the proxy sees what has come",
                "*_hop_proxy*_us": "slowest rank: the proxy's thread on the host",
                "*_hop_engine_queue_us": "slowest rank: until the engine's worker takes the request up",
                "*_hop_posting_us": "slowest rank: writes posted before its last one",
                "*_hop_nic_queue_us": "slowest rank: in the NIC's queue, behind earlier writes",
                "*_hop_nic_out_us": "slowest rank: the NIC sends",
                "*_hop_wire_and_port_us": "slowest rank: on the wire, at a receiving port that is shared",
                "*_hop_completion_queue_us": "slowest rank: until the engine sees the completion",
                "*_hop_engine_us": "slowest rank: the engine's worker",
                "*_hop_flag_to_gpu_us": "slowest rank: until the GPU sees the host's flag",
                "*_hop_gpu_us": "slowest rank: kernels on the GPU",
                "*_hop_nvlink_us": "slowest rank: writes inside the node",
                "*_hop_*_us": "slowest rank: on the stream of this name",
                "kv_transfer_us": "the mean transfer of a layer's cache, flag to arrival",
                "kv_transfer_per_layer": "the longest one / layer_us: below 1 it hides under a layer",
                "kv_exposed_us": "what is left of transfers when prefill has ended",
                "ttft_colocated_ms": "when the instance that prefills has sampled",
                "ttft_split_ms": "when the other one has decoded: hand-over and a step later",
                "single_*KiB_gbit_s": "rate of one write of this size, from posting to completion",
                "paged_*KiB_gbit_s": "rate of many pages of this size in flight, while they leave",
                "update_s": "the whole update of the weights",
                "exposed_writes_ms": "waiting for writes at the ends of mesh groups"}
OF_EVERY_RUN = {"sent_LEVEL_mb": "10^6 bytes that a rank sends over links of this level of the fabric",
                "sent_again_mb": "10^6 bytes that all network cards have sent before, and lost (where there are any)",
                "sent_LEVEL_BLOCK_mb": "the same for one block of the program (attention, dispatch, ...)"}
OF_THE_TIMELINE = {"communication_ms": "at least one collective or transfer is at work",
                   "hidden_comm_ms": "of communication_ms, while compute kernels run on the same rank",
                   "exposed_comm_ms": "of communication_ms, while none do",
                   "waiting_comm_ms": "at least one collective or transfer waits for peers or cores",
                   "communication_share": "communication_ms / length of the run",
                   "compute_ms": "at least one compute kernel runs (no copy, prefetch or pause)",
                   "compute_stretch": "time of compute kernels / alone on the same cores; 1: undisturbed",
                   "compute_stretch_beside_communication": "the same while communication runs on the rank",
                   "host_bound_ms": "a compute kernel lacks only its launch, by a host that is not blocked",
                   "KIND_ms": "at least one task of this kind is at work (gemm, all_to_all, ...)",
                   "block_BLOCK_ms": "at least one task of this block is at work: the first word of its name"}


def meaning(metric: str) -> str:
    """What a metric of a workload means; "" if it is one of a workload of one's own."""
    return next((text for pattern, text in OF_WORKLOADS.items() if fnmatchcase(metric, pattern)), "")


def meaning_of_any(metric: str) -> str:
    """What any metric of a run means, of workloads and of timelines; "" where that is not known."""
    return meaning(metric) or OF_EVERY_RUN.get(metric, "") or OF_THE_TIMELINE.get(metric, "")


def unknown(metrics: Sequence[str], scenarios: Iterable[Scenario]) -> list[str]:
    """Those of the metrics that no run of these scenarios can have: no measure, kind or block of their programs, and
    nothing that a workload of the library reads from the timeline. What one's own reads is not known before it ran, nor
    what hosts do."""
    left, can_run = list(metrics), False
    for scenario in scenarios:
        readings = scenario.workload.readings
        if readings is not None and not readings.__module__.startswith("workloads."):
            return []
        try:
            ready = prepare(scenario, record=record_shared)
            if scenario.workload.live is not None and scenario.workload.has_hosts(ready.case):
                return []
            known = _known(ready) if left else set()
        except (InputError, RunError):  # its run says so
            continue
        can_run = True
        left = [one for one in left if one not in known and not (one.startswith("sent_") and one.endswith("_mb"))
                and not (readings is not None and meaning(one))]  # fmt: skip
    return left if can_run else []


def _known(ready: Prepared) -> set[str]:
    """The metrics of a run whose hosts do nothing beside it, and whose timeline nothing else is read from."""
    tasks = [item for program in ready.world.programs for item in program.items if isinstance(item, Task)]
    measures = numbers_of(ready.scenario, ready.scenario.workload.measures(ready.case, 1.0))
    return {*measures, *OF_THE_TIMELINE, *(f"{task.kind}_ms" for task in tasks),
            *(f"block_{task.block}_ms" for task in tasks)}


def metrics_of(scenario: Scenario, case: Case) -> Iterator[tuple[str, str]]:
    """(metric, meaning) of what a run reports, as far as is known before it."""
    yield from ((name, meaning(name)) for name in numbers_of(scenario, scenario.workload.measures(case, 1.0)))
    if scenario.workload.readings is not None:
        about = (scenario.workload.readings.__doc__ or "more").partition("\n")[0]
        yield "from the timeline", f"{about.removesuffix('.')} (`braid run` lists these)"
    yield from OF_EVERY_RUN.items()
    yield from OF_THE_TIMELINE.items()
