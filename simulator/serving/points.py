"""Measured serving points against simulated ones: a file of measurements, a line each, and what Braid says of each.

The service of a point (`simulator.serving.measured`) is simulated under the load under which it was measured, and what
its clients would have seen is compared: the mean TTFT, the mean of (last token - first token) / (tokens - 1) of a
request (TPOT), and output tokens a second. Where a campaign publishes no rate, that of a closed loop follows on both
sides from the two: c x o / (TTFT + (o - 1) x TPOT), with c requests in flight and o output tokens.

Points of one launch are simulated one after the other by one process: they ask for the same steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from simulator.errors import BraidError, InputError
from simulator.paths import did_you_mean
from simulator.serving.launches import framework_of
from simulator.serving.loop import Loop
from simulator.serving.measured import gpus_of, mean_lengths, measured
from simulator.serving.point_errors import METRICS, PointRow
from simulator.serving.record import Served
from simulator.study.kept import cache_folder
from simulator.study.processes import Tell, as_done
from simulator.units import PS_PER_S

LAUNCH = ("family", "model", "gpu_key", "machine", "n_gpus", "fw_key", "framework", "layout", "quantisation",
          "gemm_quant", "moe_quant", "settings")  # fmt: skip
"""What points have in common that ask for the same steps."""
MOST = 1e15
"""Size of a number of a point."""


def read_points(path: Path, where: Mapping[str, str]) -> list[dict[str, Any]]:
    """The points of a JSON Lines file whose fields are as `where` says: one value, or "1..16" for a range.

    InputError names file, line, and what is wrong: no JSON object, no id, or a field that no point has.
    """
    points = []
    for number, line in _lines(path):
        try:
            point = json.loads(line)
        except (ValueError, RecursionError) as error:
            why = getattr(error, "msg", "") or str(error)
            raise InputError(f"{path}, line {number}: {why}: a line is one JSON object") from None
        if not isinstance(point, dict) or "id" not in point:
            raise InputError(f"{path}, line {number}: a point is a JSON object with an id, a model, a gpu_key, ...")
        for key in _absurd(point):
            raise InputError(f"{path}, line {number}: {key} is no number between -{MOST:g} and {MOST:g}")
        points.append(point)
    known = {key for point in points for key in point}
    for key in where:
        if key not in known:
            raise InputError(f"--where {key}: no point of {path} has it{did_you_mean(key, known)}; there are "
                             f"{', '.join(sorted(known))}")
    chosen = [point for point in points if all(_matches(key, point.get(key), text) for key, text in where.items())]
    if not chosen:
        raise InputError(f"no point of {path} is as --where says" if points else f"{path} has no points")
    return chosen


def _absurd(value: Any, key: str = "") -> Iterator[str]:
    """Keys of numbers that nothing measured can have; a rate alone may be infinite."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _absurd(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _absurd(inner, f"{key}[{place}]")
    elif isinstance(value, int | float) and not -MOST <= value <= MOST and (key, value) != ("request_rate", inf):
        yield key


def _lines(path: Path) -> list[tuple[int, str]]:
    """Those that are not blank, by their numbers in the file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read points from '{path}': {getattr(error, 'strerror', None) or error}") from None


def _matches(key: str, value: Any, text: str) -> bool:
    low, dots, high = text.partition("..")
    if dots and isinstance(value, int | float):
        try:
            return float(low or "-inf") <= value <= float(high or "inf")
        except ValueError:
            raise InputError(f"--where {key}: got '{text}': a range is of two numbers, as 1..16, 4.. or ..4") from None
    return str(value).lower() == text.lower()


class Compared(NamedTuple):
    """A row for every metric of every point that was done, in their order. left: points that were not, before
    Ctrl-C."""

    rows: list[PointRow]
    left: int = 0


def compare(points: Sequence[Mapping[str, Any]], jobs: int = 1, tell: Tell | None = None) -> Compared:
    """Points simulated and measured, up to Ctrl-C; tell: told the share done."""
    launches: dict[str, list[int]] = {}
    for number, point in enumerate(points):
        launches.setdefault(json.dumps([point.get(key) for key in LAUNCH], default=str), []).append(number)
    numbers = list(launches.values())
    texts = [json.dumps([points[number] for number in those]) for those in numbers]
    found: dict[int, tuple[dict[str, float], str]] = {}
    with suppress(KeyboardInterrupt):
        for place, those in as_done(_of_launch, texts, jobs, tell):
            found.update(zip(numbers[place], those, strict=False))
            if len(those) < len(numbers[place]):
                break
    rows = [row for number in sorted(found) for row in _rows(points[number], *found[number])]
    return Compared(rows, len(points) - len(found))


def _of_launch(text: str) -> list[tuple[dict[str, float], str]]:
    """What is simulated of every point of one launch, or why it cannot be; of the first ones where Ctrl-C comes."""
    found: list[tuple[dict[str, float], str]] = []
    for point in json.loads(text):
        try:
            found.append((predicted(point), ""))
        except BraidError as error:
            found.append(({}, str(error).partition("\n")[0]))
        except KeyboardInterrupt:
            break
    return found


def _rows(point: Mapping[str, Any], simulated: Mapping[str, float], reason: str) -> Iterator[PointRow]:
    of = (str(point.get("family", point.get("model", ""))), str(point.get("gpu_key", point.get("machine", ""))),
          framework_of(point))  # fmt: skip
    values = measured_values(point)
    if not values:
        yield PointRow(str(point["id"]), of, "", 0.0, None, f"no number of {', '.join(METRICS)} was measured")
    for metric, value in values.items():
        yield PointRow(str(point["id"]), of, metric, value, simulated.get(metric), reason)


def measured_values(point: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a point: means, or medians where those were published."""
    found = {metric: value for metric in METRICS if (value := _published(point, metric)) is not None}
    concurrency = point.get("replica_concurrency", point.get("concurrency"))
    means = all(isinstance(point.get(metric), Mapping) and "mean" in point[metric] for metric in METRICS[:2])
    if "output_tok_s_per_gpu" not in found and len(found) == 2 and means and isinstance(concurrency, int):
        try:
            found["output_tok_s_per_gpu"] = _closed_rate(point, found)
        except InputError:
            return found
    return found


def _published(point: Mapping[str, Any], metric: str) -> float | None:
    value = point.get(metric)
    if isinstance(value, Mapping):
        value = value.get("mean", value.get("p50"))
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _closed_rate(point: Mapping[str, Any], of: Mapping[str, float]) -> float:
    """Output tokens a second and GPU of a closed loop with these times."""
    gpus, replicas = gpus_of(point)
    output = mean_lengths(point)[1]
    whole = "replica_concurrency" not in point
    inside = point["concurrency"] / replicas if whole else point["replica_concurrency"]
    return inside * output / (of["ttft_ms"] + (output - 1) * of["tpot_ms"]) * 1e3 / gpus


def predicted(point: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a point; NotExpressible or another of Braid's errors where it cannot be."""
    service, requests, concurrency = measured(point)
    served = Loop(service, requests, concurrency=concurrency, steps="lattice", folder=cache_folder()).run()
    if served.interrupted:  # what there is so far is no prediction
        raise KeyboardInterrupt
    if not served.done.any():
        raise InputError("every request is longer than the cache")
    typical = median if _is_median(point) else fmean
    found = seen(served, typical)
    if concurrency and _published(point, "output_tok_s_per_gpu") is None:
        found["output_tok_s_per_gpu"] = _closed_rate(point, found)
    return found


def _is_median(point: Mapping[str, Any]) -> bool:
    """Whether the median was published where others publish the mean."""
    value = point.get("ttft_ms")
    return isinstance(value, Mapping) and "mean" not in value


def seen(served: Served, typical: Callable[[Sequence[float]], float] = fmean) -> dict[str, float]:
    """What clients see of the requests that are done. typical: the mean, or the median."""
    times, done, tokens = served.times, served.done, served.requests.output_tokens
    first = (times["first_token"] - times["arrival"])[done] / PS_PER_S
    several = done & (tokens > 1)
    each = (times["last_token"] - times["first_token"])[several] / PS_PER_S / (tokens[several] - 1)
    rate = float(tokens[done].sum()) / ((served.end_ps - served.start_ps) / PS_PER_S) / served.gpus
    return {"tpot_ms": 1e3 * typical(each.tolist() or [0.0]), "ttft_ms": 1e3 * typical(first.tolist()),
            "output_tok_s_per_gpu": rate}  # fmt: skip
