"""Memory below HBM: it never holds more than it has room for, and the least recently used goes first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.serving.store import Store

EVENTS = st.lists(st.tuples(st.sampled_from(["put", "came", "hold", "let_go"]), st.integers(0, 3), st.integers(1, 5)),
                  max_size=60)  # fmt: skip


def chain(path: int, length: int) -> list[int]:
    return [path * 100 + depth for depth in range(length)]


def put(store: Store, *hashes: int) -> None:
    store.came(store.put(list(hashes))[::-1])


@settings(max_examples=200, deadline=None)
@given(EVENTS, st.integers(0, 12), st.booleans())
def test_hashes_are_conserved(events: list[tuple[str, int, int]], room: int, exclusive: bool) -> None:
    store, writing, reading, come = Store(room, exclusive), list[list[int]](), list[list[int]](), 0
    for what, path, length in events:
        one = chain(path, length)
        if what == "put":
            writing.append(store.put(one))
        elif what == "came" and writing:
            come += len(writing[0])
            store.came(writing.pop(0)[::-1])
        elif what == "hold":
            reading.append(one[: store.leading(one)])
            store.hold(reading[-1])
        elif what == "let_go" and reading:
            store.let_go(reading.pop(0))
        assert store.written == come
        assert store._writing == {one for some in writing for one in some}
        assert set(store._reading) == {one for some in reading for one in some}, "what is being read stays"
        assert not set(store._ready) & (set(store._reading) | store._writing)
        assert len(store) <= room
        if not exclusive:
            assert store.written == len(store._ready) + len(store._reading) + store.evicted


def test_the_least_recently_used_goes_and_of_a_prompt_its_tail() -> None:
    store = Store(4)
    put(store, 1, 2)
    put(store, 3, 4)
    store.hold([1, 2])
    store.let_go([1, 2])
    put(store, 5)
    assert [one for one in (1, 2, 3, 4, 5) if one in store] == [1, 2, 3, 5]
    put(store, 6, 7)
    assert [one for one in (1, 2, 3, 5, 6, 7) if one in store] == [1, 5, 6, 7]
    assert store.evicted == 3
    assert store.leading([1, 2]) == 1


def test_what_is_written_is_there_once_it_has_come_and_what_is_read_does_not_go() -> None:
    store = Store(2)
    new = store.put([1, 2])
    assert (new, store.leading([1, 2]), len(store)) == ([1, 2], 0, 2)
    assert store.put([3]) == [], "nothing can go for it"
    store.came(new[::-1])
    store.hold([1, 2])
    assert store.put([3]) == []
    store.let_go([1, 2])
    assert store.put([3]) == [3]
    assert store.leading([1, 2]) == 1
    with pytest.raises(ValueError, match="of 2 hashes 1 are there"):
        store.hold([1, 2])


def test_what_is_read_from_an_exclusive_one_leaves_and_its_room_is_another_ones() -> None:
    store = Store(2, exclusive=True)
    put(store, 1, 2)
    store.hold([1])
    assert store.put([3]) == [3]
    assert store.evicted == 0
    store.let_go([1])
    assert 1 not in store
    assert 2 in store
