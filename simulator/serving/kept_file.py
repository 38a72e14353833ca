"""What the export of a service has that is read back from its folder, as types: another file is refused by its keys."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from simulator.serving.show import SHOWN
from simulator.study.recorded_file import Amount, Number, Text, Whole, check_file

RATES = {"benchmark_duration": "s", "request_throughput": "requests/s", "output_token_throughput": "tok/s",
         "output_token_throughput_per_gpu": "tok/s/GPU"}
"""Metrics of a run as a whole, with their units."""
OF_RUNS = (*RATES, "good_request_fraction")


class MetricFile(BaseModel):
    """A metric's block; percentiles are there where it has a value for each request."""

    unit: Text
    avg: Number


class PercentilesFile(MetricFile):
    """A metric that every request has."""

    p50: Number
    p90: Number
    p95: Number
    p99: Number
    max: Number


class WaitFile(BaseModel):
    """What a mean request waited for one thing."""

    mean_s: Amount
    p99_s: Amount
    share: Number


class WaitsFile(BaseModel):
    """Of all requests."""

    waits: dict[str, WaitFile]


class SteadyFile(BaseModel):
    """The steady state, or why there is none."""

    why: Text
    waits: dict[str, WaitFile] | None = None


class CountsFile(BaseModel):
    """Requests by what became of them."""

    requests: Whole
    done: Whole
    refused: Whole
    unfinished: Whole


class SaturatedFile(BaseModel):
    """What is offered, and what can be served."""

    rate_per_s: Number
    stable_per_s: Number


class StepsFile(BaseModel):
    """How the times of steps were found."""

    simulated: Number = 0
    known: Number = 0
    interpolated: Number = 0
    audited: Number = 0
    correction: Number = 1.0
    audit_error_mean: Number | None = None
    audit_error_worst: Number | None = None

    @model_validator(mode="after")
    def _what_is_audited_has_an_error(self) -> StepsFile:
        if self.audited and (self.audit_error_mean is None or self.audit_error_worst is None):
            raise ValueError("audit_error_mean and audit_error_worst are needed where steps are audited")
        return self


class BraidFile(BaseModel):
    """What AIPerf's export has not."""

    requests: CountsFile
    gpus: Whole
    goodput: dict[str, Number] | None = None
    whole: WaitsFile
    steady_state: SteadyFile
    over_time: dict[str, list[Number]] = Field(min_length=1)
    steps: StepsFile | None = None
    saturated: SaturatedFile | None = None


class ConfigFile(BaseModel):
    """How it was run."""

    model_config = ConfigDict(extra="allow")

    settings: dict[str, Any] | None = None


class ExportFile(BaseModel):
    """The whole file but its metrics."""

    input_config: ConfigFile
    braid: BraidFile
    steady_state_metrics: dict[str, Any] | None = None


def check_export(given: Any) -> None:
    """ValueError with the first key that is not as `braid serve --out` writes it; metrics may be missing."""
    check_file(ExportFile, given)
    over_time = given["braid"]["over_time"]
    if "start_s" not in over_time or len({len(one) for one in over_time.values()}) > 1:
        raise ValueError("braid.over_time: columns of one length, one of them start_s, are right")
    for where, metrics in (("", given), ("steady_state_metrics.", given.get("steady_state_metrics") or {})):
        for name in (one for one in (*SHOWN, *OF_RUNS) if one in metrics):
            model = PercentilesFile if name in SHOWN else MetricFile
            try:
                check_file(model, metrics[name])
            except ValueError as error:
                raise ValueError(f"{where}{name}: {error}") from None
