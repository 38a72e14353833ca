"""vLLM: `vllm serve`.

Flags are of vllm-project/vllm, by commit: vllm/config/parallel.py at 00193b8 (parallelism, backends of All2All, two
batches, EPLB, nodes), vllm/engine/arg_utils.py at 99d7eb5 (how they are spelt; graphs, drafts, KV transfer),
docs/serving/data_parallel_deployment.md at 01e4fce (max_num_seqs is of a data-parallel rank; ranks over nodes; Ray),
docs/serving/context_parallel_deployment.md at 020505c (decode context parallelism is on tensor-parallel ranks),
docs/features/nixl_connector_usage.md at 026c83f, docs/design/dbo.md at 0621454 (two batches by DeepEP alone). Experts
are on tensor x data parallel ranks, whole or split over all. The All2All of pplx kernels was removed; rows to every
expert by itself, with counts before them, are what FlashInfer's two-sided kernels send, over NVLink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.search.launch import Launch, common_lacks, heading, hosts, lack, precisions, told, wrapped

AXES = ("tp", "cp", "dp", "ep", "pp", "redundant")
BACKENDS = {"all_gather": "allgather_reducescatter", "all_to_all": "flashinfer_nvlink_two_sided",
            "deepep_ll": "deepep_low_latency", "deepep_normal": "deepep_high_throughput"}  # fmt: skip
CAPTURED = 512  # tokens of the largest graph by default, or twice max_num_seqs: vllm/config/compilation.py
THRESHOLD = 32  # tokens up to which a step that decodes stays in one batch: dbo_decode_token_threshold


def lines(launches: Sequence[Launch]) -> list[str]:
    """Of all engines, and what stands before them."""
    return [line for launch in launches for line in _lines(launch)] + _router(launches)


def _lines(launch: Launch) -> list[str]:
    flags, lacks = told([*_flags(launch), *common_lacks(launch, AXES)])
    command = [*_environment(launch), f"vllm serve {launch.model}"]
    made = [heading(launch), *lacks]
    if launch.nodes == 1:
        return [*made, *wrapped([*command, *flags])]
    first, rest, lacking = _over_nodes(launch)
    made += [lacking] if lacking else []
    made += wrapped([*command, *flags, *first])
    if rest:
        nodes = f"NODE_RANK=1..{launch.nodes - 1}" if launch.nodes > 2 else "NODE_RANK=1"
        made += [f"# on every other node, {nodes}", *wrapped([*command, *flags, *rest])]
    return made


def _environment(launch: Launch) -> Iterator[str]:
    shared = launch.experts is not None and launch.experts.shared_intermediate
    if launch.schedule == "one_stream" and shared:
        yield "VLLM_DISABLE_SHARED_EXPERTS_STREAM=1"
    if launch.role != "both":
        yield "VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST"
    if _spans(launch):
        yield "VLLM_RAY_DP_PACK_STRATEGY=span"


def _spans(launch: Launch) -> bool:
    """Whether several data-parallel groups need more than a node each."""
    return launch.mesh.dp > 1 and launch.cards // launch.mesh.dp > launch.node_cards


def _over_nodes(launch: Launch) -> tuple[list[str], list[str], str]:
    """(what the first node is told beside, and the others, what cannot be told)."""
    group = launch.cards // launch.mesh.dp
    if launch.mesh.dp == 1:
        same = [f"--nnodes {launch.nodes}", "--master-addr $HEAD"]
        return [*same, "--node-rank 0"], [*same, "--node-rank $NODE_RANK", "--headless"], ""
    if _spans(launch):
        return ["--data-parallel-backend ray"], [], ""
    local = launch.node_cards // group
    lacking = "" if launch.node_cards % group == 0 and launch.mesh.dp % local == 0 else lack(
        f"groups of {group} GPUs do not fill nodes of {launch.node_cards}")
    same = [f"--data-parallel-size-local {local}", "--data-parallel-address $HEAD", "--data-parallel-rpc-port 13345"]
    return same, [*same, f"--data-parallel-start-rank $(({local} * NODE_RANK))", "--headless"], lacking


def _flags(launch: Launch) -> Iterator[str]:
    mesh = launch.mesh
    yield f"--tensor-parallel-size {mesh.tensor}"
    if mesh.cp > 1:
        yield (f"--decode-context-parallel-size {mesh.cp}" if launch.role == "decode"
               else lack(f"cp={mesh.cp} of the mesh while it prefills"))
    if mesh.pp > 1:
        yield f"--pipeline-parallel-size {mesh.pp}"
    if mesh.dp > 1:
        yield f"--data-parallel-size {mesh.dp}"
    yield from _experts(launch)
    yield from _schedule(launch)
    yield from precisions(launch, {"fp8": "--kv-cache-dtype fp8"}, {"fp8": "--quantization fp8"})
    yield f"--max-num-batched-tokens {launch.tokens}"
    if launch.requests:
        yield f"--max-num-seqs {launch.requests}"
        if launch.decoding > min(2 * launch.requests, CAPTURED):
            yield f"--max-cudagraph-capture-size {launch.decoding}"
    if launch.drafts:
        config = f'{{"method":"mtp","num_speculative_tokens":{launch.drafts}}}'
        yield (f"--speculative-config '{config}'" if launch.architecture.drafts
               else lack(f"drafts={launch.drafts}: the model has no MTP layers, and no draft model is named"))
    if launch.role != "both":
        role = "kv_producer" if launch.role == "prefill" else "kv_consumer"
        yield f"""--kv-transfer-config '{{"kv_connector":"NixlConnector","kv_role":"{role}"}}'"""


def _experts(launch: Launch) -> Iterator[str]:
    mesh, experts = launch.mesh, launch.experts
    if experts is None:
        return
    together = mesh.attending
    if mesh.ep == together > 1:
        yield "--enable-expert-parallel"
    elif mesh.ep > 1:
        yield lack(f"ep={mesh.ep} of {together} ranks: experts are whole on {together} places, or split over all")
    backend = BACKENDS.get(launch.exchange)
    if mesh.dp == 1:
        if launch.exchange != "all_reduce":
            yield lack(f"exchange {launch.exchange} of one data-parallel group")
    elif backend is None:
        yield lack(f"exchange {launch.exchange}")
    elif launch.exchange == "all_to_all" and launch.nodes > 1:
        yield lack("exchange all_to_all beyond NVLink")
    elif mesh.ep == together:
        yield f"--all2all-backend {backend}"
    elif launch.exchange != "all_gather":
        yield lack(f"exchange {launch.exchange} of experts that all ranks split")
    if launch.slots:
        yield f"""--enable-eplb --eplb-config '{{"num_redundant_experts":{launch.slots - experts.routed}}}'"""


def _schedule(launch: Launch) -> Iterator[str]:
    if launch.schedule in ("", "one_stream", "shared_beside"):
        return
    if launch.schedule != "two_batches":
        yield lack(f"schedule {launch.schedule}")
    elif launch.exchange not in ("deepep_ll", "deepep_normal") or launch.mesh.dp == 1 or launch.mesh.ep == 1:
        yield lack("schedule two_batches without DeepEP between data-parallel groups")
    else:
        few = launch.role != "prefill" and launch.decoding <= THRESHOLD
        yield "--enable-dbo" + (" --dbo-decode-token-threshold 0" if few else "")


def _router(launches: Sequence[Launch]) -> list[str]:
    """The proxy between both roles that vLLM's own guide starts; engines that are alike have none of vLLM's."""
    if len(launches) == 1:
        count = launches[0].instances
        return [f"# before these: a balancer of requests over {count} addresses"] if count > 1 else []
    before, after = (hosts(one) for one in launches)
    proxy = "python tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
    return ["# router of both roles, in a clone of vllm-project/vllm",
            *wrapped([f"{proxy} --port 8192", f"--prefiller-hosts {' '.join(before)}",
                      f"--prefiller-ports{' 8000' * len(before)}", f"--decoder-hosts {' '.join(after)}",
                      f"--decoder-ports{' 8000' * len(after)}"])]
