"""The table of collectives: its names are those that programs may use, and its bytes are those that it lowers to."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.collective.algorithms import TABLE, algorithm_of, amounts
from simulator.collective.lowering import Lowering
from simulator.errors import NoSuchName
from simulator.fabric.graph import Fabric
from simulator.program.task import ALGORITHMS, Collective
from simulator.spec.load import load_machine
from tests.die.machines import gpu_nodes

MACHINE = load_machine("atlas_a2")
MEMBERS = tuple(range(16))  # two nodes
ONE_SWITCH = gpu_nodes()
TO_ALL = [(kind, name) for kind, name in TABLE if kind.startswith("all") or kind == "reduce_scatter"]


def test_programs_may_use_the_names_of_the_table() -> None:
    assert ALGORITHMS["all_reduce"] == ["direct", "hierarchical", "ring", "one_shot", "nvls", "auto"]
    assert {(kind, name) for kind, names in ALGORITHMS.items() for name in names} == set(TABLE)


@pytest.mark.parametrize(("kind", "name"), TO_ALL)
def test_a_rank_puts_on_the_wire_and_through_its_memory_what_its_transfers_move(kind: str, name: str) -> None:
    collective = Collective(kind, "world", "sdma", 16_000, algorithm=name)
    machine, members = (ONE_SWITCH, MEMBERS[:8]) if name == "nvls" else (MACHINE, MEMBERS)
    engine = machine.collectives["sdma"]
    moved: Counter[str] = Counter()
    for phase in Lowering(Fabric(machine, 16), machine.collectives).lower(collective, members):
        for transfer in phase.transfers:
            moved.update({key[0]: load for key, load in transfer.loads if key[1] == 3 and key[0] in ("out", "hbm")})
    wire_bytes, memory_bytes = amounts(collective, len(members), engine)
    assert wire_bytes == moved["out"]
    assert memory_bytes == pytest.approx(moved["hbm"], abs=32)  # whole bytes at each end of each message


def test_one_shot_sends_the_whole_buffer_to_everybody_and_shards_send_it_twice() -> None:
    engine = MACHINE.collectives["sdma"]
    sent = {name: amounts(Collective("all_reduce", "world", "sdma", 1600, algorithm=name), 16, engine)[0]
            for name in ("direct", "one_shot")}
    assert sent == {"direct": 2 * 15 * 100, "one_shot": 15 * 1600}


@pytest.mark.parametrize(("kind", "wire_bytes", "ends_bytes"), [
    ("send", 1600, 1600), ("recv", 0, 1600), ("put", 700, 700 + 300), ("collect", 0, 0), ("barrier", 0, 0)])
def test_messages_and_puts_count_what_leaves_and_what_comes(kind: str, wire_bytes: int, ends_bytes: int) -> None:
    """Through memory both do, with the staging of the engine (sdma of Atlas A2) at each end."""
    engine = MACHINE.collectives["sdma"]
    size = 1600 if kind in ("send", "recv") else 0
    one = Collective(kind, "world", "sdma", size, sent_bytes=700, received_bytes=300)
    each = engine.transfer_bytes.si / 2 + engine.staging_bytes
    assert amounts(one, 16, engine) == (wire_bytes, ends_bytes * each)


def test_an_algorithm_that_no_entry_names_is_refused_with_those_there_are() -> None:
    with pytest.raises(NoSuchName, match=r"all_gather: no algorithm 'rnig' .*'ring'\?\); there are direct"):
        algorithm_of(Collective("all_gather", "world", "sdma", 8, algorithm="rnig"))
