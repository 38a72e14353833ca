"""What a search answers: the front, the best deployments with what bounds them, what was left out; as a file, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import InputError, RunError, reason_of
from simulator.paths import installed_version
from simulator.search.deployment import Ask, Deployment, Engine, Found
from simulator.search.engine import of_some_layers, service_of
from simulator.search.found import largest
from simulator.search.front import OBJECTIVES, best, front
from simulator.search.search import Outcome
from simulator.search.serve import Requests, is_within
from simulator.spec.typed_toml import plain
from simulator.study.simulate import simulate

FILE = "search.json"
SHOWN = 5
BOUNDS = 3
UNMET = {"GPUs": "no number of such engines, and of those that prefill before them, has as many GPUs as are asked for",
         "prefill": "prompts come faster than they are computed"}  # fmt: skip


class Bound(NamedTuple):
    """A number of the machine that bounds a step: its share of the critical path, and what of the step twice as good a
    number would save."""

    parameter: str
    share: float
    saves: float


@dataclass(frozen=True)
class Answer:
    """ask: what was asked, and by what the best are ranked; dollars_per_gpu_hour: none if there is no price. points:
    of all that were simulated; front: those that no other beats; top: the best of their families, those that were
    served first; bounds: of the decode step of each of these. layouts, simulated, dropped, kept: how many; refused: how
    many by kind of reason, reasons: one of each. notes: what a reader should know. requests: with which
    the best are served."""

    ask: Ask
    objective: str
    points: Sequence[Found]
    front: Sequence[Found]
    top: Sequence[Found]
    bounds: Sequence[Sequence[Bound]] = ()
    layouts: int = 0
    simulated: int = 0
    dropped: int = 0
    kept: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    dollars_per_gpu_hour: float | None = None
    requests: Requests = field(default_factory=Requests)


def answer(outcome: Outcome, objective: str, served: Sequence[Found] = (), price: float | None = None,
           count: int = SHOWN) -> Answer:
    """Of what is known so far. served: of the best deployments as their users see them, which then stand for what was
    estimated of their families with as many requests or more, and are left out where they miss the limits."""
    slowest = {one.family: one.tok_s_per_user for one in served}
    points = [one for one in outcome.points if one.tok_s_per_user > slowest.get(one.family, 0.0)]
    good = [one for one in served if is_within(outcome.ask, one)]
    missed = len(served) - len(good)
    notes = [f"{missed} of the best by steps missed the limits when they were served"
             + ("" if good else "; --serve 0 shows them by steps")] if missed else []
    if outcome.stopped:
        notes.append(f"not all of {outcome.layouts} combinations were asked for: {outcome.stopped}")
    refused, reasons = _refused(outcome)
    top = best(good, objective, count) if served else best(points, objective, count)
    return Answer(outcome.ask, objective, [*points, *good], front([*points, *good]), top, (), outcome.layouts,
                  outcome.feasible, outcome.dropped, outcome.kept, refused, reasons, notes, price)


def _refused(outcome: Outcome) -> tuple[dict[str, int], dict[str, str]]:
    """Those of a search, and layouts that were simulated and are within the limits in no deployment: how many by kind
    of reason, and one reason of each."""
    counts, reasons = Counter(outcome.refused), dict(outcome.reasons)
    used = {one.deployment.engines for one in outcome.points}
    for sheet in outcome.sheets:
        if sheet.kind or not sheet.decode or sheet.engine in used:
            continue
        size, stopped = largest(outcome.ask, sheet) if sheet.chunk else (1, "")
        kind = "GPUs" if size else stopped
        counts[kind] += 1
        reasons.setdefault(kind, f"{sheet.engine.words}: {UNMET.get(kind) or f'{kind} is above its limit'}")
    return dict(counts), reasons


def explained(found: Answer) -> Answer:
    """With what bounds the best."""
    return replace(found, bounds=[bounds(found.ask, one) for one in found.top])


def bounds(ask: Ask, found: Found) -> list[Bound]:
    """Of a step that decodes as many requests as an engine has; none where that cannot be told."""
    step = service_of(ask, found.deployment.engines).engines.step
    layout: Any = step.layout
    try:
        result = simulate(step.replace({"batch.requests": str(max(found.requests, layout.dp)),
                                        "batch.context": str(ask.cached_tokens)} | of_some_layers(step)))  # fmt: skip
    except (InputError, RunError):
        return []
    return [Bound(one["name"], one["share"], one["saves"]) for one in result.parameters[:BOUNDS]]


# --- as a file ------------------------------------------------------------------------------------------------------


def as_object(found: Answer) -> dict[str, Any]:
    """For JSON: fields by their names, deployments by theirs."""
    return {"version": installed_version()} | asdict(found) | {
        "ask": found.ask._asdict(), "requests": _requests_object(found.requests),
        "bounds": [[one._asdict() for one in some] for some in found.bounds],
        **{name: [found_object(one) for one in getattr(found, name)] for name in ("points", "front", "top")}}


def _requests_object(requests: Requests) -> dict[str, Any]:
    return requests._asdict() | {"trace": requests.trace and str(requests.trace)}


def found_object(one: Found) -> dict[str, Any]:
    """For JSON."""
    engines, prefill = one.deployment
    return asdict(one) | {"deployment": {"engines": engines._asdict(), "prefill": prefill and prefill._asdict()}}


def is_folder_of_search(path: Path) -> bool:
    """Whether `search --out` wrote this folder."""
    return (path / FILE).is_file()


def read_answer(folder: Path) -> Answer:
    """What `search --out` wrote into a folder; InputError if that is not what this version of Braid writes."""
    from pydantic import TypeAdapter, ValidationError

    try:
        found = TypeAdapter(Answer).validate_json((folder / FILE).read_bytes(), strict=True)
        if found.objective not in OBJECTIVES:
            raise ValueError(f"objective is {found.objective!r}: one of {', '.join(OBJECTIVES)} is right")
        for place, one in enumerate((*found.points, *found.front, *found.top)):
            _check(one, f"deployment {place}")
        if not isfinite(sum(bound.share + bound.saves for some in found.bounds for bound in some)):
            raise ValueError("bounds: finite shares are right")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc'])) or 'the file'}: {plain(first['msg'])}"
    except (OSError, ValueError) as error:
        why = reason_of(error).splitlines()[0]
    else:
        return found
    raise InputError(f"'{folder / FILE}' is not what `braid search --out` of this version writes: {why}; search again")


def _check(one: Found, where: str) -> None:
    """ValueError for numbers that are not finite, and a mesh that is none."""
    numbers = (one.ttft_ms, one.tpot_ms, one.tok_s_per_gpu, one.tok_s_per_user, one.ttft_p99_ms, one.tpot_p99_ms)
    if not all(map(isfinite, numbers)) or min(one.tok_s_per_gpu, one.tok_s_per_user, one.gpus) <= 0:
        raise ValueError(f"{where}: times that are finite and rates above 0 are right")
    for engine in filter(None, one.deployment):
        try:
            _ = engine.ranks
        except ValueError:
            raise ValueError(f"{where}: mesh is {engine.mesh!r}: axes as tp=8,dp=2 are right") from None


def found_of(one: Mapping[str, Any]) -> Found:
    """From JSON."""
    engines, prefill = (one["deployment"][name] for name in ("engines", "prefill"))
    return Found(**{**one, "deployment": Deployment(_engine(engines), _engine(prefill) if prefill else None)})


def _engine(one: Mapping[str, Any]) -> Engine:
    settings = tuple((str(key), str(text)) for key, text in one["settings"])
    return Engine(one["stack"], one["mesh"], settings, one["tokens"])
