"""Which collective stands between two placements, and how many bytes it moves."""

from __future__ import annotations

import pytest

import simulator.collective.algorithms  # noqa: F401 - enters its names
from simulator.errors import InputError
from simulator.parallel.border import COLLECTIVES, FREE, Engines, Form, cross, engines_for
from simulator.program.rank import Rank
from simulator.program.task import Collective
from simulator.stack.sglang import STACK

TOKENS, ROW_BYTES = 12, 80.0
SMALL = Engines("large", "ring", "small", 8, TOKENS * ROW_BYTES)


def launched(gives: Form, needs: Form, size: int = 4, engines: Engines = SMALL) -> list[Collective]:
    npu = Rank({"rank": 0}, {"g": size})
    cross(npu.group("g"), "border", gives, needs, TOKENS, ROW_BYTES, engines)
    works = [work for _, work in npu.program.works()]
    assert all(isinstance(work, Collective) for work in works)
    return works  # type: ignore[return-value]


@pytest.mark.parametrize(("gives", "needs", "kind", "size_bytes"), [
    ("own", "all", "all_gather", 240),  # a share of 3 tokens
    ("partial", "all", "all_reduce", 960),  # the whole buffer
    ("partial", "own", "reduce_scatter", 240),
    ("heads", "own", "all_to_all", 60),  # a quarter of 3 tokens for each peer
    ("own", "heads", "all_to_all", 60),
    ("heads", "all", "all_gather", 240),  # a quarter of every token's values
])  # fmt: skip
def test_bytes_of_every_border(gives: Form, needs: Form, kind: str, size_bytes: int) -> None:
    (work,) = launched(gives, needs)
    assert (work.kind, work.bytes_per_pair) == (kind, size_bytes)


def test_all_borders_are_tested() -> None:
    assert len(COLLECTIVES) == 6


@pytest.mark.parametrize(("gives", "needs"), sorted(FREE))
def test_what_a_rank_has_it_need_not_be_sent(gives: Form, needs: Form) -> None:
    assert launched(gives, needs) == []


@pytest.mark.parametrize(("gives", "needs"), sorted(COLLECTIVES))
def test_a_group_of_one_sends_nothing(gives: Form, needs: Form) -> None:
    assert launched(gives, needs, size=1) == []


def test_small_all_reduces_have_an_engine_of_their_own() -> None:
    (small,) = launched("partial", "all")
    (large,) = launched("partial", "all", engines=Engines("large", "ring", "small", 8, TOKENS * ROW_BYTES - 1))
    (far,) = launched("partial", "all", 16)
    assert [(one.via, one.algorithm) for one in (small, large, far)] == [("small", "auto"), *[("large", "ring")] * 2]


def test_what_is_in_no_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="no collective turns 'heads' into 'partial'"):
        launched("heads", "partial")


def test_a_stack_takes_the_first_engine_that_the_machine_has() -> None:
    there = {STACK.engines[-1]: 64, STACK.reducing_engines[0]: 8}
    taken = engines_for(STACK, there, "", "", "", 1e6)
    assert (taken.engine, taken.algorithm) == (STACK.engines[-1], STACK.algorithm)
    assert (taken.reducing, taken.reducing_ranks, taken.reducing_bytes) == (STACK.reducing_engines[0], 8, 1e6)
    assert engines_for(STACK, there, "", "", "none", 1e6).reducing == ""


def test_a_machine_without_any_of_them_is_an_error() -> None:
    with pytest.raises(InputError, match="of which the machine has none; it has sdma"):
        engines_for(STACK, {"sdma": 8}, "", "", "", 1e6)


@pytest.mark.parametrize(("algorithm", "of_rows"), [
    ("ring", "direct"), ("hierarchical", "pairwise"), ("direct", "direct"), ("auto", "auto")])
def test_an_all_to_all_goes_its_own_way_where_it_has_no_such_algorithm(algorithm: str, of_rows: str) -> None:
    """Over nodes peer by peer where others go node by node."""
    assert Engines("sdma", algorithm).of("all_to_all", 1e6, 16) == ("sdma", of_rows)
    assert Engines("sdma", algorithm, all_to_all="direct").of("all_to_all", 1e6, 16) == ("sdma", "direct")
