"""Which rank runs which program, in which groups: all that a replay needs to know beside the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.program.rank import Rank
from simulator.program.task import Program

Groups = Mapping[str, Sequence[tuple[int, ...]]]  # name -> instances; every rank is in exactly one of each name


@dataclass(frozen=True, slots=True)
class World:
    """programs: one per rank, shared by ranks that asked for the same coordinates and got the same answers."""

    programs: Sequence[Program]
    groups: Groups
    _instances: dict[str, dict[int, tuple[int, ...]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.programs)

    def instance(self, group: str, rank: int) -> tuple[int, ...]:
        """The members of this rank's group of that name, in group order."""
        known = self._instances.get(group)
        if known is None:
            known = {member: members for members in self.groups[group] for member in members}
            self._instances[group] = known
        return known[rank]


def record_world(
    program: Callable[[Rank], None],
    ranks: int,
    groups: Groups,
    coordinates: Callable[[int], Mapping[str, object]],
) -> World:
    """Record `program` once for every set of answers that it got about its place.

    coordinates(rank): what a rank may ask about itself; "rank" is always there.
    """
    sizes = {name: len(instances[0]) for name, instances in groups.items()}
    recorded: list[tuple[dict[str, object], Program]] = []
    programs = []
    for rank in range(ranks):
        place = {"rank": rank, **coordinates(rank)}
        program_of = next((found for asked, found in recorded if _same(asked, place)), None)
        if program_of is None:
            npu = Rank(place, sizes)
            program(npu)
            program_of = npu.program
            recorded.append((npu.asked, program_of))
            if "rank" in npu.asked:
                recorded.pop()  # nobody else can share it
        programs.append(program_of.for_rank(rank))
    return World(programs, groups)


def _same(asked: Mapping[str, object], place: Mapping[str, object]) -> bool:
    return all(place[coordinate] == value for coordinate, value in asked.items())
