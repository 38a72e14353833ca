"""Steps of a service, kept as stretches: a row of numbers for each, and eight bytes for each of its steps.

Within a stretch all is as at its beginning but the tokens cached and the blocks in use, which grow: a column of steps
follows from the stretches, and is made when it is asked for. Ten million steps are 80 MB, and not ten columns of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from simulator import np
from simulator.np import Array
from simulator.serving.record import OF_EXPERTS, STEPS

ROW = ("start_ps", "steps", "decoding", "cached_tokens", "prefill_tokens", "waiting", "used_blocks", "most_tokens",
       "begun")  # fmt: skip
"""Of a stretch: its start, how many steps it has, how many blocks it began, and what there was in its first step."""


class Stretches:
    """Those of one engine, in their order."""

    def __init__(self) -> None:
        self._rows, self._durations = array("q"), array("q")

    def add(self, row: Sequence[int], lengths_ps: Array) -> None:
        """One more. row: as ROW has it; lengths_ps: of its steps."""
        self._rows.extend(row)
        self._durations.frombytes(lengths_ps.astype(np.int64, copy=False).tobytes())

    def __len__(self) -> int:
        return len(self._rows) // len(ROW)

    @property
    def rows(self) -> Array:
        """One for each stretch, as ROW has it."""
        return np.frombuffer(self._rows, np.int64).reshape(-1, len(ROW))

    @property
    def durations_ps(self) -> Array:
        """Of all steps."""
        return np.frombuffer(self._durations, np.int64)


class _Part(NamedTuple):
    """Of one engine, which has stretches. balancedness: of each of them, None where experts stay."""

    engine: int
    stretches: Stretches
    balancedness: Sequence[float] | None


class Steps(Mapping[str, Array]):
    """The columns of STEPS, and of OF_EXPERTS where experts of an engine change, by start. A column is made anew
    whenever it is asked for, and not kept. stretches: of each engine; balancedness: as of `_Part`."""

    def __init__(self, stretches: Sequence[Stretches], balancedness: Sequence[Sequence[float] | None]) -> None:
        self._names = (*STEPS, *(OF_EXPERTS if any(one is not None for one in balancedness) else ()))
        self._parts = [_Part(number, one, of) for number, (one, of) in
                       enumerate(zip(stretches, balancedness, strict=True)) if len(one)]  # fmt: skip
        self._order: Array | None = None
        if len(self._parts) > 1:
            order = np.argsort(self._whole("start_ps"), kind="stable")
            self._order = order.astype(np.uint32) if len(order) < 2**32 else order

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        if not self._parts:
            return np.zeros(0, np.int64)
        whole = self._whole(name)
        return whole if self._order is None else whole[self._order]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _whole(self, name: str) -> Array:
        """A column, engine after engine."""
        found = [_column(part, name) for part in self._parts]
        return found[0] if len(found) == 1 else np.concatenate(found)


def _column(part: _Part, name: str) -> Array:
    """Of the steps of one engine."""
    lengths_ps, rows = part.stretches.durations_ps, dict(zip(ROW, part.stretches.rows.T, strict=True))
    steps = rows["steps"]
    each = partial(_each, steps=steps)
    if name == "engine":
        return np.full(len(lengths_ps), part.engine, np.int16)
    if name == "duration_ps":
        return lengths_ps
    if name == "balancedness":
        return each(np.array([np.nan] * len(steps) if part.balancedness is None else part.balancedness), float)
    if name == "start_ps":
        before_ps = np.cumsum(lengths_ps)
        before_ps -= lengths_ps
        before_ps += each(rows[name] - before_ps[np.cumsum(steps) - steps], np.int64)
        return before_ps
    if name == "cached_tokens":
        grown = _within(steps)
        grown *= each(rows["decoding"])
        grown += each(rows[name], np.int64)
        return grown
    if name == "used_blocks":
        grown = _within(steps)
        grown *= each(rows["begun"])
        grown //= each(steps)
        return each(rows[name]) + grown.astype(np.int32)
    return each(rows[name])


def _each(column: Array, dtype: type = np.int32, *, steps: Array) -> Array:
    """What a stretch has, for each of its steps."""
    return np.repeat(column.astype(dtype), steps)


def _within(steps: Array) -> Array:
    """The place of each step in its stretch."""
    place = np.arange(steps.sum())
    place -= np.repeat(np.cumsum(steps) - steps, steps)
    return place
