"""Formats of traces, told from their keys; and lines that are broken, which are named or counted."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.serving.requests import Requests
from simulator.serving.traces import read_trace

Write = Callable[[str], Path]

MOONCAKE = """\
{"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 27000, "input_length": 1024, "output_length": 7, "hash_ids": [46, 47]}
{"timestamp": 30500, "input_length": 1500, "output_length": 1, "hash_ids": [46, 47, 50]}
"""
BAILIAN = """\
{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 40, "output_length": 132, "type": "text", \
"turn": 2, "hash_ids": [1089, 1090, 1091]}
{"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 16, "output_length": 2, "type": "file", \
"turn": 1, "hash_ids": [8]}
{"chat_id": 160, "parent_chat_id": 159, "timestamp": 70.114, "input_length": 64, "output_length": 9, "type": "text", \
"turn": 3, "hash_ids": [1089, 1090, 6, 7]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9799600,4808,10
2023-11-17 00:00:00.0319601,3180,8
2023-11-17 00:01:00,110,27
"""
BURST = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
"""
BURST_OF_SESSIONS = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,3,1.2,ChatGPT,472,18,490,Conversation log
45.5,,2.5,GPT-4,1087,230,1317,API log
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        file = tmp_path / "requests.dat"
        file.write_text(text, encoding="utf-8")
        return file

    return written


def _lists(requests: Requests) -> tuple[list[float], list[int], list[int]]:
    return requests.arrival_s.tolist(), requests.input_tokens.tolist(), requests.output_tokens.tolist()


def test_mooncake_has_milliseconds_and_blocks_of_512(write: Write) -> None:
    requests = read_trace(write(MOONCAKE))
    assert _lists(requests) == ([0.0, 0.0, 3.5], [1100, 1024, 1500], [52, 7, 1])
    assert requests.hash_tokens == 512
    assert [requests.hashes_of(number).tolist() for number in range(3)] == [[0, 1, 2], [0, 1], [0, 1, 3]]
    assert requests.after.tolist() == [-1, -1, -1]


def test_mooncake_may_say_nothing_of_hashes(write: Write) -> None:
    requests = read_trace(write(re.sub(r', "hash_ids": .*]', "", MOONCAKE)))
    assert _lists(requests) == ([0.0, 0.0, 3.5], [1100, 1024, 1500], [52, 7, 1])
    assert (requests.hash_tokens, len(requests.hashes)) == (0, 0)


def test_bailian_has_seconds_and_turns_that_follow_each_other(write: Write) -> None:
    requests = read_trace(write(BAILIAN))
    assert _lists(requests) == ([0.0, 0.386, 9.0], [40, 16, 64], [132, 2, 9])
    assert requests.hash_tokens == 16
    assert requests.after.tolist() == [-1, -1, 0]  # the parent of the first came before the trace
    assert (requests.hashes_of(2)[:2] == requests.hashes_of(0)[:2]).all()


def test_hashes_of_the_blocks_alone_become_a_chain(write: Write) -> None:
    """The same block after another one is not the same block of a cache of prefixes."""
    line = {"timestamp": 0, "input_length": 1024, "output_length": 1}
    requests = read_trace(write("\n".join(json.dumps({**line, "hash_ids": ids}) for ids in ([1, 2], [3, 2], [1, 2]))))
    assert requests.hashes_of(0)[1] != requests.hashes_of(1)[1]
    assert requests.hashes_of(0).tolist() == requests.hashes_of(2).tolist()


def test_azure_has_dates_of_seven_digits_over_midnight(write: Write) -> None:
    requests = read_trace(write(AZURE))
    assert _lists(requests) == ([0.0, 0.0520001, 60.02004], [4808, 3180, 110], [10, 8, 27])
    later = AZURE.replace("9799600,", "979960+00:00,").replace("0319601,", "0319601+00:00,")  # as in 2024
    assert _lists(read_trace(write(later))) == _lists(requests)


@pytest.mark.parametrize("text", [BURST, BURST_OF_SESSIONS])
def test_burstgpt_has_seconds(write: Write, text: str) -> None:
    assert _lists(read_trace(write(text))) == ([0.0, 40.5], [472, 1087], [18, 230])


@pytest.mark.parametrize(
    "text",
    [
        "input_tokens,output_tokens\n30,4\n50,6\n",
        "id,Prompt Tokens,model,Completion Tokens\na,30,x,4\nb,50,y,6\n",
        '{"prompt_len": 30, "output_len": 4}\n{"prompt_len": 50, "output_len": 6}\n',
        '\ufeff"isl", osl\r\n"30",4\r\n\r\n50,6',
    ],
)
def test_a_table_of_lengths_has_no_times(write: Write, text: str) -> None:
    assert _lists(read_trace(write(text))) == ([0.0, 0.0], [30, 50], [4, 6])


@pytest.mark.parametrize("text", [
    '{"timestamp": 0, "input_length": 5, "output_length": 2, "priority": 1}\n'
    '{"timestamp": 1, "input_length": 5, "output_length": 2}\n'
    '{"timestamp": 2, "input_length": 5, "output_length": 2, "priority": 7}\n',
    "TIMESTAMP,ContextTokens,GeneratedTokens,priority\n2023-11-16 18:17:03.9799600,5,2,1\n"
    "2023-11-16 18:17:03.9799600,5,2,0\n2023-11-16 18:17:03.9799600,5,2,7\n",
])  # fmt: skip
def test_any_line_may_have_a_priority(write: Write, text: str) -> None:
    assert read_trace(write(text)).priority.tolist() == [1, 0, 7]
    with pytest.raises(InputError, match=r"line [23]: priority is .*-1.*; it must be a whole number from 0 \("):
        read_trace(write(text.replace(",1\n", ",-1\n").replace('"priority": 7', '"priority": -1')))


def test_limit_reads_no_further(write: Write) -> None:
    requests = read_trace(write(MOONCAKE.replace("30500", '"never"')), limit=2)
    assert len(requests) == 2
    with pytest.raises(InputError, match="limit is 0"):
        read_trace(write(MOONCAKE), limit=0)


BROKEN: list[tuple[str, Any, str]] = [
    ("timestamp", "soon", r"timestamp is 'soon'; it must be a number of milliseconds, at least 0"),
    ("timestamp", -5, r"timestamp is -5; it must be"),
    ("timestamp", float("inf"), r"timestamp is inf; it must be"),
    ("timestamp", 10**30, r"timestamp is 10+; it must be"),
    ("timestamp", None, r"timestamp is None"),
    ("timestamp", True, r"timestamp is True"),
    ("timestamp", 26999, r"timestamp is 26999, before that of line 1; times must not run backwards"),
    ("input_length", 0, r"input_length is 0; it must be a whole number of tokens, from 1 to 2\^31"),
    ("input_length", -3, r"input_length is -3"),
    ("input_length", 12.5, r"input_length is 12.5"),
    ("input_length", True, r"input_length is True"),
    ("input_length", [1], r"input_length is \[1\]"),
    ("output_length", 0, r"output_length is 0"),
    ("output_length", 2**40, r"output_length is 1099511627776"),
    ("hash_ids", 7, r"hash_ids is 7; it must be a list of at most 2 numbers, one a block"),
    ("hash_ids", [1, 2, 3], r"hash_ids is \[1, 2, 3\]; it must be a list of at most 2"),
    ("hash_ids", [1, 2.5], r"hash_ids is \[1, 2.5\]; it must be a list of whole numbers of 64 bits"),
    ("hash_ids", [1, 2**64], r"hash_ids is .*; it must be a list of whole numbers of 64 bits"),
    ("chat_id", 3, r"chat_id is there, but not in the first line; it must be in all or none"),
]


@pytest.mark.parametrize(("key", "value", "says"), BROKEN)
def test_a_broken_value_is_named_or_left_out_and_counted(write: Write, key: str, value: Any, says: str) -> None:
    lines = MOONCAKE.splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), key: value})
    file = write("\n".join(lines))
    with pytest.raises(InputError, match=r"requests\.dat, line 2: " + says + r".*\(--skip-bad"):
        read_trace(file)
    rest = read_trace(file, skip_bad=True)
    assert (rest.skipped, rest.skipped_lines) == (1, (2,))
    assert _lists(rest) == ([0.0, 3.5], [1100, 1500], [52, 1])
    assert [rest.hashes_of(number).tolist() for number in range(2)] == [[0, 1, 2], [0, 1, 3]]


@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_missing_key_is_named(write: Write, key: str) -> None:
    lines = MOONCAKE.splitlines()
    lines[2] = json.dumps({name: value for name, value in json.loads(lines[2]).items() if name != key})
    with pytest.raises(InputError, match=f"line 3: {key} is missing; a line must have hash_ids, input_length, output_"):
        read_trace(write("\n".join(lines)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"timestamp": 27000, "input_len', "line 4: '{\"timestamp\": 27000, \"input_len' is not JSON"),
        ("[1, 2]", "line 4: '\\[1, 2\\]' is no object"),
        ("[" * 100_000, "line 4: .* is not JSON"),
    ],
)
def test_a_line_that_is_no_object_is_shown(write: Write, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        read_trace(write(MOONCAKE + text))
    assert len(str(error.value)) < 400
    assert read_trace(write(MOONCAKE + text), skip_bad=True).skipped_lines == (4,)


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("3180,8", "3180", "line 3: '2023-11-17 00:00:00.0319601,3180' has 2 columns; it must have 3: TIMESTAMP,"),
        ("3180,8", "3180,", "line 3: GeneratedTokens is ''; it must be a whole number"),
        ("3180,8", "3180," + "8" * 5000, "line 3: GeneratedTokens is '888.*; it must be a whole number"),
        ("3180,8", "3180,8.0", "line 3: GeneratedTokens is '8.0'"),
        ("00:00:00.0319601", "24:00:00", "line 3: TIMESTAMP is '2023-11-17 24:00:00'; it must be a date and time"),
        ("2023-11-17 00:00:00", "2023-11-31 00:00:00", "line 3: TIMESTAMP is '2023-11-31"),
        ("2023-11-17 00:00:00", "2023-11-15 00:00:00", "line 3: .* before that of line 2; times must not run back"),
    ],
)
def test_a_broken_line_of_a_csv_is_named(write: Write, was: str, now: str, says: str) -> None:
    file = write(AZURE.replace(was, now, 1))
    with pytest.raises(InputError, match=says):
        read_trace(file)
    assert read_trace(file, skip_bad=True).skipped_lines == (3,)


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ('"chat_id": 160', '"chat_id": "160"', "line 3: chat_id is '160'"),
        ('"chat_id": 160', '"chat_id": 159', "line 3: chat_id is 159, which an earlier line has"),
        ('"parent_chat_id": 159', '"parent_chat_id": []', r"line 3: .*parent_chat_id \[\]; both must be whole numbers"),
    ],
)
def test_chats_have_numbers_of_their_own(write: Write, was: str, now: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_trace(write(BAILIAN.replace(was, now)))


def test_failed_requests_of_burstgpt_are_broken_lines(write: Write) -> None:
    file = write(BURST + "46,ChatGPT,10,0,10,API log\n")
    with pytest.raises(InputError, match="line 4: Response tokens is '0'"):
        read_trace(file)
    assert len(read_trace(file, skip_bad=True)) == 2


def test_a_broken_first_line_does_not_hide_the_format(write: Write) -> None:
    file = write('{"timestamp": 1,\n' + MOONCAKE)
    with pytest.raises(InputError, match=r"line 1: .* is not JSON"):
        read_trace(file)
    assert read_trace(file, skip_bad=True).skipped_lines == (1,)


def test_too_many_broken_lines_are_not_left_out(write: Write) -> None:
    far = MOONCAKE.replace("27000", "9999999", 1) + MOONCAKE  # one wrong time, and all after it run backwards
    with pytest.raises(InputError, match="5 of 6 lines are broken, too many to leave out; the first is line 2: time"):
        read_trace(write(far), skip_bad=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty; it must be Mooncake JSON lines .*Qwen-Bailian .*Azure CSV .*BurstGPT CSV .*table of len"),
        ("\n\n", "it is empty"),
        (AZURE.splitlines()[0], "there is no request below its header; there must be at least 1"),
        ("# Requests\n\nSome text, and more\n", "it begins with '# Requests' and is no trace; it must be Mooncake"),
        ("374,44\n396,109\n", "it begins with '374,44' and is no trace"),
        ("timestamp,input_tokens,output_tokens\n1,3,4\n", "is no trace"),  # seconds or milliseconds?
        ("timestamp,input_length,output_length\n1,3,4\n", "is no trace"),
        ('{"input_tokens": 3, "input_len": 3, "output_len": 4}', "is no trace"),  # which of them?
        ('[{"conversations": []}]', "is no trace"),
        ("\x00\x01" * 5000, "is no trace"),
    ],
)
def test_what_is_no_trace_is_told_what_is(write: Write, text: str, says: str) -> None:
    with pytest.raises(InputError, match=rf"requests\.dat: .*{says}") as error:
        read_trace(write(text))
    assert len(str(error.value)) < 1000


def test_bytes_that_are_no_text_are_no_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.gz"
    file.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(InputError, match=r"trace\.gz: it begins with .* and is no trace"):
        read_trace(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.jsonl: No such file or directory; it must be a file"):
        read_trace(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match="Is a directory"):
        read_trace(tmp_path)


def _large(lines: int) -> str:
    random = np.random.default_rng(0)
    tokens = random.integers(1, 20_000, lines).tolist()
    texts = []
    for number, length in enumerate(tokens):
        ids = list(range(length % 10, length % 10 + -(-length // 512)))
        texts.append(json.dumps({"timestamp": number, "input_length": length, "output_length": 3, "hash_ids": ids}))
    return "\n".join(texts)


def test_line_7013_is_named_and_the_rest_is_read_in_under_a_second(write: Write) -> None:
    lines = _large(20_000).split("\n")
    lines[7012] = lines[7012][:30]
    file = write("\n".join(lines))
    with pytest.raises(InputError, match=r"requests\.dat, line 7013: .* is not JSON"):
        read_trace(file)
    began = time.process_time()
    rest = read_trace(file, skip_bad=True)
    assert time.process_time() - began < 1.0
    assert (len(rest), rest.skipped, rest.skipped_lines) == (19_999, 1, (7013,))


def test_the_numbers_of_the_first_few_broken_lines_are_kept(write: Write) -> None:
    lines = _large(100).split("\n")
    for number in range(10, 50, 4):
        lines[number - 1] = "?"
    rest = read_trace(write("\n".join(lines)), skip_bad=True)
    assert (rest.skipped, rest.skipped_lines) == (10, (10, 14, 18, 22, 26))


def test_columns_are_the_same_in_every_process(write: Write) -> None:
    file = write(BAILIAN + BAILIAN.replace("159", "259").replace("160", "260").replace('"chat_id": 7', '"chat_id": 8')
                 .replace("61.", "71.").replace("70.", "80."))  # fmt: skip
    code = """if True:
        import hashlib, sys
        from simulator.serving.traces import read_trace
        read = read_trace(sys.argv[1])
        print(hashlib.sha256(read.arrival_s.tobytes() + read.hashes.tobytes() + read.after.tobytes()).hexdigest())"""
    here = read_trace(file)
    digest = hashlib.sha256(here.arrival_s.tobytes() + here.hashes.tobytes() + here.after.tobytes()).hexdigest()
    for seed in ("0", "1"):
        done = subprocess.run([sys.executable, "-c", code, str(file)], env={**os.environ, "PYTHONHASHSEED": seed},
                              capture_output=True, text=True, check=True)  # fmt: skip
        assert done.stdout.strip() == digest


def test_a_time_that_no_float_of_nanoseconds_holds_is_refused(write: Write) -> None:
    with pytest.raises(InputError, match=r"line 1: timestamp is 1e\+303; it must be a number of milliseconds"):
        read_trace(write('{"timestamp": 1e303, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n'))
