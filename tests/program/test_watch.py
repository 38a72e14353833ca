"""Programs that take long to record, or never end."""

from __future__ import annotations

import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulator.program import checks
from simulator.program.rank import Rank
from simulator.program.task import ProgramError
from simulator.program.world import World, record_world
from tests.replay.small import everybody, passes_mb

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer of the process")
LONGEST_S = 60.0  # nothing of this is waited for: a test that would go on for ever fails


class Terminal(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checks, "PATIENCE_S", 0.01)
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL, "the alarm is given back"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    signal.signal(signal.SIGALRM, before)


def record(program: Callable[[Rank], None]) -> World:
    return record_world(program, 2, everybody(2), lambda _: {})


def until(over: Callable[[], object]) -> None:
    since_s = time.monotonic()
    while not over():
        assert time.monotonic() - since_s < LONGEST_S, "it would have gone on for ever"


def test_a_program_that_launches_nothing_any_more_is_refused() -> None:
    def program(npu: Rank) -> None:
        npu.max_silence_s = 0.0
        with npu.scope(layer=5):
            npu.launch(passes_mb(1), "attention")
        until(lambda: False)

    with pytest.raises(ProgramError) as caught:
        record(program)
    assert str(caught.value) == (
        "rank 0: 1 launches and host waits, the last one 'attention' (layer 5, stream 'compute'), then none for 0 s: "
        "does this program end? If it does, it can set npu.max_silence_s")
    assert any(entry.path == Path(__file__) for entry in caught.traceback), "the error is raised where the program is"


def test_a_program_that_is_slow_but_goes_on_is_not_refused() -> None:
    looks = []

    def program(npu: Rank) -> None:
        npu.max_silence_s = LONGEST_S
        npu.launch(passes_mb(1), "a")
        before = signal.getsignal(signal.SIGALRM)
        assert callable(before)
        signal.signal(signal.SIGALRM, lambda *more: (looks.append(1), before(*more)))
        until(lambda: looks)

    assert len(record(program).programs[0].tasks) == 1


def test_a_slow_recording_is_shown_on_a_terminal_and_taken_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "1000")

    def program(npu: Rank) -> None:
        with npu.scope(layer=5):
            npu.launch(passes_mb(1), "attention")
        until(shown.getvalue)

    record(program)
    text = shown.getvalue()
    assert text.startswith("\rrecording rank 0: 1 launches and host waits, the last one 'attention' (layer 5, "
                           f"stream 'compute'), at {__file__}:")
    assert text.endswith("\r\x1b[K")


def test_nothing_is_shown_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    record(lambda npu: time.sleep(0.05))
    assert capsys.readouterr() == ("", "")


def test_an_alarm_of_the_users_own_is_left_alone() -> None:
    def own(*_: object) -> None: ...

    signal.signal(signal.SIGALRM, own)
    try:
        record(lambda npu: None)
        assert signal.getsignal(signal.SIGALRM) is own
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_another_thread_records_without_a_watch() -> None:
    worlds = []
    thread = threading.Thread(target=lambda: worlds.append(record(lambda npu: None)))
    thread.start()
    thread.join()
    assert len(worlds) == 1


@pytest.mark.parametrize("loop", ["launch", "host_wait"])
def test_more_tasks_than_are_allowed_are_refused(loop: str) -> None:
    def program(npu: Rank) -> None:
        npu.max_tasks = 10
        with npu.stream("side"):
            event = npu.launch(passes_mb(1), "again")
        while True:
            if loop == "launch":
                npu.launch(passes_mb(1), "again")
            else:
                npu.host_wait(event)

    with pytest.raises(ProgramError, match=r"rank 0: 10 launches .*, the last one 'again' .*npu\.max_tasks"):
        record(program)


def test_as_many_tasks_as_are_allowed_are_not() -> None:
    def program(npu: Rank) -> None:
        npu.max_tasks = 10
        for _ in range(10):
            npu.launch(passes_mb(1), "again")

    assert len(record(program).programs[0].tasks) == 10
