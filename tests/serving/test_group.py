"""A group that counts by classes holds what counting request by request says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.serving.cache import BlockCache
from simulator.serving.group import GROWN, Group
from simulator.serving.growth import OneToken
from simulator.serving.schedulers import preempt
from simulator.serving.sequences import Sequence


@dataclass
class Plain:
    """One request, counted by itself: tokens cached, tokens emitted, tokens that it wants."""

    cached: int
    emitted: int
    output: int


def joined(group: Group, request: int, prompt: int, output: int) -> Sequence:
    """A request comes, is prefilled at once, and decodes."""
    one = Sequence(request, prompt, output, [])
    group.waiting.append(one)
    again(group, one)
    return one


def again(group: Group, one: Sequence) -> None:
    """The first one that waits is prefilled at once, and decodes unless that was its last token."""
    blocks = -(-one.prompt // group.block)
    assert group.cache.take(one.request, [], blocks) == 0
    assert group.begin(one.prompt, blocks) is one
    one.emitted += 1
    if one.emitted == one.output:
        group.finish(one)
    else:
        group.join(one)


def check(group: Group, plain: dict[int, Plain]) -> None:
    blocks = {request: -(-one.cached // group.block) for request, one in plain.items()}
    assert {request: group.length(one) for request, one in group.decoding.items()} == {
        request: one.cached for request, one in plain.items()}  # fmt: skip
    assert group.cache.used == sum(blocks.values())
    assert group.cached == sum(one.cached for one in plain.values())
    assert group.to_come == sum(one.output - one.emitted for one in plain.values())
    assert group.steps_to_end() == min((one.output - one.emitted for one in plain.values()), default=0)
    most = {one.request: -(-(one.input + one.output) // group.block) for one in group.decoding.values()}
    assert group.promised == sum(most[request] - blocks[request] for request in plain)
    for steps in (1, 2, group.block, 3 * group.block + 1):
        begun = sum(-(-(one.cached + steps) // group.block) - blocks[request] for request, one in plain.items())
        assert group.blocks_of(steps) == begun


EVENTS = st.lists(
    st.one_of(st.tuples(st.just("come"), st.integers(1, 70), st.integers(1, 50)),
              st.tuples(st.just("decode"), st.integers(1, 40), st.just(0)),
              st.tuples(st.just("preempt"), st.just(0), st.just(0))), max_size=40)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.sampled_from([1, 2, 16]))
def test_classes_say_what_requests_say_one_by_one(events: list[tuple[str, int, int]], block: int) -> None:
    group, plain, ever = Group(BlockCache(10_000, block, False)), dict[int, Plain](), 0
    for what, first, second in events:
        if what == "come" and not group.waiting:
            joined(group, ever, first, second)
            if second > 1:
                plain[ever] = Plain(first, 1, second)
            ever += 1
        elif what == "decode" and plain:
            steps = min(first, group.steps_to_end())
            for one in plain.values():
                one.cached, one.emitted = one.cached + steps, one.emitted + steps
            over = {request for request, one in plain.items() if one.emitted == one.output}
            assert {one.request for one in group.decode(steps)} == over
            plain = {request: one for request, one in plain.items() if request not in over}
        elif what == "preempt" and plain:
            one = preempt(group)
            counted = plain.pop(one.request)
            assert (one.emitted, one.prompt) == (counted.emitted, one.input + counted.emitted)
            check(group, plain)
            again(group, one)
            if counted.emitted + 1 < counted.output:
                plain[one.request] = Plain(one.prompt, counted.emitted + 1, counted.output)
        check(group, plain)
    while plain:
        group.decode(steps := group.steps_to_end())
        plain = {request: Plain(one.cached + steps, one.emitted + steps, one.output)
                 for request, one in plain.items() if one.emitted + steps < one.output}  # fmt: skip
        check(group, plain)
    assert (group.cache.used, group.promised, group.to_come, group.cached) == (0, 0, 0, 0)
    assert isinstance(group.growth, OneToken)
    assert not any(group.growth._classes)


def test_a_request_that_ends_holds_nothing_and_the_last_one_to_come_is_preempted() -> None:
    group = Group(BlockCache(100, 16, False))
    for request, output in enumerate((3, 9, 9)):
        joined(group, request, 16, output)
    assert [one.request for one in group.decode(2)] == [0]
    assert group.cache.used == 4
    assert preempt(group).request == 2
    assert group.cache.used == 2
    assert [one.request for one in group.waiting] == [2]
    assert group.waiting[0].prompt == 19, "what it has generated is computed again"


def test_a_request_that_comes_back_to_the_same_end_ends_once() -> None:
    """While it was computed again the others decoded, and it got its token with them."""
    group = Group(BlockCache(100, 16, False))
    for request in (0, 1):
        joined(group, request, 16, 6)
    one = preempt(group)
    group.decode(1)
    again(group, one)
    assert [ended.request for ended in group.decode(4)] == [0, 1]
    assert group.cache.used == 0


def test_blocks_that_are_not_there_are_an_error() -> None:
    group = Group(BlockCache(1, 16, False))
    joined(group, 0, 16, 5)
    with pytest.raises(ValueError, match="1 blocks are not there: 0 are free"):
        group.decode(1)
    assert group.cache._held[GROWN].blocks == 0
