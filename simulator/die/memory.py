"""The memory of one rank, item by item: what it holds, what is left, and a refusal that shows all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from simulator.errors import RunError
from simulator.spec.machine import HbmSpec
from simulator.units import alike, format_si, to_si

Category: TypeAlias = Literal["weights", "KV", "activations", "communication", "other"]
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True)
class LedgerItem:
    """One thing that a rank keeps in HBM, in bytes on that rank."""

    name: str
    category: Category
    size_bytes: float

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"{self.name}: category is '{self.category}': one of {', '.join(CATEGORIES)}")
        if not self.size_bytes >= 0:
            raise ValueError(f"{self.name}: {self.size_bytes} bytes: 0 or more")


class DoesNotFit(RunError, MemoryError):  # noqa: N818
    """The items need more than there is; the text is the whole ledger, also in `ledger`. hint: what would fit."""

    def __init__(self, ledger: Ledger, hint: str = "") -> None:
        self.ledger = ledger
        over = format_si(-ledger.free_bytes, "B")
        super().__init__(f"{ledger.title} does not fit: {over} too much{hint and '; '}{hint}\n{ledger}")


class Ledger:
    """Items against the usable part of the HBM of one rank.

    Adding never fails, so that a refusal shows every item: call `check` when all are in. Sizes in bytes.
    """

    def __init__(self, title: str, capacity_bytes: float, usable: float = 1.0) -> None:
        self.title, self.capacity_bytes, self.usable = title, capacity_bytes, usable
        self.items: list[LedgerItem] = []

    @classmethod
    def of(cls, title: str, hbm: HbmSpec) -> Ledger:
        """An empty ledger over the HBM of a chip."""
        return cls(title, hbm.capacity.si, hbm.usable.si)

    def add(self, name: str, category: Category, size_bytes: float) -> None:
        """One more item; ValueError for a wrong category or a negative size. Equal names are separate items."""
        self.items.append(LedgerItem(name, category, size_bytes))

    @property
    def used_bytes(self) -> float:
        """What all items need."""
        return sum(item.size_bytes for item in self.items)

    @property
    def usable_bytes(self) -> float:
        """What driver and runtime leave."""
        return self.capacity_bytes * self.usable

    @property
    def free_bytes(self) -> float:
        """What is left of the usable part; negative where it does not fit."""
        return self.usable_bytes - self.used_bytes

    @property
    def fits(self) -> bool:
        """Whether everything fits; exactly full does."""
        return self.free_bytes >= 0

    def check(self) -> None:
        """Nothing where everything fits; else DoesNotFit with the ledger."""
        if not self.fits:
            raise DoesNotFit(self)

    def rows(self) -> Iterator[tuple[str, str, float]]:
        """(category, name, bytes) for a table: items by category, the largest first, then used, usable and free."""
        order = {category: place for place, category in enumerate(CATEGORIES)}
        for item in sorted(self.items, key=lambda each: (order[each.category], -each.size_bytes)):
            yield item.category, item.name, item.size_bytes
        yield "", "used", self.used_bytes
        yield "", f"usable, {self.usable:.1%} of {format_si(self.capacity_bytes, 'B')}", self.usable_bytes
        yield "", "free" if self.fits else "missing", abs(self.free_bytes)

    def __str__(self) -> str:
        """The table of `rows`, aligned, all in the unit that fits the largest."""
        found = list(self.rows())
        unit = format_si(max(size for _, _, size in found), "B").split()[1]
        sizes = alike([size / to_si(1, unit) for _, _, size in found])
        rows = [(category, name, f"{size} {unit}") for (category, name, _), size in zip(found, sizes, strict=True)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)
