"""TensorRT-LLM: `trtllm-serve` with a YAML file.

Options are of NVIDIA/TensorRT-LLM, by commit: tensorrt_llm/commands/serve.py at 00209af (the command),
tensorrt_llm/llmapi/llm_args.py at fcd3f31 and later (keys of the file), docs/source/features/disagg-serving.md at
0434b98 (both roles), examples/wide_ep/README.md at 0e62604 (slots of experts), tensorrt_llm/_torch/modules/fused_moe/
communication/communication_factory.py (TRTLLM_FORCE_COMM_METHOD), tensorrt_llm/_torch/pyexecutor/py_executor.py (with
attention DP max_batch_size is of one rank, and tp_size ranks have as many each). Attention is tensor parallel over all
ranks of a stage, or data parallel over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.search.launch import Launch, common_lacks, heading, hosts, lack, precisions, told, wrapped

AXES = ("tp", "dp", "ep", "pp", "redundant")
METHODS = {"all_gather": "ALLGATHER", "all_to_all": "NVLINK_TWO_SIDED", "deepep_ll": "DEEPEPLOWLATENCY",
           "deepep_normal": "DEEPEP"}  # fmt: skip
PORT = 8001


def lines(launches: Sequence[Launch]) -> list[str]:
    """Of all engines, and the server before both roles."""
    return [line for launch in launches for line in _lines(launch)] + _router(launches)


def _lines(launch: Launch) -> list[str]:
    settings, lacks = told([*_file(launch), *common_lacks(launch, AXES)])
    ranks = _attention_ranks(launch)
    command = [*_launcher(launch), f"trtllm-serve {launch.model} --backend pytorch", f"--tp_size {ranks}"]
    command += [f"--pp_size {launch.mesh.pp}"] if launch.mesh.pp > 1 else []
    command += [f"--ep_size {launch.mesh.ep}"] if launch.experts is not None else []
    command += [f"--max_num_tokens {launch.tokens}"]
    command += [f"--max_batch_size {launch.requests}"] if launch.requests else []
    command += ["--enable_chunked_prefill"] if launch.tokens < launch.input_tokens and launch.role != "decode" else []
    command += [f"--host $HOST --port {PORT}"] if launch.role != "both" else []
    name = "engine.yaml" if launch.role == "both" else f"{launch.role}.yaml"
    file = [f"cat > {name} <<'EOF'", *"\n".join(settings).splitlines(), "EOF"] if settings else []
    if launch.mesh.dp > 1 and launch.experts is None:
        file = [f"# {launch.mesh.dp} servers stand for each: without experts, groups are engines of their own", *file]
    return [heading(launch), *lacks, *file, *wrapped([*command, f"--config {name}"] if settings else command)]


def _attention_dp(launch: Launch) -> bool:
    return launch.mesh.dp > 1 and launch.experts is not None


def _attention_ranks(launch: Launch) -> int:
    """tp_size: of a stage with attention DP, else of one group."""
    return launch.mesh.attending if _attention_dp(launch) else launch.mesh.tensor


def _launcher(launch: Launch) -> Iterator[str]:
    """Several nodes are launched by MPI, a task for each rank."""
    if _attention_dp(launch) and launch.exchange in METHODS and (launch.exchange != "all_to_all" or launch.nodes == 1):
        yield f"TRTLLM_FORCE_COMM_METHOD={METHODS[launch.exchange]}"
    if launch.nodes > 1:
        yield (f"srun -N {launch.nodes} --ntasks {launch.mesh.ranks} --ntasks-per-node {launch.node_cards} --mpi=pmix "
               "trtllm-llmapi-launch")


def _file(launch: Launch) -> Iterator[str]:
    mesh = launch.mesh
    if mesh.cp > 1:
        yield lack(f"cp={mesh.cp} of the mesh")
    if _attention_dp(launch):
        yield "enable_attention_dp: true"
        if mesh.tensor > 1:
            yield lack(f"dp={mesh.dp} of {mesh.attending} ranks: attention is data parallel over all, or not at all")
    yield from _experts(launch)
    if launch.schedule not in ("", "shared_beside"):
        yield lack(f"schedule {launch.schedule}")
    yield from precisions(launch, {"fp8": "kv_cache_config:\n  dtype: fp8"}, {})
    if launch.requests:
        yield f"cuda_graph_config:\n  enable_padding: true\n  max_batch_size: {launch.requests}"
    if launch.drafts:
        yield (f"speculative_config:\n  decoding_type: MTP\n  max_draft_len: {launch.drafts}"
               if launch.architecture.drafts
               else lack(f"drafts={launch.drafts}: the model has no MTP layers, and no draft model is named"))
    if launch.role != "both":
        off = "disable_overlap_scheduler: true\n" if launch.role == "prefill" else ""
        yield f"{off}cache_transceiver_config:\n  backend: DEFAULT\n  max_tokens_in_buffer: {launch.input_tokens}"


def _experts(launch: Launch) -> Iterator[str]:
    mesh = launch.mesh
    if launch.experts is None:
        return
    if mesh.dp == 1 and launch.exchange != "all_reduce":
        yield lack(f"exchange {launch.exchange} without attention DP")
    elif mesh.dp > 1 and launch.exchange not in METHODS:
        yield lack(f"exchange {launch.exchange}")
    elif launch.exchange == "all_to_all" and launch.nodes > 1:
        yield lack("exchange all_to_all beyond NVLink")
    if launch.slots:
        yield (f"moe_config:\n  backend: WIDEEP\n  load_balancer:\n    num_slots: {launch.slots}\n"
               "    layer_updates_per_iter: 1")


def _router(launches: Sequence[Launch]) -> list[str]:
    if len(launches) == 1:
        count = launches[0].instances
        return [f"# before these: a balancer of requests over {count} addresses"] if count > 1 else []
    file = ["hostname: 0.0.0.0", "port: 8000", "backend: pytorch"]
    for name, one in zip(("context_servers", "generation_servers"), launches, strict=True):
        file += [f"{name}:", f"  num_instances: {one.instances}", "  urls:"]
        file += [f'    - "{host}:{PORT}"' for host in hosts(one)]
    return ["# server of both roles", "cat > disaggregated.yaml <<EOF", *file, "EOF",
            "trtllm-serve disaggregated -c disaggregated.yaml"]
