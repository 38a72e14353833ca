"""SGLang: `python -m sglang.launch_server`.

Flags are of sgl-project/sglang, by commit: docs/advanced_features/server_arguments.md at 004813e (all arguments),
docs/advanced_features/speculative_decoding.md at 067ad4d (MTP by EAGLE with one branch: as many draft tokens as steps,
and one), docs/advanced_features/pd_disaggregation.md at 08edc50 (roles and the router), and python/sglang/srt/
server_args.py: with attention DP the chunk of prompts and the requests in flight are of all groups together, and are
divided by dp_size; two batches need a backend of All2All; tp_size counts all ranks of a stage. A rank has room for so
many rows in DeepEP's low-latency kernels: SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK, 128 by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.search.launch import Launch, common_lacks, heading, hosts, lack, precisions, told, wrapped

AXES = ("tp", "dp", "ep", "pp", "redundant", "dense", "head")
MODES = {"deepep_ll": "low_latency", "deepep_normal": "normal"}
DISPATCHED = 128  # rows of a rank by default
OVERLAPS = {"two_batches": "--enable-two-batch-overlap", "single_batch": "--enable-single-batch-overlap"}
PORT = {"both": 30000, "prefill": 30000, "decode": 30001}


def lines(launches: Sequence[Launch]) -> list[str]:
    """Of all engines, and the router before them."""
    return [line for launch in launches for line in _lines(launch)] + _router(launches)


def _lines(launch: Launch) -> list[str]:
    flags, lacks = told([*_flags(launch), *common_lacks(launch, AXES)])
    rows = launch.exchange == "deepep_ll" and launch.decoding > DISPATCHED
    command = [f"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={launch.decoding}"] if rows else []
    command.append(f"python -m sglang.launch_server --model-path {launch.model}")
    made = [heading(launch), *lacks]
    if launch.nodes == 1:
        return [*made, *wrapped([*command, *flags])]
    nodes = [f"--dist-init-addr $HEAD:5000 --nnodes {launch.nodes} --node-rank $NODE_RANK"]
    return [*made, f"# on every node, NODE_RANK=0..{launch.nodes - 1}", *wrapped([*command, *flags, *nodes])]


def _flags(launch: Launch) -> Iterator[str]:
    mesh, attention_dp = launch.mesh, _attention_dp(launch)
    yield f"--tp-size {mesh.attending if attention_dp else mesh.tensor}"
    if mesh.cp > 1:
        yield lack(f"cp={mesh.cp} of the mesh")
    if mesh.pp > 1:
        yield f"--pp-size {mesh.pp}"
    if mesh.dp > 1:
        yield f"--dp-size {mesh.dp}" + (" --enable-dp-attention" if attention_dp else "")
    yield from _placed(launch, attention_dp)
    yield from _experts(launch)
    yield from _schedule(launch)
    yield from precisions(launch, {"fp8": "--kv-cache-dtype fp8_e4m3"}, {"fp8": "--quantization fp8"})
    groups = mesh.dp if attention_dp else 1
    if launch.role != "decode":
        yield f"--chunked-prefill-size {launch.tokens * groups}"
    if launch.requests:
        yield f"--max-running-requests {launch.requests * groups} --cuda-graph-max-bs {launch.requests}"
    if launch.drafts and launch.architecture.drafts:
        yield f"--speculative-algorithm EAGLE --speculative-num-steps {launch.drafts}"
        yield f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {launch.drafts + 1}"
    elif launch.drafts:
        yield lack(f"drafts={launch.drafts}: the model has no MTP layers, and no draft model is named")
    if launch.role != "both":
        yield (f"--disaggregation-mode {launch.role} --disaggregation-transfer-backend nixl "
               f"--host $HOST --port {PORT[launch.role]}")


def _attention_dp(launch: Launch) -> bool:
    """Whether data-parallel groups share their experts; without experts they are servers of their own."""
    return launch.mesh.dp > 1 and launch.experts is not None


def _placed(launch: Launch, attention_dp: bool) -> Iterator[str]:
    """Where the dense layers and the head are with attention DP: split over all ranks, if nothing is said."""
    mesh = launch.mesh
    for name in ("dense", "head"):
        if not attention_dp and mesh.split(name) != mesh.tensor:
            yield lack(f"{name}={mesh.split(name)} of the mesh")
    if not attention_dp:
        return
    if launch.some_dense:
        yield ("--moe-dense-tp-size 1" if mesh.split("dense") == 1
               else lack(f"dense layers that {mesh.split('dense')} ranks split: all do, or none"))
    yield "--enable-dp-lm-head" if mesh.split("head") == mesh.tensor else lack(f"head={mesh.split('head')} of the mesh")


def _experts(launch: Launch) -> Iterator[str]:
    mesh, experts = launch.mesh, launch.experts
    if experts is None:
        return
    if mesh.ep > 1:
        yield f"--ep-size {mesh.ep}"
    mode = MODES.get(launch.exchange)
    if mode and mesh.ep == mesh.attending:
        yield f"--moe-a2a-backend deepep --deepep-mode {mode}"
    elif mode:
        yield lack(f"exchange {launch.exchange} of experts that ranks split")
    elif launch.exchange != ("all_gather" if mesh.dp > 1 else "all_reduce"):
        yield lack(f"exchange {launch.exchange}")
    if launch.slots:
        yield f"--enable-eplb --ep-num-redundant-experts {launch.slots - experts.routed}"


def _schedule(launch: Launch) -> Iterator[str]:
    shared = launch.experts is not None and launch.experts.shared_intermediate
    if launch.schedule in ("", "shared_beside") or (launch.schedule == "one_stream" and not shared):
        return
    if launch.schedule == "two_batches" and launch.exchange not in MODES:
        yield lack("schedule two_batches without DeepEP")
    else:
        yield OVERLAPS.get(launch.schedule) or lack(f"schedule {launch.schedule}")


def _router(launches: Sequence[Launch]) -> list[str]:
    router = "python -m sglang_router.launch_router"
    urls = [[f"http://{host}:{PORT[one.role]}" for host in hosts(one)] for one in launches]
    if len(launches) == 1:
        return ["# router", *wrapped([router, "--worker-urls", *urls[0]])] if launches[0].instances > 1 else []
    return ["# router", *wrapped([f"{router} --pd-disaggregation", *(f"--prefill {url}" for url in urls[0]),
                                  *(f"--decode {url}" for url in urls[1])])]
