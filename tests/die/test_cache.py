"""Blocks of weights in an L2 of 10 bytes."""

from simulator.die.cache import Cache


def held(cache: Cache, names: str) -> str:
    """Which of these blocks are there, without making them younger."""
    return "".join(name for name in names if name in cache._blocks)


def filled(names: str, size_bytes: float = 3) -> Cache:
    cache = Cache(10)
    for name in names:
        cache.keep(name, size_bytes)
    return cache


def test_blocks_stay_until_there_is_no_room() -> None:
    cache = filled("abc")
    assert (held(cache, "abc"), cache.held_bytes) == ("abc", 9)
    cache.keep("d", 3)
    assert (held(cache, "abcd"), cache.held_bytes) == ("abcd", 10)
    assert cache.resident_bytes("a") == 1  # as much of it as has room


def test_the_least_recently_used_goes_first() -> None:
    cache = filled("abc")
    assert cache.resident_bytes("a") == 3
    cache.keep("d", 3)
    assert [cache.resident_bytes(name) for name in "abcd"] == [3, 1, 3, 3]


def test_keeping_a_block_again_makes_it_the_youngest_and_no_larger() -> None:
    cache = filled("abca")
    assert cache.held_bytes == 9
    cache.keep("d", 3)
    assert [cache.resident_bytes(name) for name in "abcd"] == [3, 1, 3, 3]


def test_a_block_larger_than_l2_is_not_kept_and_pushes_nothing_out() -> None:
    cache = filled("abc")
    cache.keep("huge", 11)
    assert held(cache, "abc") == "abc"
    assert not cache.resident_bytes("huge")


def test_activations_leave_what_fits_beside_them() -> None:
    cache = filled("abc")
    cache.passes(1)
    assert held(cache, "abc") == "abc"
    cache.passes(5)
    assert (held(cache, "abc"), cache.held_bytes) == ("bc", 5)
    assert cache.resident_bytes("b") == 2
    cache.passes(1e9)
    assert (held(cache, "abc"), cache.held_bytes) == ("", 0.0)


def test_a_block_that_lost_bytes_is_whole_again_when_it_is_kept() -> None:
    cache = filled("a", 10)
    cache.keep("b", 1)
    assert (cache.resident_bytes("a"), cache.held_bytes) == (9, 10)
    cache.keep("a", 10)
    assert (held(cache, "ab"), cache.held_bytes) == ("a", 10)
