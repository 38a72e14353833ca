"""Faults as they are written."""

from math import inf
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.spec.faults import Fault, fault_of, faults_of


@pytest.mark.parametrize(("text", "fault"), [
    ("12 ms: link rank3.nic0 rate 0.1 for 5 ms", Fault("link", "rank3.nic0", "rate", 0.012, 0.005, 0.1)),
    ("12 ms: link die 3 - node 0 cut", Fault("link", "die 3 - node 0", "cut", 0.012)),
    ("0 s: rank 7 clock 0.8", Fault("rank", "7", "clock", 0.0, inf, 0.8)),
    ("2 ms: node 1 lost", Fault("node", "1", "lost", 0.002)),
    ("6 us: proxy 0 paused for 100 us", Fault("proxy", "0", "paused", 6e-6, 1e-4)),
    ("about every 5 ms: link rank*.nic* flaps 20 us for 1 ms",
     Fault("link", "rank*.nic*", "flaps", 0.0, 1e-3, 2e-5, 5e-3)),
    ("30 s: engine decode.0 lost", Fault("engine", "decode.0", "lost", 30.0)),
])  # fmt: skip
def test_a_fault_reads_as_it_is_written(text: str, fault: Fault) -> None:
    assert fault_of(text) == fault
    assert fault_of(f"  {text.replace(' ', '  ')}") == fault
    assert str(fault) == text


@pytest.mark.parametrize(("text", "wrong"), [
    ("12: link a - b cut", "'12' is no time"),
    ("", 'write "TIME: WHAT NAME EFFECT'),
    ("1 s: lnk a - b cut", "nothing is called 'lnk' (did you mean 'link'?)"),
    ("1 s: link a - b lost", "a link is never 'lost'; it is one of rate, cut, flaps"),
    ("1 s: rank 3 clock 2", "more than 0 and at most 1"),
    ("1 s: rank 3 clock nan", "more than 0 and at most 1"),
    ("1 s: host 3 paused", "say for how long"),
    ("1 s: link a - b flaps for 1 s", "say for how long it is down"),
    ("1 s: link a - b flaps 1 ms", "say for how long, as"),
    ("1 s: rank 3 lost now", "'lost' has no value; 'now' is not understood"),
    ("-1 s: rank 3 lost", "'-1 s' is no time"),
    ("inf s: rank 3 lost", "'inf s' is no time"),
    ("about every 0 s: rank * lost", "more than 0 s"),
    ("1e300 s: rank 3 lost", "at most 1e+06 s"),
    ("1 s: rank 3 hbm 0.5 for 2e6 s", "at most 1e+06 s"),
    ("1 s: link a - b flaps 1 ns for 1 ms", "down more than 100,000 times"),
])  # fmt: skip
def test_what_is_wrong_is_named(text: str, wrong: str) -> None:
    with pytest.raises(InputError) as error:
        fault_of(text)
    assert f"fault '{text}'" in str(error.value)
    assert wrong in str(error.value)


def test_a_file_lists_them(tmp_path: Path) -> None:
    listed = tmp_path / "faults.toml"
    listed.write_text('faults = ["1 ms: rank 0 lost", "0 s: rank 7 clock 0.8"]')
    assert faults_of(["2 ms: rank 1 lost", str(listed)]) == (
        Fault("rank", "1", "lost", 0.002), Fault("rank", "0", "lost", 0.001), Fault("rank", "7", "clock", value=0.8)
    )  # fmt: skip


@pytest.mark.parametrize("content", ["faults = 3", "fault = []", "faults = [3]", "faults = [", "faults = ['x']",
                                     "a = " + "[" * 5000, f"faults = {'1' * 5000}"])
def test_a_wrong_file_is_named(tmp_path: Path, content: str) -> None:
    listed = tmp_path / "faults.toml"
    listed.write_text(content)
    with pytest.raises(InputError, match=r"faults\.toml: "):
        faults_of([str(listed)])
