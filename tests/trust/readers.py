"""Targets of the fuzzer that read files: each writes a hostile file into a folder and reads it as the commands do.

A target raises what the reader raises. What is read is used a little, for what is wrong with a file may show late.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from tests.trust.fault_texts import fault_files
from tests.trust.variants import json_text, odd, raw, scalar, text, toml_text, tree

ROOT = Path(__file__).resolve().parents[2]
Target = Callable[[Random, Path], None]
LINES = {
    "mooncake": '{"timestamp": 0, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
                '{"timestamp": 27000, "input_length": 1024, "output_length": 7, "hash_ids": [46, 47]}\n',
    "bailian": '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 40, "output_length": 9, '
               '"type": "text", "turn": 1, "hash_ids": [1, 2, 3]}\n'
               '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62, '
               '"input_length": 16, "output_length": 2, "type": "text", "turn": 2, "hash_ids": [1]}\n',
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.9799600,4808,10\n"
             "2023-11-17 00:00:00.0319601,3180,8\n",
    "burst": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
             "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n",
    "lengths": "input_length,output_length,priority\n100,20,1\n30,4,0\n",
}  # fmt: skip
KINETO = {"distributedInfo": {"rank": 3}, "traceEvents": [
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 1.5, "dur": 2,
     "args": {"correlation": 5}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.25, "dur": 30.5,
     "args": {"device": 0, "stream": 7, "correlation": 5}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "pid": 0, "tid": 7, "ts": 50, "dur": 3,
     "args": {"device": 0, "stream": 7}},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "pid": 0, "tid": 8, "ts": 41,
     "dur": 5, "args": {"device": 0, "stream": 8, "braid_kind": "all_reduce", "layer": 1}}]}  # fmt: skip
MSPROF = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Ascend Hardware"}},
    {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "Communication"}},
    {"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": "NPU 3"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 4, "args": {"name": "Stream 4"}},
    {"ph": "M", "name": "thread_name", "pid": 2, "tid": 1, "args": {"name": "Group 0 Communication"}},
    {"ph": "s", "cat": "async_npu", "id": 1, "pid": 5, "tid": 5, "ts": "3.1"},
    {"ph": "f", "cat": "async_npu", "id": 1, "pid": 1, "tid": 4, "ts": "10.5"},
    {"ph": "X", "name": "MatMulV2", "pid": 1, "tid": 4, "ts": "10.5", "dur": "4.25", "args": {"Task Type": "AI_CORE"}},
    {"ph": "X", "name": "EVENT_WAIT", "pid": 1, "tid": 4, "ts": "15", "dur": "1", "args": {"Task Type": "EVENT"}},
    {"ph": "X", "name": "hcom_allReduce__606_0_1", "pid": 2, "tid": 1, "ts": "12", "dur": "9", "args": {}}]
DETAILS = ("Device_id,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
           "0,4,MatMul_1,MatMulV2,AI_CORE,100.5,20.25\n0,5,hcom_allReduce__606_0_1,hcom_allReduce_,HCCL,110,33\n")
POINT = {"id": "a", "model": "llama_3_1_8b", "gpu_key": "H100", "n_gpus": 1, "fw_key": "vllm", "isl": 1000, "osl": 200,
         "layout": {"tp": 1, "pp": 1, "ep": 1}, "concurrency": 5, "tpot_ms": {"mean": 12.0}, "ttft_ms": {"p50": 50.0},
         "output_tok_s_per_gpu": 300.0, "source_kind": "inferencex", "quantisation": "fp8"}
SPACE = {"tp": [4, 8], "mode": "agg", "knobs": {"cores": [24]}, "dp": 1, "drafts": [0, 1]}


def _tables(path: str) -> Any:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


@cache
def _seeds(kind: str) -> list[Any]:
    """Trees of valid files."""
    if kind == "machine":
        return [_tables("tests/data/tiny.toml")] * 3 + [_tables(f"topologies/{one}.toml") for one in
                ("hgx_h20", "atlas_a2", "dgx_h100", "cloudmatrix384")] + [_tables("tests/data/torus.toml")]  # fmt: skip
    if kind == "model":
        return [_tables(f"workloads/models/{one.name}") for one in sorted((ROOT / "workloads/models").glob("*.toml"))]
    return [json.loads(one.read_text()) for one in sorted((ROOT / "tests/data/configs").glob("*.json"))]


def _written(path: Path, rng: Random, whole: str) -> Path:
    """A text as a file, one in four with its bytes changed."""
    data = whole.encode("utf-8", "surrogatepass")
    path.write_bytes(raw(rng, data) if rng.random() < 0.25 else data)
    return path


def machine(rng: Random, folder: Path) -> None:
    """A machine's TOML file, with the parts that it extends."""
    from simulator.commands.sides import shown
    from simulator.fabric.graph import Fabric
    from simulator.spec.load import load_machine
    from simulator.spec.typed_toml import quantities

    spec = load_machine(_written(folder / "machine.toml", rng, toml_text(tree(rng, rng.choice(_seeds("machine"))))))
    _ = spec.dies, shown([key for key, _ in quantities(spec)])
    Fabric(spec, 1)


def part(rng: Random, folder: Path) -> None:
    """A machine that extends a hostile part, or a hostile `extends`."""
    from simulator.spec.load import load_machine

    tables = tree(rng, rng.choice(_seeds("machine")))
    _written(folder / "part.toml", rng, toml_text(tables))
    extends = rng.choice(("part.toml", ["part.toml"], ["part.toml", "nic_cx7"], ["part.toml", "part.toml"], odd(rng)))
    own = {"extends": extends, "name": "own", "chip": {"name": "own"}}
    (folder / "machine.toml").write_text(toml_text(own if rng.random() < 0.7 else tree(rng, own)), "utf-8",
                                         "surrogatepass")
    load_machine(folder / "machine.toml")


def model(rng: Random, folder: Path) -> None:
    """A model's TOML file."""
    from simulator.commands.library import _model_row
    from simulator.model.library import load_transformer

    path = _written(folder / "model.toml", rng, toml_text(tree(rng, rng.choice(_seeds("model")))))
    _model_row(str(path), load_transformer(path))


def config(rng: Random, folder: Path) -> None:
    """A config.json of Hugging Face, sometimes with the quantisation beside it."""
    from simulator.commands.library import _model_row
    from simulator.model.library import load_transformer

    tables = tree(rng, rng.choice(_seeds("config")))
    if rng.random() < 0.2 and isinstance(tables, dict):
        tables["quantization_config"] = tree(rng, {"quant_method": "fp8", "weight_block_size": [128, 128],
                                                   "modules_to_not_convert": ["lm_head", "re:.*gate"]})
    if rng.random() < 0.1:
        _written(folder / "hf_quant_config.json", rng,
                 json_text(tree(rng, {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})))
    path = _written(folder / "config.json", rng, json_text(tables))
    _model_row(str(path), load_transformer(path))


def requests(rng: Random, folder: Path) -> None:
    """A trace of requests, of every format."""
    from simulator.serving.traces import read_trace

    whole = LINES[rng.choice(list(LINES))]
    if rng.random() < 0.5 and whole.startswith("{"):
        whole = "\n".join(json_text(tree(rng, json.loads(line))) for line in whole.splitlines())
    elif rng.random() < 0.5:
        whole = text(rng, whole)
    path = _written(folder / "requests.dat", rng, whole)
    read_trace(path, skip_bad=rng.random() < 0.3, limit=rng.choice((None, None, 1, 5)))


def measured(rng: Random, folder: Path) -> None:
    """JSON of profilers, plain or compressed, or the table of Ascend's."""
    draw = rng.random()
    if draw < 0.4:
        path = _written(folder / "trace.json", rng, json_text(tree(rng, KINETO)))
    elif draw < 0.75:
        path = _written(folder / "trace.json", rng, json_text(tree(rng, MSPROF)))
    elif draw < 0.9:
        path = _written(folder / "kernel_details.csv", rng, text(rng, DETAILS))
    else:
        path = folder / "trace.json.gz"
        data = gzip.compress(json_text(tree(rng, KINETO)).encode("utf-8", "surrogatepass"), 1, mtime=0)
        path.write_bytes(raw(rng, data) if rng.random() < 0.7 else data)
    _look(path)


def _look(path: Path) -> None:
    """As `braid compare` does."""
    from simulator.commands.sides import read

    read("A", str(path)).as_object()


def nsight(rng: Random, folder: Path) -> None:
    """SQLite of Nsight Systems, its rows or its bytes changed."""
    path = folder / "nsys.sqlite"
    path.unlink(missing_ok=True)
    columns = ["start", '"end"', "deviceId", "streamId", "globalPid", "correlationId", "demangledName"]
    if rng.random() < 0.3:
        columns.pop(rng.randrange(len(columns)))
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(columns)})")
        database.execute("CREATE TABLE StringIds (id, value)")
        database.execute("INSERT INTO StringIds VALUES (1, 'gemm')")
        for row in ([100, 200, 0, 7, 1 << 24, 5, 1], [300, 350, 0, 7, 1 << 24, 6, 1]):
            values = [_sql(rng) if rng.random() < 0.2 else one for one in row][: len(columns)]
            marks = ", ".join("?" * len(values))
            database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", values)
        database.commit()
    if rng.random() < 0.4:
        path.write_bytes(raw(rng, path.read_bytes()))
    _look(path)


def _sql(rng: Random) -> Any:
    value = scalar(rng)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return float(value) if abs(value) < 1e300 else "many"
    return value.encode("utf-8", "replace") if value == "\ud7ff" else value


def points(rng: Random, folder: Path) -> None:
    """Measured points of services, and predictions of others."""
    from simulator.serving.launches import framework_of
    from simulator.serving.measured import measured as service_of
    from simulator.serving.point_errors import read_others
    from simulator.serving.points import measured_values, read_points

    path = _written(folder / "points.jsonl", rng, "\n".join(json_text(tree(rng, POINT)) for _ in range(2)))
    where = {} if rng.random() < 0.7 else {rng.choice(("id", "n_gpus", str(scalar(rng)))): str(scalar(rng))}
    if rng.random() < 0.1:
        others = tree(rng, {"id": "a", "formula": {"tpot": 9.1, "ttft": 80}})
        read_others(_written(folder / "others.jsonl", rng, json_text(others)))
    for point in read_points(path, where):
        _ = framework_of(point), measured_values(point)
        service_of(point)


def space(rng: Random, folder: Path) -> None:
    """Axes of a search."""
    from simulator.search.asked import axes, gpus

    path = _written(folder / "space.toml", rng, toml_text(tree(rng, SPACE)))
    fixed = [text(rng, "tp=8")] if rng.random() < 0.3 else []
    axes(path, fixed, [text(rng, "dp=1,2,4")] if rng.random() < 0.3 else [])
    gpus(text(rng, "8..64"))


def folders(rng: Random, folder: Path) -> None:
    """The folder of a run: result.json or its timeline changed."""
    from simulator.commands.explain import explain
    from simulator.commands.report import _page, _read

    kept = made("run")
    for name in ("result.json", "timeline.parquet"):
        (folder / name).write_bytes(kept[name])
    if rng.random() < 0.6:
        _written(folder / "result.json", rng, json_text(tree(rng, json.loads(kept["result.json"]))))
    else:
        (folder / "timeline.parquet").write_bytes(raw(rng, kept["timeline.parquet"]))
    found = _read(folder, {}, "roles", 0)
    if rng.random() < 0.1:
        _page([found], lambda share: None)
    if rng.random() < 0.1:
        with redirect_stdout(StringIO()):
            explain.main([str(folder)], standalone_mode=False)


def services(rng: Random, folder: Path) -> None:
    """The folder of a service: its export or its tables changed."""
    from simulator.commands.report import _page, _read

    kept = made("serve")
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    names = [name for name in kept if name.endswith(".parquet")]
    if rng.random() < 0.7:
        export = "profile_export_aiperf.json"
        _written(folder / export, rng, json_text(tree(rng, json.loads(kept[export]))))
    else:
        name = rng.choice(names)
        (folder / name).write_bytes(raw(rng, kept[name]))
    found = _read(folder, {}, "roles", 0)
    if rng.random() < 0.2:
        _page([found], lambda share: None)


def searches(rng: Random, folder: Path) -> None:
    """The folder of a search: its answer changed."""
    from simulator.commands.report import _page, _read

    given = tree(rng, json.loads(made("search")["search.json"]))
    _written(folder / "search.json", rng, json_text(given))
    found = _read(folder, {}, "roles", 0)
    _page([found], lambda share: None)


def journals(rng: Random, folder: Path) -> None:
    """What a search, a service and what-ifs keep: it is read again, or computed anew."""
    from simulator.search.kept import JOURNAL, TABLE, Kept, _line
    from simulator.search.kept_table import write_rows
    from simulator.serving.kept import _read as steps
    from simulator.study.whatif import _read as outcomes

    (folder / "steps.json").write_bytes(raw(rng, b'{"decode 8 1024": 0.0125, "prefill 4096": 0.25}'))
    steps(folder / "steps.json")
    line = b'{"settings": {"machine.chip.hbm.peak": "4 TB/s"}, "makespan_ps": 5, "metrics": {"a": 1.5}, "reason": ""}\n'
    (folder / "whatif.jsonl").write_bytes(raw(rng, line * 2))
    dict(outcomes(folder / "whatif.jsonl"))
    place = folder / "search"
    place.mkdir(exist_ok=True)
    for left in place.iterdir():
        left.unlink()
    (place / JOURNAL).write_bytes(raw(rng, _line("a", {"x": 1, "found": "{}"}) + b"\n" + _line("b", {"x": 2}) + b"\n"))
    if rng.random() < 0.1:
        write_rows(place / TABLE, {"a": {"x": 1, "y": "b"}, "c": {"x": 2, "y": "d"}})
        (place / TABLE).write_bytes(raw(rng, (place / TABLE).read_bytes()))
    with Kept(place, lambda said: None) as kept:
        kept.get("a")
        kept.put("b", {"x": 3})
    swept(rng, folder / "sweep")


@cache
def _sweeps() -> tuple[Any, str]:
    """A scenario, and by what name it is kept."""
    from simulator.study.kept import name_of
    from simulator.study.library import load_scenario

    scenario = load_scenario("contention:staging")
    return scenario, name_of(scenario, "scenario")


def swept(rng: Random, place: Path) -> None:
    """What a sweep keeps of a value."""
    from simulator.commands.output import TRACE
    from simulator.commands.sweep import KEPT, Folders
    from simulator.study.recorded import ABOUT, TIMELINE

    scenario, name = _sweeps()
    (place / "v").mkdir(parents=True, exist_ok=True)
    for one in (TRACE, ABOUT, TIMELINE):
        (place / "v" / one).touch()
    whole = {"name": f"{name}-0", "metrics": {"latency_ms": 6.5, "share": 0.5}, "unread": ["batch.size"]}
    _written(place / "v" / KEPT, rng, json_text(tree(rng, whole)))
    with patch("simulator.study.kept.name_of", return_value=name):
        known = Folders(place, {"a": "v"}, "0").known("a", scenario)
    if known is not None:
        _ = [f"{float(number):g}" for number in known[0].values()]


def traces(rng: Random, folder: Path) -> None:
    """A trace that `braid view` would serve."""
    from simulator.commands.view import _trace

    whole = gzip.compress(b'{"traceEvents": [' + b" " * 200 + b"]}", 1, mtime=0)
    (folder / "trace.json.gz").write_bytes(raw(rng, whole if rng.random() < 0.8 else gzip.decompress(whole)))
    _trace(folder if rng.random() < 0.5 else folder / "trace.json.gz")


@cache
def made(command: str) -> dict[str, bytes]:
    """Files of a folder that a command writes; made once, before anything is changed in it."""
    import tempfile

    from simulator.commands.main import braid

    words = {"run": ["run", "contention:staging"],
             "serve": ["serve", "one_server:llama_3_1_70b", "--requests", "4", "--rate", "2", "--osl", "16"],
             "search": ["search", "--model", "llama_2_7b", "--machine", "dgx_h100", "--gpus", "1", "--isl", "64",
                        "--osl", "8", "--tpot", "50", "--serve", "0", "--fix", "tokens=2048", "--fix", "stack=vllm",
                        "--fix", "mode=together"]}[command]
    with tempfile.TemporaryDirectory() as place, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        braid.main([*words, "--out", f"{place}/out"], prog_name="braid", standalone_mode=False)
        return {one.name: one.read_bytes() for one in sorted(Path(place, "out").iterdir()) if one.is_file()}


READERS: dict[str, Target] = {
    "machine": machine, "part": part, "model": model, "config": config, "requests": requests, "measured": measured,
    "nsight": nsight, "points": points, "space": space, "run folder": folders, "service folder": services,
    "search folder": searches, "kept": journals, "trace to view": traces,
    "fault files": fault_files}  # fmt: skip
