"""Commands that launch a deployment: the whole text for each framework, and what it cannot be told."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from simulator.commands.step import step
from simulator.errors import InputError
from simulator.search.deployment import Ask, Deployment, Engine, Found
from simulator.search.emit import FRAMEWORKS, flags, framework_of, steps
from simulator.search.launch import named, wrapped

LLAMA = Ask("llama_3_1_70b", "dgx_h100", 8, 8, 4096, 1024)
R1 = Ask("deepseek_r1", "dgx_h200", 8, 64, 4096, 1024, acceptance=0.7)
GPT_OSS = Ask("gpt_oss_120b", "dgx_h200", 8, 16, 1024, 1024)


def found(engines: Engine, requests: int, prefill: Engine | None = None, count: int = 1,
          prefill_count: int = 0) -> Found:
    return Found(Deployment(engines, prefill), count, prefill_count, 8, requests, 500.0, 30.0, 400.0, 33.0, "TPOT")


def text(given: Found, ask: Ask, framework: str) -> str:
    return "\n".join(flags(given, ask, framework)) + "\n"


ONE_SERVER = found(Engine("vllm", "tp=8", (("knobs.precision", "kv=fp8"),)), 96)
TWO_SERVERS = found(Engine("vllm", "tp=4", (("knobs.precision", "all=fp8"),), 4096), 700, count=2)
APART = found(
    Engine("sglang", "dp=16,ep=16,redundant=1",
           (("batch.drafts", "1"), ("knobs.exchange", "deepep_ll"), ("knobs.schedule", "two_batches"))), 2048,
    Engine("sglang", "dp=8,ep=8", (("knobs.exchange", "deepep_normal"),), 16384), prefill_count=2)  # fmt: skip


def test_one_server_of_vllm() -> None:
    assert text(ONE_SERVER, LLAMA, "vllm") == """\
# prefill and decode: 1 engine of 8 GPUs
vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 8 --kv-cache-dtype fp8 \\
    --max-num-batched-tokens 8192 --max-num-seqs 96
"""


def test_two_servers_of_vllm_that_quantise_what_they_load() -> None:
    """Graphs are captured up to 512 tokens unless it is told otherwise."""
    assert text(TWO_SERVERS, LLAMA, "vllm") == """\
# prefill and decode: 2 engines of 4 GPUs
vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4 --quantization fp8 \\
    --max-num-batched-tokens 4096 --max-num-seqs 700 --max-cudagraph-capture-size 700
# before these: a balancer of requests over 2 addresses
"""


def test_both_roles_of_vllm_over_nodes() -> None:
    """Every rank has its own max-num-seqs; copies of experts are counted over all of them."""
    assert text(APART, R1, "vllm") == """\
# prefill: 2 engines of 8 GPUs
VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 1 \\
    --data-parallel-size 8 --enable-expert-parallel --all2all-backend deepep_high_throughput \\
    --max-num-batched-tokens 16384 \\
    --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
# decode: 1 engine of 16 GPUs, each over 2 nodes
VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 1 \\
    --data-parallel-size 16 --enable-expert-parallel --all2all-backend deepep_low_latency \\
    --enable-eplb --eplb-config '{"num_redundant_experts":16}' --enable-dbo --max-num-batched-tokens 8192 \\
    --max-num-seqs 128 --speculative-config '{"method":"mtp","num_speculative_tokens":1}' \\
    --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}' \\
    --data-parallel-size-local 8 --data-parallel-address $HEAD --data-parallel-rpc-port 13345
# on every other node, NODE_RANK=1
VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 1 \\
    --data-parallel-size 16 --enable-expert-parallel --all2all-backend deepep_low_latency \\
    --enable-eplb --eplb-config '{"num_redundant_experts":16}' --enable-dbo --max-num-batched-tokens 8192 \\
    --max-num-seqs 128 --speculative-config '{"method":"mtp","num_speculative_tokens":1}' \\
    --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}' \\
    --data-parallel-size-local 8 --data-parallel-address $HEAD --data-parallel-rpc-port 13345 \\
    --data-parallel-start-rank $((8 * NODE_RANK)) --headless
# router of both roles, in a clone of vllm-project/vllm
python tests/v1/kv_connector/nixl_integration/toy_proxy_server.py --port 8192 \\
    --prefiller-hosts $PREFILL_0 $PREFILL_1 --prefiller-ports 8000 8000 --decoder-hosts $DECODE_0 \\
    --decoder-ports 8000
"""


def test_two_servers_of_sglang() -> None:
    assert text(TWO_SERVERS, LLAMA, "sglang") == """\
# prefill and decode: 2 engines of 4 GPUs
python -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B --tp-size 4 --quantization fp8 \\
    --chunked-prefill-size 4096 --max-running-requests 700 --cuda-graph-max-bs 700
# router
python -m sglang_router.launch_router --worker-urls http://$ENGINE_0:30000 http://$ENGINE_1:30000
"""


def test_both_roles_of_sglang() -> None:
    """Chunks and requests are of all groups together, which attention DP divides; graphs are of one."""
    assert text(APART, R1, "sglang") == """\
# prefill: 2 engines of 8 GPUs
python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp-size 8 \\
    --dp-size 8 --enable-dp-attention --moe-dense-tp-size 1 --enable-dp-lm-head --ep-size 8 \\
    --moe-a2a-backend deepep --deepep-mode normal --chunked-prefill-size 131072 \\
    --disaggregation-mode prefill --disaggregation-transfer-backend nixl --host $HOST --port 30000
# decode: 1 engine of 16 GPUs, each over 2 nodes
# on every node, NODE_RANK=0..1
SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256 \\
    python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp-size 16 \\
    --dp-size 16 --enable-dp-attention --moe-dense-tp-size 1 --enable-dp-lm-head --ep-size 16 \\
    --moe-a2a-backend deepep --deepep-mode low_latency --enable-eplb --ep-num-redundant-experts 16 \\
    --enable-two-batch-overlap --max-running-requests 2048 --cuda-graph-max-bs 128 \\
    --speculative-algorithm EAGLE --speculative-num-steps 1 \\
    --speculative-eagle-topk 1 --speculative-num-draft-tokens 2 \\
    --disaggregation-mode decode --disaggregation-transfer-backend nixl --host $HOST --port 30001 \\
    --dist-init-addr $HEAD:5000 --nnodes 2 --node-rank $NODE_RANK
# router
python -m sglang_router.launch_router --pd-disaggregation --prefill http://$PREFILL_0:30000 \\
    --prefill http://$PREFILL_1:30000 --decode http://$DECODE_0:30001
"""


def test_one_server_of_tensorrt_llm() -> None:
    assert text(ONE_SERVER, LLAMA, "trtllm") == """\
# prefill and decode: 1 engine of 8 GPUs
cat > engine.yaml <<'EOF'
kv_cache_config:
  dtype: fp8
cuda_graph_config:
  enable_padding: true
  max_batch_size: 96
EOF
trtllm-serve meta-llama/Llama-3.1-70B --backend pytorch --tp_size 8 --max_num_tokens 8192 \\
    --max_batch_size 96 --config engine.yaml
"""


def test_both_roles_of_tensorrt_llm() -> None:
    assert text(APART, R1, "trtllm") == """\
# prefill: 2 engines of 8 GPUs
cat > prefill.yaml <<'EOF'
enable_attention_dp: true
disable_overlap_scheduler: true
cache_transceiver_config:
  backend: DEFAULT
  max_tokens_in_buffer: 4096
EOF
TRTLLM_FORCE_COMM_METHOD=DEEPEP trtllm-serve deepseek-ai/DeepSeek-R1 --backend pytorch --tp_size 8 \\
    --ep_size 8 --max_num_tokens 16384 --host $HOST --port 8001 --config prefill.yaml
# decode: 1 engine of 16 GPUs, each over 2 nodes
# not expressible: schedule two_batches
cat > decode.yaml <<'EOF'
enable_attention_dp: true
moe_config:
  backend: WIDEEP
  load_balancer:
    num_slots: 272
    layer_updates_per_iter: 1
cuda_graph_config:
  enable_padding: true
  max_batch_size: 128
speculative_config:
  decoding_type: MTP
  max_draft_len: 1
cache_transceiver_config:
  backend: DEFAULT
  max_tokens_in_buffer: 4096
EOF
TRTLLM_FORCE_COMM_METHOD=DEEPEPLOWLATENCY \\
    srun -N 2 --ntasks 16 --ntasks-per-node 8 --mpi=pmix trtllm-llmapi-launch \\
    trtllm-serve deepseek-ai/DeepSeek-R1 --backend pytorch --tp_size 16 --ep_size 16 --max_num_tokens 8192 \\
    --max_batch_size 128 --host $HOST --port 8001 --config decode.yaml
# server of both roles
cat > disaggregated.yaml <<EOF
hostname: 0.0.0.0
port: 8000
backend: pytorch
context_servers:
  num_instances: 2
  urls:
    - "$PREFILL_0:8001"
    - "$PREFILL_1:8001"
generation_servers:
  num_instances: 1
  urls:
    - "$DECODE_0:8001"
EOF
trtllm-serve disaggregated -c disaggregated.yaml
"""


MIXED = found(Engine("sglang", "tp=8,dp=2,ep=4,o_proj=4", (("knobs.cores", "66/66"), ("knobs.schedule", "hooks"))), 256)
PROXIED = found(Engine("vllm", "dp=8,ep=8", (
    ("batch.drafts", "2"), ("knobs.exchange", "put_collect"), ("knobs.precision", "all=fp8"),
    ("knobs.schedule", "two_batches"))), 64)  # fmt: skip


@pytest.mark.parametrize(("given", "ask", "framework", "lacks"), [
    (MIXED, R1, "vllm", ["ep=4 of 16 ranks: experts are whole on 16 places, or split over all", "schedule hooks",
                         "o_proj=4 of the mesh", "knobs.cores=66/66"]),
    (MIXED, R1, "sglang", ["dense layers that 8 ranks split: all do, or none", "schedule hooks", "o_proj=4 of the mesh",
                           "knobs.cores=66/66"]),
    (MIXED, R1, "trtllm", ["dp=2 of 16 ranks: attention is data parallel over all, or not at all", "schedule hooks",
                           "o_proj=4 of the mesh", "knobs.cores=66/66"]),
    (PROXIED, GPT_OSS, "vllm", ["exchange put_collect",
                                "schedule two_batches without DeepEP between data-parallel groups",
                                "attention, experts in fp8 without a checkpoint that was quantised so",
                                "drafts=2: the model has no MTP layers, and no draft model is named"]),
    (PROXIED, GPT_OSS, "sglang", ["exchange put_collect", "schedule two_batches without DeepEP",
                                  "attention, experts in fp8 without a checkpoint that was quantised so",
                                  "drafts=2: the model has no MTP layers, and no draft model is named"]),
])  # fmt: skip
def test_what_cannot_be_expressed_is_told(given: Found, ask: Ask, framework: str, lacks: list[str]) -> None:
    lines = flags(given, ask, framework)
    assert [line.removeprefix("# not expressible: ") for line in lines if line.startswith("# not")] == lacks


@pytest.mark.parametrize(("mesh", "apart", "wanted"), [
    ("tp=8,pp=2", False, "--nnodes 2 --master-addr $HEAD --node-rank 0"),
    ("tp=16,dp=2", False, "--data-parallel-backend ray"),
    ("tp=4,cp=2", True, "--tensor-parallel-size 8 --decode-context-parallel-size 2"),
])  # fmt: skip
def test_other_meshes_of_vllm(mesh: str, apart: bool, wanted: str) -> None:
    """Of a group that needs several nodes, of several such, and with the cache split between ranks."""
    prefill = Engine("vllm", "tp=8") if apart else None
    lines = flags(found(Engine("vllm", mesh), 32, prefill, 1, 1), R1, "vllm")
    assert wanted in "\n".join(lines).replace(" \\\n    ", " ")
    assert not any(line.startswith("# not") for line in lines)


@pytest.mark.parametrize(("framework", "word"), [
    ("vllm", "--all2all-backend flashinfer_nvlink_two_sided"), ("trtllm", "TRTLLM_FORCE_COMM_METHOD=NVLINK_TWO_SIDED")])
def test_rows_go_over_nvlink_alone(framework: str, word: str) -> None:
    engines = [Engine("vllm", mesh, (("knobs.exchange", "all_to_all"),)) for mesh in ("dp=8,ep=8", "dp=16,ep=16")]
    inside, beyond = (text(found(one, 64), R1, framework) for one in engines)
    lacking = "# not expressible: exchange all_to_all beyond NVLink"
    assert (word in inside, lacking in inside) == (True, False)
    assert (word in beyond, lacking in beyond) == (False, True)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_shell_reads_the_lines(framework: str) -> None:
    """Every quotation ends, and every line that goes on has a next one."""
    for given, ask in ((ONE_SERVER, LLAMA), (TWO_SERVERS, LLAMA), (APART, R1), (MIXED, R1), (PROXIED, GPT_OSS)):
        lines = flags(given, ask, framework)
        assert not any("\n" in line for line in lines)
        assert not lines[-1].endswith("\\")
        for line in "\n".join(lines).replace(" \\\n", " ").splitlines():
            shlex.split(line, comments=True)


def test_parts_of_a_command_stay_whole() -> None:
    parts = ["serve", *(f"--flag-{number} {'x' * 30}" for number in range(5))]
    lines = wrapped(parts)
    assert [len(line) for line in lines] == [87, 85, 43]
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert " ".join(line.removesuffix(" \\").strip() for line in lines) == " ".join(parts)


def test_a_model_is_named_as_hugging_face_has_it(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}", encoding="utf-8")
    assert named("kimi_k2") == "moonshotai/Kimi-K2-Instruct"
    assert named(str(config)) == named(str(tmp_path)) == str(tmp_path)


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(InputError, match=r"--emit sglnag: one of vllm, sglang, trtllm \(did you mean 'sglang'\?\)"):
        flags(ONE_SERVER, LLAMA, "sglnag")


def test_steps_are_those_of_braid() -> None:
    assert "\n".join(steps(APART, R1._replace(prefix_share=0.5))) == """\
braid step --model deepseek_r1 --machine dgx_h200 --stack sglang --mesh dp=16,ep=16,redundant=1 \\
    --set batch.drafts=1 --set knobs.exchange=deepep_ll --set knobs.schedule=two_batches \\
    --set batch.acceptance=0.7 --batch 2048 --context 4608
braid step --model deepseek_r1 --machine dgx_h200 --stack sglang --mesh dp=8,ep=8 \\
    --set knobs.exchange=deepep_normal --phase prefill --context 2048 --prefix 2048 --batch 8"""


def test_a_step_of_a_found_deployment_runs() -> None:
    for line in "\n".join(steps(TWO_SERVERS, LLAMA)).replace(" \\\n", " ").splitlines():
        words = shlex.split(line)
        assert words[:2] == ["braid", "step"]
        with step.make_context("step", words[2:]) as given:
            assert given.params["model"] == "llama_3_1_70b"
            assert given.params["settings"] == {"knobs.precision": "all=fp8"}


def test_a_stack_has_its_framework() -> None:
    assert [framework_of(stack) for stack in ("sglang_2025", "trtllm", "cann_decode")] == ["sglang", "trtllm", None]
