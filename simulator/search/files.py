"""What a search leaves in a folder: its answer as JSON, all points as Parquet, and services of the best."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from simulator.errors import RunError
from simulator.observe.files import whole_file
from simulator.search.answer import FILE, Answer, as_object
from simulator.search.deployment import Ask, Found
from simulator.search.engine import ramp_s, requests_of
from simulator.search.serve import Requests
from simulator.study.step import in_a_docstring

POINTS, SERVICES = "points.parquet", "deployments.py"
OF_ENGINE = ("engines.", "knobs.", "layout.", "machine.")
"""How settings begin that `braid serve --set` takes as they are."""


def write_files(found: Answer, folder: Path) -> list[Path]:
    """Each under a temporary name first; RunError where one cannot be written."""
    writers: Mapping[str, Callable[[Path], object]] = {
        FILE: lambda part: part.write_text(json.dumps(as_object(found), ensure_ascii=False) + "\n", encoding="utf-8"),
        POINTS: lambda part: _write_points(found, part),
        SERVICES: lambda part: part.write_text(services(found), encoding="utf-8")}  # fmt: skip
    for name, write in writers.items():
        try:
            with whole_file(folder / name) as part:
                write(part)
        except OSError as error:
            raise RunError(f"cannot write '{folder / name}': {error.strerror or error}") from None
    return [folder / name for name in writers]


def _write_points(found: Answer, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    on_front = {id(one) for one in found.front}
    rows = [{"stack": one.deployment.engines.stack, "mesh": one.deployment.engines.mesh,
             "settings": _settings(one.deployment.engines.settings),
             "max_num_batched_tokens": one.deployment.engines.tokens, "engines": one.count,
             "prefill": one.deployment.prefill and one.deployment.prefill.words, "prefill_engines": one.prefill_count,
             "gpus": one.gpus, "requests_of_an_engine": one.requests, "concurrency": one.concurrency,
             "ttft_ms": one.ttft_ms, "tpot_ms": one.tpot_ms, "ttft_p99_ms": one.ttft_p99_ms,
             "tpot_p99_ms": one.tpot_p99_ms, "tok_s_per_gpu": one.tok_s_per_gpu, "tok_s_per_user": one.tok_s_per_user,
             "stopped_by": one.stopped_by, "served": one.served, "on_front": id(one) in on_front}
            for one in found.points]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows) if rows else pa.table({}), path, compression="zstd")


def _settings(settings: tuple[tuple[str, str], ...]) -> str:
    return " ".join(f"{key}={text}" for key, text in settings)


def services(found: Answer) -> str:
    """A file of services, one for each of the best."""
    functions = "".join(f'''

def top_{place}() -> Service:
    """{in_a_docstring(one.words)}."""
    return deployed(ASK, {one!r})
''' for place, one in enumerate(found.top, 1))  # fmt: skip
    return f'''"""Deployments that `braid search` found; serve one with `braid serve FILE:top_1`."""

from __future__ import annotations

from simulator.search.deployment import Ask, Deployment, Engine, Found
from simulator.search.engine import requests_of, deployed
from simulator.serving.settings import Service

ASK = {found.ask!r}
{functions}'''


def serve_line(ask: Ask, one: Found, place: int, folder: Path | None, requests: Requests) -> str:
    """The command that serves a deployment as it was served here, with these requests. folder: with the services of the
    best; without it, of one that prefills and decodes apart, what would give one."""
    if one.deployment.prefill is None:
        return " ".join([*_engine_words(ask, one, requests.trace is not None), *_request_words(requests)])
    if folder is None:
        return f"# --out DIR writes a service for `braid serve DIR/{SERVICES}:top_{place}`"
    service = shlex.quote(f"{folder / SERVICES}:top_{place}")
    return " ".join([f"braid serve {service}", *_request_words(requests)])


def _request_words(requests: Requests) -> list[str]:
    trace, limit, seed = requests
    return [*([f"--trace {shlex.quote(str(trace))}"] if trace else []), *([f"--limit {limit}"] if limit else []),
            *([f"--seed {seed}"] if seed else [])]  # fmt: skip


def _engine_words(ask: Ask, one: Found, has_trace: bool) -> list[str]:
    engine = one.deployment.engines
    words = [f"braid serve --model {shlex.quote(ask.model)} --machine {shlex.quote(ask.machine)}",
             f"--stack {engine.stack} --mesh {engine.mesh}",
             f"--instances {one.count}"]  # fmt: skip
    if not has_trace:
        words.append(f"--concurrency {one.concurrency} --isl {ask.input_tokens} --osl {ask.output_tokens} "
                     f"--requests {requests_of(one.concurrency)}")
    settings = {key if key.startswith(OF_ENGINE) else f"engines.step.{key}": text for key, text in engine.settings}
    if "engines.step.batch.drafts" in settings:
        words.append(f"--drafts {settings.pop('engines.step.batch.drafts')} --acceptance {ask.acceptance:g}")
    if engine.tokens < ask.new_tokens:
        settings["engines.scheduling.enable_chunked_prefill"] = "true"
    settings["engines.scheduling.max_num_batched_tokens"] = str(engine.tokens)
    if not has_trace:
        settings["load.ramp_s"] = f"{ramp_s(ask, one):g}"
    if ask.prefix_share and not has_trace:
        settings["load.prefix_share"] = f"{ask.prefix_share:g}"
    return [*words, *(f"--set {shlex.quote(f'{key}={text}')}" for key, text in settings.items())]
