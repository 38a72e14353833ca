"""Which deployments are worth a look: those that no other beats in both, and the few next ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from simulator import np
from simulator.search.deployment import Found
from simulator.search.roofline import Corner

OBJECTIVES: Mapping[str, Callable[[Found], tuple[float, float]]] = {
    "tok_s_per_gpu": lambda one: (one.tok_s_per_gpu, one.tok_s_per_user),
    "cost": lambda one: (one.tok_s_per_gpu, one.tok_s_per_user),  # of one kind of GPU: each costs the same
    "tok_s_per_user": lambda one: (one.tok_s_per_user, one.tok_s_per_gpu),
}


def front(points: Iterable[Found]) -> list[Found]:
    """Those of which no other gives a user and a GPU as many tokens a second or more, by tokens of a user."""
    found: list[Found] = []
    for one in sorted(points, key=lambda one: (-one.tok_s_per_user, -one.tok_s_per_gpu, one.words)):
        if not found or one.tok_s_per_gpu > found[-1].tok_s_per_gpu:
            found.append(one)
    return found


def best(points: Iterable[Found], objective: str, count: int) -> list[Found]:
    """The best point of each family of deployments, the best families first."""
    value = OBJECTIVES[objective]
    of_family: dict[str, Found] = {}
    for one in sorted(points, key=lambda one: (*(-number for number in value(one)), one.gpus, one.words)):
        of_family.setdefault(one.family, one)
    return list(of_family.values())[:count]


class Seen:
    """Points by family, to know what need not be looked at."""

    def __init__(self) -> None:
        self._users: list[float] = []
        self._gpus: list[float] = []
        self._families: list[int] = []
        self._numbers: dict[str, int] = {}

    def add(self, points: Iterable[Found]) -> None:
        """Points that have been found."""
        for one in points:
            self._users.append(one.tok_s_per_user)
            self._gpus.append(one.tok_s_per_gpu)
            self._families.append(self._numbers.setdefault(one.family, len(self._numbers)))

    def beats(self, corners: Sequence[Corner], families: int) -> bool:
        """Whether so many families have a point above and to the right of each corner."""
        users, gpus, numbers = (np.array(some) for some in (self._users, self._gpus, self._families))
        return all(len(set(numbers[(users >= one.tok_s_per_user) & (gpus >= one.tok_s_per_gpu)].tolist())) >= families
                   for one in corners)  # fmt: skip
