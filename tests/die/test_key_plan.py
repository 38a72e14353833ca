"""Keys shared out over cores before a kernel starts."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.die.key_plan import longest_piece, plan

SMS, TILE, GRANULE = 78, 64, 256
one_kind = st.tuples(st.integers(1, 80), st.integers(1, 20_000), st.sampled_from((16, 64, 128, 256)))


def test_the_worked_example() -> None:
    assert plan([(128, 131_072)] * 16, TILE, SMS, GRANULE) == (78, 77_056)


@pytest.mark.parametrize(
    ("requests", "busiest"), [(1, 3_584), (16, 77_056), (32, 154_368), (64, 262_144), (128, 524_288)]
)
def test_how_uneven_the_plan_is_by_number_of_requests(requests: int, busiest: int) -> None:
    """131,072 keys each on 39 pairs of cores: a piece and two rests, or whole requests in two or four turns."""
    assert plan([(128, 131_072)] * requests, TILE, SMS, GRANULE)[1] == busiest


@given(one_kind)
def test_the_busiest_worker_has_a_piece_more_than_its_share_at_most(kind: tuple[int, int, int]) -> None:
    """Whoever gets a piece has the lowest cost: no more keys than the mean, and what the mean's pieces cost beside."""
    requests, keys, rows = kind
    cores, busiest = plan([(rows, keys)] * requests, TILE, SMS, GRANULE)
    together = 2 if rows > TILE else 1
    workers, tiles = SMS // together, requests * ceil(rows / (TILE * together))
    limit = longest_piece(ceil(tiles * keys / workers), GRANULE)
    pieces = tiles * ceil(keys / limit)
    assert cores <= SMS
    assert busiest * cores // together >= tiles * keys
    assert busiest <= (tiles * keys + 2 * TILE * together * pieces) / workers + min(limit, keys)


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=40))
def test_one_core_gets_everything(lengths: list[int]) -> None:
    assert plan([(64, keys) for keys in lengths], TILE, 1, GRANULE) == (1, sum(lengths))


def test_requests_without_rows_or_keys_get_no_core() -> None:
    assert plan([], TILE, SMS, GRANULE) == plan([(0, 9), (64, 0)], TILE, SMS, GRANULE) == (0, 0)


def test_requests_of_one_key_hardly_lengthen_the_plan() -> None:
    """What fills up a captured graph."""
    alone, filled = (plan([(128, 3_000)] * 17 + [(128, 1)] * more, TILE, SMS, GRANULE) for more in (0, 7))
    assert filled[1] <= alone[1] + 7


def test_long_pieces_are_multiples_of_the_granule() -> None:
    assert [longest_piece(keys, 256) for keys in (1, 8, 9, 33, 64, 65, 257)] == [32, 32, 64, 192, 192, 256, 512]
