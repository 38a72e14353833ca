"""What `braid compare` compares: scenarios that it runs, folders of runs, and measured traces that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from simulator.commands.output import result_object
from simulator.commands.request import progress_bar
from simulator.errors import InputError, RunError
from simulator.observe.columns import rank_weights
from simulator.observe.measured.read import SUFFIXES, read_measured
from simulator.observe.measured.table import Measured
from simulator.observe.metrics import Metrics
from simulator.observe.recorded import Recorded
from simulator.paths import own_path
from simulator.study.expected import plain
from simulator.study.recorded import ABOUT, is_folder_of_run, read_recorded, recorded_of
from simulator.study.simulate import Result


@dataclass(frozen=True)
class Side:
    """A or B. seen: the run, or the measured trace; result: of a scenario that was simulated here."""

    letter: str
    seen: Recorded | Measured
    result: Result | None = None

    @property
    def name(self) -> str:
        """Of the scenario, or of the file."""
        return self.seen.name

    @property
    def measured(self) -> Metrics:
        """Where the time went."""
        return self.seen.measured

    def as_object(self) -> dict[str, Any]:
        """What `run --json` prints of a run; of a measured trace what it is and its metrics."""
        if self.result is not None:
            return result_object(self.result)
        if isinstance(self.seen, Measured):
            ranks, _, _ = rank_weights(self.seen.columns)
            return {"trace": self.seen.name, "format": self.seen.form, "notes": [*self.seen.notes],
                    "ranks": ranks.tolist(), "kernels": len(self.seen.columns["rank"]),
                    "metrics": plain(metrics_of(self.seen))}
        run = self.seen
        return {"scenario": run.name, "changes": dict(run.about["changes"]), "seed": run.about["seed"],
                "metrics": dict(run.metrics), "expected": [*run.expected], "parameters": [*run.parameters]}


def metrics_of(trace: Measured) -> dict[str, float]:
    """What a measured trace says of those metrics that every run has, by the same names."""
    times, communication = trace.measured, trace.measured.all_communication
    length = times.makespan_ps
    return {"length_ms": length / 1e9, "compute_ms": times.compute_ps / 1e9,
            "communication_ms": communication.busy_ps / 1e9, "hidden_comm_ms": communication.hidden_ps / 1e9,
            "exposed_comm_ms": communication.exposed_ps / 1e9,
            "communication_share": communication.busy_ps / length if length else 0.0}  # fmt: skip


def is_scenario(reference: str) -> bool:
    """Whether it has to be simulated: what is neither a folder nor a file but Python. InputError: a file not there."""
    path = own_path(reference)
    if path.is_dir():
        return False
    if path.is_file():
        return path.suffix == ".py"
    if reference.endswith(SUFFIXES):
        raise InputError(f"there is no file '{reference}'")
    return True


def simulated(letter: str, result: Result) -> Side:
    """A scenario that was run."""
    return Side(letter, recorded_of(result), result)


def read(letter: str, reference: str) -> Side:
    """A folder that `run --out` wrote, or a measured trace; InputError: it is neither."""
    path = own_path(reference)
    with progress_bar(reference, "reading it") as tell:
        if is_folder_of_run(path):
            return Side(letter, read_recorded(path, tell))
        try:
            return Side(letter, read_measured(path))
        except ValueError as error:
            below = sorted(str(one.parent) for one in path.glob(f"*/{ABOUT}")) if path.is_dir() else []
            raise InputError(f"{error}{f'; there are runs in {shown(below)}' if below else ''}") from None
        except OSError as error:
            raise InputError(f"cannot read '{error.filename or path}': {error.strerror or error}") from None


def refuse_settings(scenarios: Mapping[str, str], given: Mapping[str, str], others: Mapping[str, bool]) -> None:
    """InputError where what is given is of runs that are not run here. scenarios: by letter, of the sides that are;
    given: what --set says; others: which options were given."""
    if not scenarios:
        wrong = next((name for name, there in {"--set": bool(given), **others}.items() if there), None)
        if wrong is not None:
            raise InputError(f"{wrong} is of scenarios that are simulated: neither A nor B is one, both are read")
    for key in given:
        letter = key[:1] if key.startswith(("A:", "B:")) else ""
        if letter and letter not in scenarios:
            raise InputError(f"--set {key}: {letter} is no scenario that is simulated, it is read as it was")


@contextmanager
def naming(side: str, what: str) -> Iterator[None]:
    """What is refused says on which side, and of what."""
    try:
        yield
    except (InputError, RunError) as error:
        kind = InputError if isinstance(error, InputError) else RunError
        raise kind(f"{side}, {what}: {str(error).removeprefix(f'{what}: ')}") from error

def shown(names: Sequence[str], most: int = 3) -> str:
    """The first few of them, and how many there are beside."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
