"""Pages of two layers by hand: they leave as their layer is ready, and are complete when the last one is there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.live.cache_pages import COMPLETE, PREFILLED, CachePages, CachePart
from simulator.live.thread import JournalRow, Label
from tests.live.live_hosts import US, Wire


@pytest.mark.parametrize(("ready_us", "complete_us"), [
    ((0, 100), 100 + 2 + 40 + 10 + 1),  # first doorbell, four pages of each card, latency, flag to the GPU
    ((0, 1), 2 + 40 + 40 + 10 + 1),  # behind the first layer's
], ids=["apart", "together"])  # fmt: skip
@pytest.mark.parametrize("tensors", [1, 2])
def test_a_layer_leaves_when_it_is_ready(ready_us: tuple[int, int], complete_us: int, tensors: int) -> None:
    parts = [CachePart(f"layer {layer}", layer, 8 // tensors) for layer in (0, 1)]
    wire, cache = Wire(2), CachePages(parts, tensors, page_bytes=10_000, tail_bytes=0)
    sender, receiver = wire.hosts

    def gpu() -> Any:
        for part, ready in zip(parts, ready_us, strict=True):
            yield wire.env.timeout(ready * US - wire.env.now)
            sender.flag(part.flag).succeed(JournalRow(0, 0))
        sender.flag(PREFILLED).succeed(JournalRow(0, 0))

    wire.run(gpu(), cache.send(sender, 1), cache.receive(receiver))
    ((rank, flag, when),) = wire.seen
    assert (rank, flag) == (1, COMPLETE)
    assert when == complete_us
    sent = [row for row in wire.rows.rows if row[2] == "send" and row[3] == "kv.pages"]
    assert len(sent) == 2 * 8
    assert all(row[4] >= ready_us[1] for row in sent[8:])


def test_nothing_decodes_before_prefill_has_ended() -> None:
    """The tail leaves at 500 us, is posted in 1 us, and there 10 us later; the GPU sees the flag after 1 us more."""
    wire, cache = Wire(2), CachePages([CachePart("layer 0", 0, 4)], 1, page_bytes=10_000, tail_bytes=0)
    sender, receiver = wire.hosts

    def gpu() -> Any:
        sender.flag("layer 0").succeed(JournalRow(0, 0))
        yield wire.env.timeout(500 * US)
        sender.flag(PREFILLED).succeed(JournalRow(0, 0))

    wire.run(gpu(), cache.send(sender, 1), cache.receive(receiver))
    assert [when for _, _, when in wire.seen] == [512.0]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(0, 8000), st.sampled_from([0.1, 1.0, 3.0]), st.sampled_from([1, 2, 4]))
def test_pages_are_never_faster_than_their_posts_in_series_nor_than_the_wire(pages: int, size: int, post_us: float,
                                                                             cards: int) -> None:
    wire = Wire(2, nic__post_page=f"{post_us} us", nic__per_die=str(cards))
    host = wire.hosts[0]

    def program() -> Any:
        done = yield from host.engine.paged(host.proxy, Label("kv"), 1, pages, size, "page")
        yield from host.until(done, "pages")

    ended_us = wire.run(program())
    on_the_wire_us = -(-pages // cards) * size / 1e3  # at 1 GB/s
    assert ended_us >= max(pages * post_us, on_the_wire_us) + 10 + 5 - 1e-6
    assert ended_us <= pages * post_us + on_the_wire_us + pages * 0.1 + 10 + 5 + 1e-6
