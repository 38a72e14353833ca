"""Measured serving points against simulated ones: a file of measurements, a line each, and what Braid says of each.

A point was measured under a closed loop: c requests are in flight, each of so many prompt and output tokens, and a new
one comes when one has ended. What one step takes is simulated three times: t_d, all c decode half-way through their
outputs; t_m, the same beside one whole prompt; t_p, that prompt alone. While a request decodes, each of the c - 1
others is replaced once, and its prompt makes one step longer by t_m - t_d. So, with o output tokens::

    TPOT = t_d + (c - 1) / o x (t_m - t_d)      rate = c x o / (TTFT + (o - 1) x TPOT)
    TTFT = t_d / 2 + t_m (t_p where no other decodes): a request waits for the step that runs when it comes
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from simulator.errors import BraidError, InputError
from simulator.paths import did_you_mean, names
from simulator.study.launches import launch_settings, merged
from simulator.study.library import load_scenario
from simulator.study.scenario import Scenario
from simulator.study.simulate import simulate
from simulator.study.step import StepWords, step_of

METRICS = ("tpot_ms", "ttft_ms", "output_tok_s_per_gpu")
MACHINES = {"A100": "dgx_a100", "H100": "dgx_h100", "H200": "dgx_h200", "B200": "dgx_b200", "GB200": "gb200_nvl72",
            "H20": "hgx_h20", "H800": "h800_cluster"}  # fmt: skip
FAMILIES = {"llama-70b": "llama_3_1_70b", "llama-8b": "llama_3_1_8b", "llama-405b": "llama_3_1_405b",
            "llama2-70b": "llama_2_70b", "llama2-7b": "llama_2_7b", "mistral 7b": "mistral_7b",
            "qwen3-32b": "qwen3_32b", "qwen3-30b": "qwen3_30b_a3b", "qwen3-235b": "qwen3_235b",
            "qwen3-coder-480b": "qwen3_coder_480b", "deepseek-v3arch": "deepseek_r1", "kimi-k2": "kimi_k2",
            "gpt-oss-120b": "gpt_oss_120b", "gpt-oss-20b": "gpt_oss_20b",
            "llama4-maverick": "llama_4_maverick", "llama4-scout": "llama_4_scout"}  # fmt: skip
"""Families of models that are told apart by their shapes alone."""
PRECISIONS = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "fp4": "nvfp4", "int4": "int4",
              "int4_wo": "int4", "mxfp4": "mxfp4", "int8": "int8", "bf16": "bf16", "bf16/native": ""}  # fmt: skip


CHECKPOINTS = {
    ("deepseek-v3arch", "fp8"): "",  # as DeepSeek published it: blocks of 128 x 128
    ("deepseek-v3arch", "fp8_block"): "",
    ("deepseek-v3arch", "nvfp4"): "all=nvfp4,attention=bf16",  # nvidia/DeepSeek-R1-0528-FP4, model card
    ("deepseek-v3arch", "fp4"): "all=nvfp4,attention=bf16",
    ("kimi-k2", "nvfp4"): "all=nvfp4,attention=bf16",  # nvidia/Kimi-K2-Thinking-NVFP4, model card
    ("kimi-k2", "fp4"): "all=nvfp4,attention=bf16",
    ("kimi-k2", "int4"): "all=bf16,experts=int4",  # moonshotai/Kimi-K2-Thinking, model card: the experts alone
    ("kimi-k2", "int4_wo"): "all=bf16,experts=int4",
}
"""By family and published word: what checkpoints of that family quantise."""


class NotExpressible(InputError):  # noqa: N818
    """A point of which something cannot be said in Braid's words; the text is the reason."""


@dataclass(frozen=True)
class PointRow:
    """One metric of one point. value: as measured; simulated: None, with a reason, where it cannot be."""

    id: str
    family: str
    metric: str
    value: float
    simulated: float | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Relative."""
        return None if self.simulated is None or not self.value else self.simulated / self.value - 1.0

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        found = {"id": self.id, "metric": self.metric, "value": self.value, "simulated": self.simulated,
                 "error": self.error}  # fmt: skip
        return found | ({"reason": self.reason} if self.reason else {})


def read_points(path: Path, where: Mapping[str, str]) -> list[dict[str, Any]]:
    """The points of a JSON Lines file whose fields are as `where` says: one value, or "1..16" for a range.

    InputError names file, line, and what is wrong: no JSON object, no id, or a field that no point has.
    """
    points = []
    for number, line in enumerate(_lines(path), 1):
        try:
            point = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: {error.msg}: a line is one JSON object") from None
        if not isinstance(point, dict) or "id" not in point:
            raise InputError(f"{path}, line {number}: a point is a JSON object with an id, a model, a gpu_key, ...")
        points.append(point)
    known = {key for point in points for key in point}
    for key in where:
        if key not in known:
            raise InputError(f"--where {key}: no point of {path} has it{did_you_mean(key, known)}; there are "
                             f"{', '.join(sorted(known))}")
    chosen = [point for point in points if all(_matches(point.get(key), text) for key, text in where.items())]
    if not chosen:
        raise InputError(f"no point of {path} is as --where says" if points else f"{path} has no points")
    return chosen


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read points from '{path}': {getattr(error, 'strerror', None) or error}") from None


def _matches(value: Any, text: str) -> bool:
    low, dots, high = text.partition("..")
    if dots and isinstance(value, int | float):
        return float(low or "-inf") <= value <= float(high or "inf")
    return str(value).lower() == text.lower()


def compare(points: Sequence[Mapping[str, Any]], tell: Callable[[float], None] | None = None) -> list[PointRow]:
    """A row for every metric of every point, in their order; tell: told the share done."""
    rows: list[PointRow] = []
    for done, point in enumerate(points, 1):
        rows += _rows(point)
        if tell is not None:
            tell(done / len(points))
    return rows


def _rows(point: Mapping[str, Any]) -> Iterator[PointRow]:
    measured = {metric: value for metric in METRICS if (value := _measured(point, metric)) is not None}
    family, reason = str(point.get("family", point.get("model", ""))), ""
    simulated: dict[str, float] = {}
    try:
        simulated = predicted(point)
    except BraidError as error:
        reason = str(error).partition("\n")[0]
    if not measured:
        yield PointRow(str(point["id"]), family, "", 0.0, None, f"no number of {', '.join(METRICS)} was measured")
    for metric, value in measured.items():
        yield PointRow(str(point["id"]), family, metric, value, simulated.get(metric), reason)


def _measured(point: Mapping[str, Any], metric: str) -> float | None:
    """A mean, or the median where that is what was published."""
    value = point.get(metric)
    if isinstance(value, Mapping):
        value = value.get("mean", value.get("p50"))
    return float(value) if isinstance(value, int | float) and value > 0 else None


def predicted(point: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a point; NotExpressible or another of Braid's errors where it cannot be."""
    load = _load(point)
    step = _step(point)
    chunk = str(load.prompt)
    alone = _seconds(step("prefill", {"batch.requests": "1", "batch.context": chunk}))
    middle = {"batch.requests": str(load.concurrency), "batch.context": str(load.prompt + load.output // 2)}
    decode = _seconds(step("decode", middle))
    first_s, token_s = alone + decode / 2, decode
    if load.concurrency > 1:
        mixed = _seconds(step("mixed", middle | {"batch.prompt": chunk}))
        token_s += (load.concurrency - 1) / load.output * (mixed - decode)
        first_s = mixed + decode / 2
    rate = load.concurrency * load.output / (first_s + (load.output - 1) * token_s)
    return {"tpot_ms": token_s * 1e3, "ttft_ms": first_s * 1e3, "output_tok_s_per_gpu": rate / load.gpus}


@dataclass(frozen=True)
class _Load:
    """Of one replica: requests in flight, tokens of each, and GPUs."""

    concurrency: int
    prompt: int
    output: int
    gpus: int


def _load(point: Mapping[str, Any]) -> _Load:
    """The closed loop of a point."""
    if point.get("mode", "agg") != "agg":
        raise NotExpressible(f"mode {point['mode']}: prefill and decode apart")
    if point.get("speculative", "none") not in ("none", None, False):
        raise NotExpressible(f"speculative: {point['speculative']}")
    gpus, replicas = _gpus(point)
    concurrency = point.get("replica_concurrency")
    if concurrency is None and isinstance(point.get("concurrency"), int):
        concurrency = max(round(point["concurrency"] / replicas), min(point["concurrency"], 1))
    if not isinstance(concurrency, int) or concurrency < 1:
        raise NotExpressible("no concurrency: not a closed loop")
    prompt, output = (point.get(f"{side}_mean", point.get(side)) for side in ("isl", "osl"))
    if not isinstance(prompt, int | float) or not isinstance(output, int | float) or prompt < 1 or output < 1:
        raise NotExpressible("no isl or osl")
    return _Load(concurrency, round(prompt), round(output), gpus)


def _step(point: Mapping[str, Any]) -> Callable[[str, Mapping[str, str]], Scenario]:
    """What makes the scenario of a phase with more settings."""
    machine = MACHINES.get(str(point.get("gpu_key")), str(point.get("machine", "")))
    if not machine:
        raise NotExpressible(f"gpu_key {point.get('gpu_key')}: no such machine; there are {', '.join(MACHINES)}, or "
                             "`machine` names one of the library")
    model, stack, mesh = _model(point), str(point.get("fw_key", point.get("framework", ""))).lower(), _mesh(point)
    precision = _precision(point)
    launched = merged({"knobs.precision": precision} if precision else {}, launch_settings(point))

    def step(phase: str, settings: Mapping[str, str]) -> Scenario:
        return step_of(StepWords(model, machine, stack, mesh, phase, merged(settings, launched)))

    return step


def _model(point: Mapping[str, Any]) -> str:
    family, model = str(point.get("family", "")), str(point.get("model", ""))
    if family in FAMILIES:
        return FAMILIES[family]
    if model in names("workloads/models") or model.endswith((".json", ".toml")):
        return model
    hint = did_you_mean(model or family, (*FAMILIES, *names("workloads/models")))
    raise NotExpressible(f"model {model or family}: not in the library{hint}; family or model names one, or a "
                         "config.json")


def _mesh(point: Mapping[str, Any]) -> str:
    """Axes from a layout as frameworks name it: tp is all ranks that share a request, attention_dp groups of them."""
    tp, pp, ep, dp = _axes(point)
    return f"tp={tp},dp={dp},pp={pp},ep={ep}"


def _axes(point: Mapping[str, Any]) -> tuple[int, int, int, int]:
    layout = point.get("layout")
    if not isinstance(layout, Mapping) or not layout.get("tp"):
        raise NotExpressible("no layout with tp")
    tp, pp, ep, dp = (int(layout.get(axis) or 1) for axis in ("tp", "pp", "ep", "attention_dp"))
    return tp, pp, ep, dp


def _gpus(point: Mapping[str, Any]) -> tuple[int, int]:
    """GPUs of a replica, and how many replicas there are."""
    tp, pp, _, dp = _axes(point)
    ranks = tp * pp * dp
    replicas, rest = divmod(int(point.get("n_gpus") or ranks), ranks)
    if rest or not replicas:
        raise NotExpressible(f"{point['n_gpus']} GPUs are no whole replicas of tp={tp}, pp={pp}, attention_dp={dp}")
    return ranks, replicas


def _precision(point: Mapping[str, Any]) -> str:
    """Settings of `knobs.precision`; none where the checkpoint's own is meant, as with MXFP4 of gpt-oss.

    What is published of a family is one word for all its matrices; its checkpoints may quantise fewer.
    """
    family = str(point.get("family", ""))
    if family.startswith("gpt-oss"):  # on Blackwell with activations in FP8: vLLM's and TensorRT-LLM's recipes for it
        return "experts=mxfp4_fp8" if str(point.get("gpu_key")) in ("B200", "GB200") else ""
    model = str(point.get("model", ""))
    if model.startswith("Qwen/") and model.endswith("-FP8"):  # blocks of 128 x 128, by its model cards
        return "all=fp8_block"
    word = str(point.get("gemm_quant") or point.get("quantisation") or "")
    if (family, word) in CHECKPOINTS:
        return CHECKPOINTS[family, word]
    gemm = point.get("gemm_quant") or point.get("quantisation") or ""
    moe = point.get("moe_quant") or gemm
    for word in (gemm, moe):
        if word not in PRECISIONS and word:
            raise NotExpressible(f"quantisation {word}: none of {', '.join(PRECISIONS)}")
    dense, experts = PRECISIONS.get(gemm, ""), PRECISIONS.get(moe, "")
    return f"all={dense},experts={experts}" if dense and experts else ""


def _seconds(scenario: Scenario) -> float:
    """How long a step takes."""
    return _timed(scenario.name, tuple(sorted(scenario.changes.items())))


@cache
def _timed(name: str, changes: tuple[tuple[str, str], ...]) -> float:
    """Of the library's scenario with these settings; each is simulated once."""
    metrics = simulate(load_scenario(name).replace(dict(changes))).metrics
    return metrics.get("ttft_ms", metrics.get("iteration_ms", 0.0)) / 1e3


def summary(rows: Sequence[PointRow]) -> list[tuple[str, str, int, float, float, float]]:
    """(metric, family, points, median error, median and ninth decile of its size), families after the whole."""
    found = []
    for metric in METRICS:
        known = [row for row in rows if row.metric == metric and row.error is not None]
        for family in ("all", *sorted({row.family for row in known})):
            errors = [row.error for row in known if family in ("all", row.family)]
            if errors:
                sizes = sorted(abs(error) for error in errors if error is not None)
                signed = median(error for error in errors if error is not None)
                found.append((metric, family, len(sizes), signed, median(sizes), sizes[ceil(0.9 * len(sizes)) - 1]))
    return found


def reasons(rows: Sequence[PointRow]) -> list[tuple[str, int, str]]:
    """(reason, points, the first one's id) of those that cannot be simulated, the most frequent first."""
    ids: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.reason:
            ids.setdefault(row.reason, {})[row.id] = None
    counted = Counter({reason: len(those) for reason, those in ids.items()})
    return [(reason, count, next(iter(ids[reason]))) for reason, count in counted.most_common()]
