"""Whatever does the work, the results are the same; things are taken late; nothing outlives the one who asked."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.errors import InputError, NoSuchName, RunError
from simulator.search import executors
from simulator.search.executors import on_ray, processes, serial
from simulator.study.processes import AHEAD
from tests.commands.processes import started, wait_until
from tests.search import work
from tests.search.ray_cluster import alive, cluster, free_port, killed

Run = Callable[[Callable[[int], Any], Iterator[int]], Iterator[tuple[int, Any]]]
TWO = partial(processes, jobs=2)


class Late:
    """Things that count how many of them were taken and not done."""

    def __init__(self, run: Run, those: range) -> None:
        self.most, self._open = 0, 0
        self.results: dict[int, int] = {}
        for one, result in run(work.square, self._taken(those)):
            assert one not in self.results, "it was done twice"
            self.results[one] = result
            self._open -= 1

    def _taken(self, those: range) -> Iterator[int]:
        for one in those:
            self._open += 1
            self.most = max(self.most, self._open)
            yield one


@pytest.mark.parametrize(("run", "most"), [(serial, 1), (TWO, AHEAD * 2)])
def test_results_are_the_same_and_things_are_taken_late(run: Run, most: int) -> None:
    late = Late(run, range(40))
    assert late.results == {number: number * number for number in range(40)}
    assert late.most == most
    assert active_children() == []


@pytest.mark.parametrize("run", [serial, TWO])
def test_things_may_follow_from_results(run: Callable[..., Iterator[tuple[int, int]]]) -> None:
    done: dict[int, int] = {}

    def things() -> Iterator[int | None]:
        yield from (1, 2, 3)
        while len(done) < 3:
            yield None
        yield sum(done.values())

    for pair in run(work.square, things()):
        done.update([pair])
    assert done == {1: 1, 2: 4, 3: 9, 14: 196}


@pytest.mark.parametrize("run", [serial, partial(processes, jobs=1)])
def test_what_work_raises_comes_as_it_is(run: Run) -> None:
    with pytest.raises(InputError, match="three is none"):
        list(run(work.refuse, iter(range(9))))
    with pytest.raises(NoSuchName, match="there is no 0") as found:
        list(run(work.not_found, iter(range(1))))
    assert found.value.name == "0"
    assert active_children() == []


def test_what_things_raise_ends_the_processes() -> None:
    def things() -> Iterator[int]:
        yield from range(4)
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        list(processes(work.square, things(), 1))
    assert active_children() == []


def test_the_end_of_the_iterator_ends_the_processes(tmp_path: Path) -> None:
    found = processes(partial(work.endless, tmp_path), range(9), 1)
    assert next(found) == (0, None)
    while not list(tmp_path.glob("begun_*")):
        time.sleep(0.01)
    found.close()  # type: ignore[attr-defined]
    assert active_children() == []


def test_a_process_that_is_killed_is_told() -> None:
    with pytest.raises(RunError, match="was killed in the middle of its work"):
        list(processes(work.kill_at_three, range(9), 1))
    assert active_children() == []


def test_ray_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'braid\[search\]'"):
        on_ray(work.square, range(9), None, 2, pytest.fail)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of two raylets of one CPU."""
    pytest.importorskip("ray")
    with cluster(free_port(), 2) as (found, _):
        yield found


@pytest.mark.slow
def test_ray_started_here_gives_the_same_and_ends() -> None:
    pytest.importorskip("ray")
    late = Late(partial(on_ray, address=None, jobs=2, warn=pytest.fail), range(40))
    assert late.results == {number: number * number for number in range(40)}
    assert late.most <= AHEAD * 2
    assert active_children() == []


@pytest.mark.slow
def test_a_cluster_gives_the_same_on_all_its_raylets(address: str) -> None:
    late = Late(partial(on_ray, address=address, jobs=None, warn=pytest.fail), range(40))
    assert late.results == {number: number * number for number in range(40)}
    assert late.most <= AHEAD * 2
    seen: set[int] = set()
    for _, (_, process) in on_ray(work.where, range(1000), address, None, pytest.fail):
        if len(seen := seen | {process}) == 2:
            break
    assert len(seen) == 2


@pytest.mark.slow
def test_no_more_at_once_on_a_cluster_than_is_said(address: str) -> None:
    late = Late(partial(on_ray, address=address, jobs=1, warn=pytest.fail), range(9))
    assert (late.most, len(late.results)) == (1, 9)


@pytest.mark.slow
def test_workers_have_the_surroundings_of_the_one_who_asks(
        address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRAID_CACHE", "elsewhere")
    [(_, found)] = on_ray(work.surroundings, range(1), address, None, pytest.fail)
    assert found == (str(Path(simulator.__file__).resolve()), str(tmp_path.resolve()), "elsewhere")


@pytest.mark.slow
def test_what_work_raises_on_ray_comes_as_it_is(address: str) -> None:
    with pytest.raises(InputError) as refused:
        list(on_ray(work.refuse, range(9), address, None, pytest.fail))
    assert str(refused.value) == "three is none"
    assert any("in refuse" in note for note in refused.value.__notes__), "where it was raised is not said"
    with pytest.raises(FileNotFoundError, match="there is no 0"):
        list(on_ray(work.cannot_read, range(1), address, None, pytest.fail))
    with pytest.raises(NoSuchName, match="there is no 0"):
        list(on_ray(work.not_found, range(1), address, None, pytest.fail))


@pytest.mark.slow
def test_what_a_killed_worker_was_at_is_done_again_and_told(address: str, tmp_path: Path) -> None:
    tells: list[str] = []
    found = list(on_ray(partial(work.kill_once, tmp_path), range(40), address, None, tells.append))
    assert sorted(one for one, _ in found) == list(range(40))
    [told] = tells
    assert told.startswith("a worker of Ray ended in the middle of its work, which is done again: 3: ")
    assert "\n" not in told


@pytest.mark.slow
def test_a_thing_that_kills_each_of_its_workers_is_named(address: str) -> None:
    tells: list[str] = []
    with pytest.raises(RunError, match=r"^3: 4 workers of Ray ended in the middle of it"):
        list(on_ray(work.kill_at_three, range(9), address, None, tells.append))
    assert len(tells) == executors.TRIES - 1


@pytest.mark.slow
def test_the_end_of_the_iterator_ends_the_work_on_a_cluster(address: str, tmp_path: Path) -> None:
    found = on_ray(partial(work.endless, tmp_path), range(9), address, None, pytest.fail)
    assert next(found) == (0, None)
    with_deadline(lambda: len(list(tmp_path.glob("begun_*"))) == 2)
    found.close()  # type: ignore[attr-defined]
    with_deadline(lambda: not any(map(alive, begun(tmp_path))))


@pytest.mark.slow
def test_a_head_that_is_restarted_is_asked_again_for_what_is_not_done() -> None:
    pytest.importorskip("ray")
    port = free_port()
    tells: list[str] = []
    done: list[int] = []
    with cluster(port, 2) as (address, first):
        for one, _ in on_ray(work.where, range(300), address, None, tells.append):
            done.append(one)
            if len(done) == 50:
                killed(first)
                second = cluster(port, 2)
                assert second.__enter__()[0] == address
    second.__exit__(None, None, None)
    assert sorted(done) == list(range(300))
    lost = [told for told in tells if told.startswith(f"the Ray cluster at {address} was lost (")]
    assert len(lost) == 1
    assert lost[0].endswith(" layouts are asked of it again")
    assert all(told in lost or told.startswith("a worker of Ray ended") for told in tells)


@pytest.mark.slow
def test_a_cluster_that_does_not_come_back_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(executors, "RETURN_S", 3.0)
    with cluster(free_port(), 1) as (address, first), pytest.raises(RunError, match="was lost for good"):
        for one, _ in on_ray(work.where, range(300), address, None, lambda told: None):
            if one == 20:
                killed(first)


@pytest.mark.slow
def test_an_address_without_a_cluster_is_refused() -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=r"^no Ray cluster answers at '127\.0\.0\.1:\d+': .*refused; `ray start"):
        list(on_ray(work.square, range(9), f"127.0.0.1:{free_port()}", None, pytest.fail))
    assert list(on_ray(work.square, [], "127.0.0.1:1", None, pytest.fail)) == [], "nothing is asked of nothing"


ALONE = """
import signal
from functools import partial
from pathlib import Path

from simulator.search.executors import on_ray
from tests.search import work

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    list(on_ray(partial(work.endless, Path()), range(1, 9), None, 2, print))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_ray_that_was_started_here_ends_with_the_parent_however_it_ends(tmp_path: Path, name: str) -> None:
    pytest.importorskip("ray")
    (tmp_path / "alone.py").write_text(ALONE, encoding="utf-8")
    with started(tmp_path, "alone.py") as running:
        wait_until(lambda: len(begun(tmp_path)) == 2, running)
        running.send_signal(getattr(signal, name))
        out, _ = running.communicate(timeout=60)
    assert out == ""
    with_deadline(lambda: not any(map(alive, begun(tmp_path))))


def begun(folder: Path) -> list[int]:
    """The processes of endless work."""
    return [int(file.name.removeprefix("begun_")) for file in folder.glob("begun_*")]


def with_deadline(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.05)


def test_errors_go_from_process_to_process() -> None:
    found = pickle.loads(pickle.dumps(NoSuchName("key", "there is no key")))
    assert (type(found), found.name, str(found)) == (NoSuchName, "key", "there is no key")
