"""Stages by hand: 2 us and 3 us for each item, which overlap as far as there is room."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from simulator.live.stages import Stages
from tests.live.live_hosts import US, Wire


def ended_us(room: int, leaves_early: bool, items: int = 4) -> list[float]:
    """When each item is through; early: it leaves with the first stage, late: where it comes out."""
    wire, ended = Wire(1), []  # type: tuple[Wire, list[float]]
    env = wire.env

    def stage(length_us: int, leaves: bool, item: int, row: Any) -> Any:
        assert row == (None if length_us == 2 else (item, 2))
        yield env.timeout(length_us * US)
        if leaves:
            line.leave()
        return item, length_us

    line = Stages(env, range(items), [partial(stage, 2, leaves_early), partial(stage, 3, False)], room)

    def out() -> Any:
        for expected in range(items):
            item, row = yield line.through()
            assert (item, row) == (expected, (expected, 3))
            ended.append(env.now / US)
            if not leaves_early:
                line.leave()

    wire.run(out())
    return ended


@pytest.mark.parametrize(("room", "leaves_early", "ended"), [
    (1, False, [5, 10, 15, 20]),  # one after the other
    (2, False, [5, 8, 11, 14]),  # the slower stage is always busy
    (1, True, [5, 8, 11, 14]),
])  # fmt: skip
def test_items_overlap_as_far_as_there_is_room(room: int, leaves_early: bool, ended: list[float]) -> None:
    assert ended_us(room, leaves_early) == ended
