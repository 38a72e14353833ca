"""How attention over a cache shares keys out over the cores before it starts, as FlashInfer plans its MLA kernel.

Rows are queries x heads that meet the same keys. A worker is one core with a tile of `tile_m` rows, or two cores with a
tile each where requests have more rows than that. With K keys in all and W workers no piece is longer than

    limit = K / W rounded up to a multiple of `granule`; 32, 64, 128 or 192 where it is up to 8, 16, 32 or 64

Every query counts as one that sees all keys of its request. Requests are cut, in their order, into pieces of `limit`
and a rest; a piece goes to the worker with the lowest cost so far, its keys + 2 x the worker's rows. The kernel lasts
as long as its busiest worker, and its workers keep their shares whether they run side by side or, on fewer cores, one
after the other.

Worked example: 16 requests of 131,072 keys, 128 heads, 78 cores: 39 workers of two; K / W = 53,773, so limit = 54,016,
and a request is 54,016 + 54,016 + 23,040. Thirteen requests fill the 39 workers, the others' pieces go on top of the
shortest: 23,040 + 54,016 = 77,056 keys, and the cores are busy 53,773 / 77,056 = 0.70 of the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heapreplace
from math import ceil

SHORT = ((8, 32), (16, 64), (32, 128), (64, 192))  # keys per worker up to, and the longest piece then


def plan(requests: Iterable[tuple[int, int]], tile_m: int, cores: int, granule: int) -> tuple[int, int]:
    """How many cores get keys, and how many keys the busiest one gets.

    requests: (rows, keys) of each; tile_m: rows of a core; granule: keys.
    """
    busy = [(rows, keys) for rows, keys in requests if rows and keys]
    if not busy:
        return 0, 0
    together = 2 if sum(rows for rows, _ in busy) > tile_m * len(busy) and cores > 1 else 1
    tiles = [keys for rows, keys in busy for _ in range(ceil(rows / (tile_m * together)))]
    workers = cores // together
    limit, fixed = longest_piece(ceil(sum(tiles) / workers), granule), 2 * tile_m * together
    costs, given = [(0, worker) for worker in range(workers)], [0] * workers
    heapify(costs)
    for keys in tiles:
        for start in range(0, keys, limit):
            piece, (cost, worker) = min(limit, keys - start), costs[0]
            given[worker] += piece
            heapreplace(costs, (cost + piece + fixed, worker))
    return together * sum(map(bool, given)), max(given)


def longest_piece(keys: int, granule: int) -> int:
    """Of an equal share of so many keys."""
    return next((piece for most, piece in SHORT if keys <= most), ceil(keys / granule) * granule)
