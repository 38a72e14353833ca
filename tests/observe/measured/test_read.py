"""Measured traces: every format gives the same timeline, told apart by what it holds; what is none is refused."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.observe.measured.kineto import FORM
from simulator.observe.measured.names import named, short
from simulator.observe.measured.read import read_measured
from tests.observe.measured.files import GPU, WRITERS, ascend_timeline, at, kineto, nsight

US = 10**6


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_timeline(name: str, tmp_path: Path) -> None:
    trace = read_measured(WRITERS[name](tmp_path / name))
    columns, times = trace.columns, trace.measured
    assert columns["kind"].tolist() == ["gemm", "all_reduce", "attention", "copy"]
    assert columns["communication"].tolist() == [False, True, False, False]
    assert columns["start_ps"].tolist() == [0, 5 * US, 20 * US, 30 * US]
    assert columns["end_ps"].tolist() == [10 * US, 20 * US, 30 * US, 35 * US]
    assert columns["after"].tolist() == [(), (), (0,), (2,)]
    assert [columns["stream"][row] for row in (0, 2, 3)] == ["7"] * 3
    assert columns["stream"][1] != "7"
    whole = times.all_communication
    assert (whole.busy_ps, whole.hidden_ps, whole.exposed_ps, whole.waiting_ps) == (15 * US, 5 * US, 10 * US, 0)
    assert (times.compute_ps, times.makespan_ps) == (20 * US, 35 * US)


@pytest.mark.parametrize("name", WRITERS)
def test_launches_say_what_the_host_held_up(name: str, tmp_path: Path) -> None:
    trace = read_measured(WRITERS[name](tmp_path / name))
    if name.endswith(".csv"):
        assert not trace.launches
        assert "it does not say when kernels were launched" in trace.notes
        return
    assert trace.columns["issued_ps"].tolist() == [0, 0, 19 * US, 21 * US]
    assert trace.measured.host_bound_ps == 9 * US


@pytest.mark.parametrize("name", WRITERS)
def test_a_format_is_known_by_what_it_holds(name: str, tmp_path: Path) -> None:
    named_so = read_measured(WRITERS[name](tmp_path / name))
    (tmp_path / name).rename(tmp_path / "trace.txt")
    again = read_measured(tmp_path / "trace.txt")
    assert (again.form, again.columns["name"].tolist()) == (named_so.form, named_so.columns["name"].tolist())
    if not name.endswith(".sqlite"):
        (tmp_path / "packed").write_bytes(gzip.compress((tmp_path / "trace.txt").read_bytes()))
        assert read_measured(tmp_path / "packed").columns["name"].tolist() == again.columns["name"].tolist()


def test_the_rank_is_that_of_the_process_and_steps_are_counted(tmp_path: Path) -> None:
    trace = read_measured(kineto(tmp_path / "one.json", rank=3))
    assert set(trace.columns["rank"].tolist()) == {3}
    assert trace.notes == ["it spans 2 steps of the profiler; times are of all of it"]


def test_files_of_a_folder_are_ranks(tmp_path: Path) -> None:
    for rank in (1, 0):
        kineto(tmp_path / f"worker{rank}.json", rank)
    (tmp_path / "notes.json").write_text("{}")
    trace = read_measured(tmp_path)
    assert trace.form == FORM
    assert sorted(set(trace.columns["rank"].tolist())) == [0, 1]
    assert trace.measured.all_communication.exposed_ps == 10 * US
    kineto(tmp_path / "worker9.json", 1)
    with pytest.raises(ValueError, match=r"worker1\.json' and '.*worker9\.json' are both of rank 1"):
        read_measured(tmp_path)


def test_files_that_do_not_say_their_rank_are_counted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}_ascend_pt" / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
        ascend_timeline(tmp_path / f"{name}_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json")
    trace = read_measured(tmp_path)
    assert sorted(set(trace.columns["rank"].tolist())) == [0, 1]
    assert "files are ranks in order of their names" in trace.notes


def test_processes_of_a_report_are_ranks(tmp_path: Path) -> None:
    trace = read_measured(nsight(tmp_path / "all.sqlite", processes=(8, 5)))
    assert trace.columns["rank"].tolist() == [0] * 4 + [1] * 4
    assert trace.columns["issued_ps"].tolist() == [0, 0, 19 * US, 21 * US] * 2


def test_what_waits_on_an_ascend_stream_is_no_work(tmp_path: Path) -> None:
    trace = read_measured(ascend_timeline(tmp_path / "trace_view.json"))
    assert "left out as no work: 1 task of EVENT_WAIT_SQE" in trace.notes
    assert trace.columns["name"].tolist()[1] == "hcom_allReduce"


def _graphs(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2)")
    database.close()


def _without_streams(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INT, value TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT)")
    database.close()


def _without_device(path: Path) -> None:
    with sqlite3.connect(nsight(path)) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = NULL WHERE streamId = 20")
    database.close()


def _texts(text: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode())


HEAD = "Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 1}
ASCEND = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Ascend Hardware"}}
OF_BRAID = {"bound_by": "", "braid_kind": "gemm", "layer": None}


@pytest.mark.parametrize(("write", "said"), [
    (_texts(""), "it is no trace that is known; known are JSON of torch.profiler"),
    (_texts("a,b\n1,2\n"), "a kernel_details.csv (columns Name, Start Time(us), Duration(us))"),
    (_texts('{"traceEvents": [{'), "it is no whole JSON: "),
    (_texts("{}"), "it is JSON without traceEvents"),
    (_texts('{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}'), "no device works"),
    (_texts(json.dumps([EVENT])), "ts of 'k' is 'missing', not a time in us"),
    (_texts(json.dumps([{**EVENT, "ts": "NaN"}])), "ts of 'k' is 'NaN', not a time in us"),
    (_texts(json.dumps([{**EVENT, "ts": 5, "dur": -1}])), "'k' at 5.000 us ends before it starts"),
    (_texts(json.dumps([{**EVENT, "ts": 5, "pid": "x"}])), "'k' says no device"),
    (_texts(gzip.compress(b"{" * 999)[:-9]), "it is no whole gzip: "),
    (_texts(HEAD + "a,Add,AI_CORE,1.5,2\nb,Add,AI_CORE,soon,2\n"), "line 3: Start Time(us) is 'soon', not a time"),
    (_texts(HEAD), "is Ascend kernels (kernel_details.csv) without a kernel"),
    (_texts(b"SQLite format 3\x00 and no more"), "it cannot be read as SQLite: "),
    (_texts(json.dumps([{**EVENT, "ts": 5, "args": {"correlation": [1]}}])), "not as its format has it: TypeError: "),
    (_texts(json.dumps([{**EVENT, "ts": 5, "tid": [1]}])), "not as its format has it: TypeError: "),
    (_texts(json.dumps([{**EVENT, "ts": 5, "args": OF_BRAID}])), "not as its format has it: TypeError: "),
    (_texts(json.dumps([{**EVENT, "ts": 5, "dur": 1e16}])), "'k' ends 1e+16 us after the first of rank 0 begins"),
    (_texts(json.dumps([{**EVENT, "ts": "1e999999"}])), "not as its format has it: Overflow"),
    (_texts(json.dumps([{**EVENT, "ts": 5, "pid": 10**30}])), "a number of a rank is too large"),
    (_texts(json.dumps([ASCEND, {"ph": "M", "name": "process_name"}])), "an entry of it has no 'pid'"),
    (_texts(f"{HEAD}{'a' * 200_000},Add,AI_CORE,1.5,2\n"), "field larger than field limit"),
    (_without_device, "not as its format has it: TypeError: "),
    (_graphs, "--cuda-graph-trace=node"), (_without_streams, "CUPTI_ACTIVITY_KIND_KERNEL has no column streamId"),
])  # fmt: skip
def test_what_is_no_trace_is_refused_by_name(write: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    write(tmp_path / "thing.json")
    with pytest.raises(ValueError, match=r"thing\.json") as refused:
        read_measured(tmp_path / "thing.json")
    assert said in str(refused.value)


@pytest.mark.parametrize(("most", "free", "said"), [
    (1 << 20, 1 << 30, "more than 1,048,576 when unpacked, which no trace is"),
    (1 << 40, 1 << 20, "more than 1,048,576 when unpacked, which no trace is")])
def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_all_of_it_is_there(
    tmp_path: Path, most: int, free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MOST_BYTES", most), ("FREE_BYTES", free), ("_CHUNK_BYTES", 1 << 18)):
        monkeypatch.setattr(f"simulator.observe.measured.read.{name}", value)
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(b"[" + b" " * (3 << 20) + b"]", mtime=0))
    with pytest.raises(ValueError, match=r"trace\.json\.gz': its [\d,]+ bytes are") as refused:
        read_measured(tmp_path / "trace.json.gz")
    assert said in str(refused.value)


def test_a_folder_without_a_trace_says_what_it_should_have(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"neither a run of Braid .* nor a measured trace; it has no file \.json"):
        read_measured(tmp_path)


@pytest.mark.parametrize(("name", "kind", "communication"), [
    ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "all_gather", True), ("ncclDevKernel_SendRecv", "send_receive", True),
    ("void deep_ep::internode_ll::combine<false, 7168>(void*)", "all_to_all", True),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "all_reduce", True),
    ("hcom_reduceScatter__318_0_1", "reduce_scatter", True), ("MoeDistributeDispatch", "all_to_all", True),
    ("nvshmemi_barrier_all", "communication", True), ("MatmulAllReduce", "gemm", False),
    ("flash_fwd_splitkv_mla_combine_kernel", "attention", False), ("GroupedMatmul", "grouped_gemm", False),
    ("fused_moe_kernel", "grouped_gemm", False), ("sm90_xmma_gemm_bf16bf16", "gemm", False),
    ("void at::native::vectorized_elementwise_kernel<4, F>", "vector", False), ("RmsNorm", "vector", False),
    ("Memset (Device)", "copy", False), ("my_secret_kernel", "kernel", False),
])  # fmt: skip
def test_names_say_what_kernels_are(name: str, kind: str, communication: bool) -> None:
    assert named(name) == (kind, communication)


def test_long_names_are_shown_short() -> None:
    assert short(GPU[2].name) == "flash::flash_fwd_kernel"
    assert short("attention.flash") == "attention.flash"
    assert short("Memcpy DtoD (Device -> Device)") == "Memcpy DtoD"
    assert at(0.5).endswith("306.991")
