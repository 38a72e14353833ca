"""The experts of an engine over time: their popularity drifts, and at an interval they are placed anew (EPLB).

As vLLM does it (`vllm/distributed/eplb/`, settings by the names of its `EPLBConfig`): the load of the last
`window_size` steps is counted; every `step_interval` steps, the first time after a quarter of them, all layers are
placed for it, and weights move layer by layer through a buffer of one layer. With `use_async` they move beside the
service: a layer is in its new place from the step after it has come, and then the next one sets off. Otherwise (and so
does SGLang, `eplb_manager.py`) the engine waits until all are there. What the host takes to count and to place is left
out.

Worked example: an interval of 400 steps, 2 layers that change. After 100 steps both are placed for what these 100
counted, and the first one sets off; it has come during step 101. Step 102 has it, and the second one on its way beside
it; step 103 has both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple

from simulator import np
from simulator.model.eplb import Placement
from simulator.model.expert_state import ExpertState, imbalance_of
from simulator.physics.clock import Clock
from simulator.serving.placing import Moves, Placing, moves_between
from simulator.serving.popularity import Popularity, counted
from simulator.serving.settings import ExpertSettings
from simulator.serving.uneven import SHARE, Uneven
from simulator.units import PS_PER_S, to_ps

Send = Callable[[Mapping[tuple[int, int], float], float, Callable[[], None]], float]
"""Bytes from rank to rank, the share of a link's rate that they get at most, and what is called when they are there; it
gives the seconds that they take if nothing else is on the wire."""


class Moved(NamedTuple):
    """One rearrangement: from when to when, experts that moved, and their bytes; end_ps -1: not over."""

    start_ps: int
    end_ps: int
    experts: int
    size_bytes: float


class _Layer(NamedTuple):
    """That is to be placed anew: its row, where its experts will be, and what moves."""

    row: int
    placement: Placement
    moves: Moves


class Experts:
    """Of one engine. changed: set by it; called when a step may begin that could not, or has another state.

    balancedness: mean load of the places over the largest, of every stretch of steps; moved: every rearrangement."""

    def __init__(self, settings: ExpertSettings, placing: Placing, popularity: Popularity, send: Send,
                 clock: Clock) -> None:
        self._settings, self._placing, self._popularity = settings, placing, popularity
        self._send, self._clock = send, clock
        self.changed: Callable[[], None] = lambda: None
        self.balancedness: list[float] = []
        self.moved: list[Moved] = []
        self._epoch, self._asked = 0, popularity.at(0)
        first = placing.placed(self._asked) if settings.init_expert_location == "counted" else placing.in_order()
        self._placements = list(first)
        self._window: deque[list[Any]] = deque()  # of steps that followed each other: how many, tokens of each, asked
        self._since = settings.step_interval - settings.step_interval // 4
        self._waiting: deque[_Layer] = deque()
        self._under_way: _Layer | None = None
        self._come = False  # the one under way is there
        self._alone_ps = 0  # when it would be there if nothing else were on the wire
        self._ratios = [1.0] * len(first)
        self._names = [""] * len(first)
        self._new_names(range(len(first)))
        self._state = self._new_state(range(len(first)))

    @property
    def blocked(self) -> bool:
        """Whether no step may begin."""
        return self._under_way is not None and not self._settings.use_async

    @property
    def most_steps(self) -> int:
        """That may be taken together from now on."""
        if self._under_way is not None:
            return 1
        return max(self._settings.step_interval - self._since, 1) if self._settings.step_interval else 2**62

    def begin(self) -> Uneven:
        """What the step that begins now asks of experts."""
        now_ps = self._clock.now_ps
        if self._come:
            self._place()
        if (epoch := self._popularity.epoch(now_ps)) != self._epoch:
            self._epoch, self._asked = epoch, self._popularity.at(epoch)
            self._state = self._new_state(range(len(self._ratios)))
        if self._under_way is None:
            return Uneven(self._state)
        left_ps = self._alone_ps - now_ps
        return Uneven(self._state, left_ps / PS_PER_S if left_ps > 0 else inf)

    def cut(self, ends_ps: np.Array) -> np.Array:
        """Of steps that follow each other, by their ends, those that begin before popularity is another."""
        until_ps = self._popularity.until_ps(self._epoch)
        return ends_ps if until_ps is None else ends_ps[: int(np.searchsorted(ends_ps, until_ps)) + 1]

    def took_place(self, steps: int, tokens: int) -> None:
        """So many steps with so many tokens each have been."""
        self.balancedness.append(1.0 / self._state.imbalance)
        if not self._settings.step_interval:
            return
        self._window.append([steps, tokens, self._asked])
        over = sum(one[0] for one in self._window) - self._settings.window_size
        while over > 0:
            gone = min(over, self._window[0][0])
            self._window[0][0] -= gone
            over -= gone
            if not self._window[0][0]:
                self._window.popleft()
        self._since += steps
        if self._since >= self._settings.step_interval and self._under_way is None:
            self._since = 0
            self._rearrange()

    def _rearrange(self) -> None:
        """All layers are placed for what was counted."""
        after = self._placing.placed(counted([(steps * tokens, asked) for steps, tokens, asked in self._window]))
        for row, (old, new) in enumerate(zip(self._placements, after, strict=True)):
            if moves := moves_between(old, new):
                self._waiting.append(_Layer(row, new, moves))
        now_ps, counts = self._clock.now_ps, {one.row: sum(one.moves.values()) for one in self._waiting}
        size = sum(self._placing.expert_bytes[row] * count for row, count in counts.items())
        self.moved.append(Moved(now_ps, -1 if counts else now_ps, sum(counts.values()), size))
        self._set_off()

    def _set_off(self) -> None:
        """The next layer."""
        self._come, self._under_way = False, self._waiting.popleft() if self._waiting else None
        if self._under_way is not None:
            flows = self._placing.flows(self._under_way.row, self._under_way.moves)
            share = SHARE if self._settings.use_async else 1.0
            self._alone_ps = self._clock.now_ps + to_ps(self._send(flows, share, self._arrived))

    def _arrived(self) -> None:
        """The layer under way is there: it counts from the next step on, or where none runs the next one sets off."""
        self._come = True
        if not self._waiting:
            self.moved[-1] = self.moved[-1]._replace(end_ps=self._clock.now_ps)
        if self.blocked:
            self._place()
        self.changed()

    def _place(self) -> None:
        """The layer that has come is where it should be."""
        assert self._under_way is not None
        row = self._under_way.row
        self._placements[row] = self._under_way.placement
        self._new_names([row])
        self._set_off()
        self._state = self._new_state([row])

    def _new_state(self, rows: Iterable[int]) -> ExpertState:
        """After popularity or placements of these rows have changed."""
        for row in rows:
            self._ratios[row] = imbalance_of(self._asked[row].tolist(), self._placements[row])
        placed = sha256("".join(self._names).encode()).hexdigest()[:16]
        return ExpertState(f"{self._popularity.name} {self._epoch} {placed}", self._placing.layers, self._asked,
                           tuple(self._placements), sum(self._ratios) / len(self._ratios))  # fmt: skip

    def _new_names(self, rows: Iterable[int]) -> None:
        """After placements of these rows have changed: the same for the same ones, in every process."""
        for row in rows:
            self._names[row] = sha256(repr(self._placements[row].slots).encode()).hexdigest()
