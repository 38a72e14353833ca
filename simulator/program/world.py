"""Which rank runs which program, in which groups: all that a replay needs to know beside the machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from simulator.die.kernels import Work
from simulator.program.checks import Located, check_members, check_order, watched
from simulator.program.rank import Rank
from simulator.program.task import Collective, Program, ProgramError

Own = Work | Collective
AT_ONCE = 4096  # ranks whose works are held side by side

Groups = Mapping[str, Sequence[tuple[int, ...]]]
"""Name -> instances; every rank is in exactly one of each name, or, where they are `OfSome`, in at most one."""


class OfSome(list[tuple[int, ...]]):
    """The groups of a name that only some ranks are in: no other may launch a collective in them."""


@dataclass(frozen=True, slots=True)
class World:
    """programs: one per rank, shared by ranks that asked for the same coordinates and got the same answers."""

    programs: Sequence[Program]
    groups: Groups
    _instances: dict[str, dict] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.programs)

    @property
    def eager(self) -> frozenset[int]:
        """Ranks whose programs are no captured graphs: their hosts launch collectives one by one."""
        return frozenset(rank for rank, program in enumerate(self.programs) if not program.captured)

    def instance(self, group: str, rank: int) -> tuple[int, ...]:
        """The members of this rank's group of that name, in group order; none where it is in no such group."""
        known = self._instances.get(group)
        if known is None:
            known = {member: members for members in self.groups[group] for member in members}
            self._instances[group] = known
        return known.get(rank, ())


Coordinates = Callable[[int], Mapping[str, object]]


def record_world(program: Callable[[Rank], None], ranks: int, groups: Groups, coordinates: Coordinates) -> World:
    """Record `program` once for every set of answers that it got about itself; ranks with equal numbers share it.

    coordinates(rank): what a rank may ask about itself; "rank" is always there. ProgramError: groups as `sizes_of`
    refuses them; a program that does not end; ranks that issue the collectives of a group in different orders, or
    launch different numbers of works where these depend on the rank.
    """
    return World(_with_own(record_shared(program, ranks, groups, coordinates).programs), groups)


def record_shared(program: Callable[[Rank], None], ranks: int, groups: Groups, coordinates: Coordinates) -> World:
    """As `record_world`, but works that depend on the rank are left as they are for the first rank of a recording."""

    def line_of(rank: int, task: int) -> str:
        again = Located({"rank": rank, **coordinates(rank)}, sizes, task)
        program(again)
        return again.line

    sizes = sizes_of(groups, ranks)
    recorded: list[tuple[Rank, Program]] = []
    by_length: dict[int, list[Program]] = {}  # different answers may still lead to the same program
    programs = []
    for rank in range(ranks):
        if len(recorded) == 1 and not (recorded[0][0].asked or recorded[0][0].kinds):  # it is that of all ranks
            programs.append(recorded[0][1])
            continue
        own = {"rank": rank, **coordinates(rank)}
        known = next((found for one, found in recorded if _answers_alike(one, own)), None)
        if known is None:
            npu = Rank(own, sizes)
            with watched(npu):
                program(npu)
            alike = by_length.setdefault(len(npu.program.items), [])
            known = next((one for one in alike if one == npu.program), npu.program)
            if known is npu.program:
                alike.append(known)
            if "rank" not in npu.asked:  # else no other rank can share it
                recorded.append((npu, known))
        programs.append(known)
    check_members(programs, {name: one for name, one in groups.items() if isinstance(one, OfSome)}, line_of)
    check_order(programs, groups, line_of)
    return World(programs, groups)


def _answers_alike(recorded: Rank, own: Mapping[str, object]) -> bool:
    """Whether a rank with these coordinates answers all that was asked as the one that was recorded."""
    same = recorded.asked.items() <= own.items()
    return same and all(kind_of(own[coordinate]) == kind for coordinate, kind_of, kind in recorded.kinds)


def sizes_of(groups: Groups, ranks: int) -> dict[str, int]:
    """Members of the groups of each name; ProgramError: some differ in size, or do not hold every rank once, where they
    are not `OfSome`."""
    return {name: _size(name, instances, ranks) for name, instances in groups.items()}


def _size(name: str, instances: Sequence[tuple[int, ...]], ranks: int) -> int:
    """Of every group of a name."""
    sizes = sorted({len(members) for members in instances})
    if len(sizes) != 1:
        words = " and ".join(map(str, sizes)) or "no"
        raise ProgramError(f"groups '{name}' have {words} members: give those of another size a name of their own")
    places = Counter(chain.from_iterable(instances))
    some = isinstance(instances, OfSome)
    there = places if some else {*range(ranks), *places}
    wrong = sorted(rank for rank in there if places[rank] != 1 or not 0 <= rank < ranks)
    if wrong:
        many = "some" if some else "each"
        raise ProgramError(f"groups '{name}' must hold {many} of {ranks} ranks once: wrong for {wrong[:8]}")
    return sizes[0]


def _with_own(shared: Sequence[Program]) -> list[Program]:
    """Every rank's program with the works that depend on the rank: one program for all who have the same."""
    programs = list(shared)
    sharing: dict[int, list[int]] = defaultdict(list)
    for rank, program in enumerate(programs):
        if program.by_rank:
            sharing[id(program)].append(rank)
    for ranks in sharing.values():
        template, equals = programs[ranks[0]], _Equals()
        variants: dict[tuple[int, ...], Program] = {}
        known: list[tuple[int, int]] = []
        for some in (ranks[first : first + AT_ONCE] for first in range(0, len(ranks), AT_ONCE)):
            columns = [equals.column(list(map(works_of, some))) for works_of in template.by_rank.values()]
            lengths = [(first, len(column[0])) for first, column in zip(template.by_rank, columns, strict=True)]
            if known and lengths != known:
                both = f"ranks {ranks[0]} and {some[0]}"
                raise ProgramError(f"{both} launch different numbers of works that depend on the rank")
            known = lengths
            tasks = [task for first, length in lengths for task in range(first, first + length)]
            for rank, blocks in zip(some, zip(*columns, strict=True), strict=True):
                works = list(chain.from_iterable(blocks))
                alike = tuple(map(id, works))
                if alike not in variants:
                    variants[alike] = template.with_own(dict(zip(tasks, works, strict=True)))
                programs[rank] = variants[alike]
    return programs


class _Equals:
    """Works of which equal ones become one object, so that they are told apart by identity from there on."""

    def __init__(self) -> None:
        self._known: dict[Own, Own] = {}
        self._ones: dict[int, Own] = {}  # by identity

    def column(self, launched: list[Sequence[tuple[str, Own]]]) -> list[list[Own]]:
        """The objects that stand for the works of every rank, which must launch as many; each is compared once."""
        ones, one_of = self._ones, self._one_of
        standing = {identity: [ones.get(id(work)) or one_of(work) for _, work in some]
                    for identity, some in {id(some): some for some in launched}.items()}
        if len(set(map(len, standing.values()))) > 1:
            name = next(name for some in launched for name, _ in some)
            raise ProgramError(f"from '{name}' on, ranks launch different numbers of works that depend on the rank")
        return [standing[id(some)] for some in launched]

    def _one_of(self, work: Own) -> Own:
        one = self._known.setdefault(work, work)
        self._ones[id(one)] = one
        return one
