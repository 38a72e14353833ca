"""Families chosen by NSGA-II (Optuna), where there are too many to look at all of them.

Each axis is one choice among its values. A generation is asked for as a whole, done in any order, and told as a whole,
in the order in which it was asked for: what is chosen follows from the seed and from what is found, whatever the
executor, the number of jobs and the order. Two numbers of a family are maximised: the most tokens a second of a GPU,
and of a user, among the deployments within the limits that it is part of. What cannot be, was chosen before, or cannot
reach the front is a failed trial, of which no generation learns: each has as many families of which nothing is known.

Trials are in an Optuna journal, whole generations alone, so that a search that was killed begins with the first one
that it had not finished; of that, what was simulated is kept (`Kept`). A journal that is lost costs no simulation.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from itertools import islice
from math import prod
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError, reason_of
from simulator.model.library import load_transformer
from simulator.search.deployment import Ask
from simulator.search.space import Axes, Family, Grid, Space, space_of
from simulator.spec.load import load_machine
from simulator.study.kept import source

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

EXHAUSTIVE = 4000  # layouts that are all looked at
TRIALS = 2000  # layouts that are looked at where there are more
GENERATION = 16  # families
MUTATED = 0.2  # of the choices of a family, on average, that are of neither parent
PATIENCE = 10  # generations without another front, after which none is expected
ASKED = 100 * GENERATION  # trials for one generation, at most


@dataclass(frozen=True)
class Effort:
    """trials: layouts that are looked at, at most (the last generation is finished); seed: of what is chosen; folder:
    of the journal, or none; warn: told of a journal that cannot be read or written, in one line."""

    trials: int = TRIALS
    seed: int = 0
    folder: Path | None = None
    warn: Callable[[str], None] = print


def chosen(ask: Ask, axes: Axes, given: Axes, effort: Effort) -> Space | Evolution:
    """All families of the axes, or some of them that are chosen as it goes on where there are more than EXHAUSTIVE
    layouts. InputError: there are, and Optuna is not installed."""
    grid = Grid(ask, axes, given)
    most = EXHAUSTIVE // len(grid.tokens)
    if next(islice(grid.families(Counter()), most, None), None) is None:
        return space_of(ask, axes, given)
    if find_spec("optuna") is None:
        raise InputError(f"there are more than {EXHAUSTIVE} layouts, which are too many to look at all of them, and"
                         " Optuna, which chooses among them, is not installed: pip install 'braid[search]', or narrow"
                         " the space with --fix")  # fmt: skip
    return Evolution(ask, grid, effort)


class Evolution:
    """Generations of families, each once. layouts: all combinations of the axes; trials: as of the effort; refused:
    combinations that were asked for and cannot be, by reason, each once."""

    def __init__(self, ask: Ask, grid: Grid, effort: Effort) -> None:
        self._grid, self._seed = grid, effort.seed
        self._choices = grid.choices()
        self.tokens = len(grid.tokens)
        self.layouts = prod(len(values) for values in self._choices.values()) * self.tokens
        self.trials = effort.trials
        self.refused = Counter[str]()
        self._journal = _Journal(effort, _name(ask, grid, effort.seed))
        self._study = self._journal.study
        self._earlier = deque(self._study.trials)
        self._generation, self._asked = 0, list[tuple[Any, bool]]()
        self._seen, self._refused = set[Family](), set[tuple[str, ...]]()

    def generation(self, is_worth: Callable[[Family], bool]) -> list[Family]:
        """The next families, none where no other comes up. is_worth: asked once for each."""
        from optuna.distributions import CategoricalDistribution
        from optuna.samplers import NSGAIISampler

        seed = Random(f"{self._seed} {self._generation}").getrandbits(32)
        self._study.sampler = NSGAIISampler(population_size=GENERATION, mutation_prob=MUTATED, seed=seed)
        self._generation += 1
        self._asked, found = [], list[Family]()
        open_choices: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in self._choices.items() if len(values) > 1}
        while len(found) < GENERATION and len(self._asked) < ASKED:
            trial = self._earlier.popleft() if self._earlier else self._study.ask(open_choices)
            family = self._new(trial.params)
            takes = family is not None and is_worth(family)
            self._asked.append((trial, takes))
            if family is not None and takes:
                found.append(family)
        return found

    def _new(self, params: dict[str, Any]) -> Family | None:
        """None of what cannot be, and of what was chosen before."""
        choice = {name: params.get(name, values[0]) for name, values in self._choices.items()}
        family = self._grid.family(choice)
        if not isinstance(family, str):
            new = family not in self._seen
            self._seen.add(family)
            return family if new else None
        if (values := tuple(choice.values())) not in self._refused:
            self._refused.add(values)
            self.refused[family] += 1
        return None

    def tell(self, values: Sequence[tuple[float, float]]) -> None:
        """What the families of the generation have, in their order: tokens a second of a GPU, and of a user."""
        from optuna.trial import FrozenTrial, TrialState

        of_family = iter(values)
        for trial, takes in self._asked:
            value = next(of_family) if takes else None
            if isinstance(trial, FrozenTrial):  # of an earlier search, which told it
                continue
            if value is None:
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, value)
        self._journal.write()


def _name(ask: Ask, grid: Grid, seed: int) -> str:
    """Of a journal: what is searched, and the version of Braid down to its source."""
    import optuna

    machine, model = load_machine(ask.machine).model_dump_json(), repr(load_transformer(ask.model))
    text = json.dumps([ask, model, grid.choices(), grid.axes["mode"], grid.tokens, seed, machine, source(),
                       optuna.__version__])  # fmt: skip
    return sha256(text.encode()).hexdigest()[:16]


class _Journal:
    """A study, and what happens to it: in a file generation by generation, if there is a folder. A file that is not of
    whole generations is of a search that was killed while it wrote one, and begins anew."""

    def __init__(self, effort: Effort, name: str) -> None:
        from optuna import logging

        logging.set_verbosity(logging.CRITICAL)
        self._warn, self._path = effort.warn, effort.folder and effort.folder / f"evolution-{name}.journal"
        self._logs: list[dict[str, Any]] = []
        self._written = 0
        self._file: Any = None
        try:
            self.study = self._opened()
        except OSError as error:
            self._keep_no_more(error)
        except Exception as error:  # Optuna has many for a broken file
            self._begin_anew(reason_of(error).splitlines()[0][:120])
        else:
            if any(not one.state.is_finished() for one in self.study.trials):
                self._begin_anew("its last generation is not whole")

    def _opened(self) -> Study:
        from optuna.storages.journal import JournalFileBackend

        if self._path is not None:
            self._file = JournalFileBackend(str(self._path), _Unlocked())  # type: ignore[arg-type]
            if self._path.read_bytes()[-1:] not in (b"", b"\n"):
                raise ValueError("its last line is not whole")
            self._logs = list(self._file.read_logs(0))
            self._written = len(self._logs)
        return self._study()

    def _study(self) -> Study:
        from optuna import create_study
        from optuna.storages import JournalStorage

        return create_study(storage=JournalStorage(self), study_name="braid search",  # type: ignore[arg-type]
                            directions=["maximize", "maximize"], load_if_exists=True)  # fmt: skip

    def _begin_anew(self, why: str) -> None:
        self._warn(f"'{self._path}' begins anew, with all that was simulated: {why}")
        self._logs, self._written = [], 0
        try:
            if self._path is not None:
                self._path.write_bytes(b"")
        except OSError as error:
            self._keep_no_more(error)
        else:
            self.study = self._study()

    def _keep_no_more(self, error: OSError) -> None:
        self._warn(f"trials are not kept from here on: cannot write '{self._path}': {error.strerror or error}")
        self._file, self._path = None, None
        self.study = getattr(self, "study", None) or self._study()

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """For Optuna."""
        yield from self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """For Optuna."""
        self._logs += logs

    def write(self) -> None:
        """All that is not in the file, at once."""
        if self._file is None or self._written == len(self._logs):
            return
        try:
            self._file.append_logs(self._logs[self._written:])
            self._written = len(self._logs)
        except OSError as error:
            self._keep_no_more(error)


class _Unlocked:
    """Of a file in a folder that one search has at a time."""

    def acquire(self) -> bool:
        """For Optuna."""
        return True

    def release(self) -> None:
        """For Optuna."""
