"""Targets of the fuzzer that are words of a command line: settings, quantities, and whole lines of every command.

A line is run in this process. What is asked of it is small, or so large that it must be refused: nothing between.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

from tests.trust.fault_texts import faults, hostile
from tests.trust.readers import ROOT, Target
from tests.trust.variants import NUMBERS, scalar, text

SCENARIOS = ("contention:staging", "a3_prefill:dp", "transformer:decode", "flow_mla:decode", "cm384_decode:decode")
SERVICE = "one_server:llama_3_1_70b"
KEYS = ("machine.fabric.cut", "machine.fabric.slow", "machine.fabric.cut", "model.shapes.layers", "model", "machine",
        "machine.chip", "kernels", "batch", "a", "batch.requests.x", "A:batch.requests")  # fmt: skip
LINKS = ("die 3 - node 0", "die 3 - node 0: 0.5", "die 0 - die 1 @ node, die 2 - die 3", "die", "die 99999999 - node 0",
         "die -1 - node 0", "die 0 - node 0: nan", "die 0 - node 0: 1e999", "die 0 - node 0: -1", " , , ")  # fmt: skip
LINES = (
    "list", "list a3 prefill", "list --json", "services", "services sglang --json", "models qwen3_32b", "machines",
    "machines --json", "show contention:staging", "show a3_prefill:dp --json", f"show {SERVICE}",
    "show contention:staging --program", "show contention:staging --set machine.chip.hbm.peak=3TB/s",
    "run contention:staging", "run contention:staging --json --seed 3 --ranks all", "run contention:staging --kernels",
    "run contention:staging --out OUT --trace-ranks 0,slowest --trace-window 1ms..2ms --trace-format kineto",
    "run contention:staging --no-record --set machine.chip.hbm.peak=3TB/s",
    "run contention:staging --fault '0 s: rank 1 clock 0.8' --fault '1 ms: link rank3.nic0 cut for 1 us' --json",
    "run contention:staging --fault FILE.toml --out OUT", "run contention:staging --fault '1 ms: rank 1 lost'",
    "explain contention:staging", "explain contention:staging compute_stretch --rank 0 --json",
    "explain contention:staging --layer 0",
    "compare contention:staging contention:zero_copy", "compare FILE contention:staging --json",
    "whatif contention:staging --only free --draws 4 --json", "report contention:staging --out OUT.html",
    "report FILE --out OUT.html --force", "view FILE --no-browser --port 0",
    "sweep contention:staging machine.chip.hbm.peak 2TB/s 3TB/s --json", "ladder contention:staging --json",
    "step --model llama_2_7b --machine dgx_h100 --mesh tp=8 --batch 4 --context 128 --json",
    "step --model llama_2_7b --machine dgx_h100 --stack vllm --phase prefill --batch 1 --prompt 64 --chunk 64",
    "step --model deepseek_r1 --machine dgx_h200 --mesh tp=8 --batch 8 --context 64 --drafts 1 --acceptance 0.7",
    f"serve {SERVICE} --requests 4 --isl 64 --osl 8 --rate 2 --json",
    f"serve {SERVICE} --requests 4 --isl 64 --osl 8 --concurrency 2 --steps lattice --goodput ttft:100",
    f"serve {SERVICE} --trace FILE --limit 2 --speedup 2 --skip-bad",
    f"serve {SERVICE} --requests 4 --isl 64 --osl 8 --fault '1 s: engine 0 lost' --fault '0 s: rank 3 of 0 hbm 0.5'",
    "search --model llama_2_7b --machine dgx_h100 --gpus 0 --isl 64 --osl 8 --serve 0 --fix tp=8 --vary dp=1,2",
    "search --model llama_2_7b --machine dgx_h100 --gpus 8 --isl 64 --osl 8 --fix tp=3 --tpot 50 --space FILE",
    "validate nothing_is_called_so --jobs 1", "validate --points FILE --where n_gpus=1..8 --beside FILE",
    "influence nothing_is_called_so", "steps nothing_is_called_so", "bench nothing_is_called_so",
    "calibrate kernels --tables FILE", "probe --from FILE --out OUT.toml", "--version", "nonsense", "run --help",
)  # fmt: skip
WHOLE = ("steps", "influence", "validate")
HEAVY = 1e4
"""Numbers from here to HUGE may take long and be right: none of them is asked for."""


@cache
def _scenario(name: str) -> Any:
    from simulator.study.library import load_scenario

    return load_scenario(name)


@cache
def _service() -> Any:
    from simulator.serving.library import load_service

    return load_service(SERVICE)


@cache
def _keys(name: str) -> list[tuple[str, str]]:
    """Settings of a scenario and numbers of its machine and model, as text."""
    from simulator.spec.typed_toml import quantities
    from simulator.study.settings import leaves, shown

    scenario = _scenario(name)
    numbers = {f"machine.{key}": f"{one.value} {one.unit}" for key, one in quantities(scenario.machine_spec())}
    return [*((key, shown(value)) for key, value in scenario.settings().items()), *numbers.items(),
            *((key, shown(value)) for key, value in leaves(_service()).items())]  # fmt: skip


def _value(rng: Random, now: str) -> str:
    draw = rng.random()
    if draw < 0.5:
        return text(rng, now)
    if draw < 0.9:
        return str(scalar(rng))
    return f"{rng.choice(NUMBERS)} {now.rpartition(' ')[2]}" if draw < 0.97 else rng.choice(LINKS)


def settings(rng: Random, folder: Path) -> None:
    """--set KEY=VALUE of a scenario: its machine is made, nothing is simulated."""
    name = rng.choice(SCENARIOS)
    changes = {}
    for _ in range(rng.choice((1, 1, 2, 3))):
        key, now = rng.choice(_keys(name))
        key = rng.choice(KEYS) if rng.random() < 0.05 else text(rng, key) if rng.random() < 0.1 else key
        changes[key] = rng.choice(LINKS) if "fabric.cut" in key or "slow" in key else _value(rng, now)
    scenario = _scenario(name).replace(changes)
    _ = scenario.settings()
    if rng.random() < 0.02:
        _ = scenario.machine_spec(), scenario.transformer()


@cache
def _service_keys() -> list[tuple[str, str]]:
    from simulator.study.settings import leaves, shown

    return [(key, shown(value)) for key, value in leaves(_service()).items()]


def service_settings(rng: Random, folder: Path) -> None:
    """--set KEY=VALUE of a service."""
    from simulator.serving.settings import changed

    changes = {}
    for _ in range(rng.choice((1, 1, 2, 3))):
        key, now = rng.choice(_service_keys())
        changes[text(rng, key) if rng.random() < 0.1 else key] = _value(rng, now)
    changed(_service(), changes)


def quantities(rng: Random, folder: Path) -> None:
    """Numbers with units, meshes, windows of time, batches: the small languages of options."""
    from simulator.commands.options import _pairs, _ranks, _window
    from simulator.units import format_si, parse, to_ps, to_si

    draw = rng.random()
    if draw < 0.5:
        given = text(rng, rng.choice(("3.2 TB/s", "10 us", "24", "inf B/s", "1e3 GFLOPS", "0.5")))
        try:
            value, unit = parse(given)
            format_si(to_si(value, unit), "s")
        except ValueError:
            return  # what its callers turn into a refusal with the key
    elif draw < 0.7:
        _window(None, None, text(rng, "20 ms..30 ms"))  # type: ignore[arg-type]
    elif draw < 0.85:
        _ranks(None, None, text(rng, "0,7,slowest"))  # type: ignore[arg-type]
    else:
        _pairs(None, None, (text(rng, "batch.requests=32"),))  # type: ignore[arg-type]
    _ = to_ps(0.0)


def steps(rng: Random, folder: Path) -> None:
    """Words of `braid step`: a scenario is made of them, nothing is simulated."""
    from simulator.study.step import StepWords, step_of

    mesh = rng.choice(("tp=8", "tp=2,dp=4", "tp=8,ep=8", "pp=2,tp=4", ""))
    words = {"batch.requests": "8", "batch.context": "128", "knobs.schedule": "one_stream"}
    key = rng.choice(list(words))
    words[key] = _value(rng, words[key])
    name = rng.choice(("llama_2_7b", "deepseek_r1", "qwen3_30b_a3b"))
    given = [name, "dgx_h100", rng.choice(("vllm", "sglang", "trtllm")), mesh, rng.choice(("decode", "prefill"))]
    if rng.random() < 0.8:
        place = rng.randrange(len(given))
        given[place] = text(rng, given[place])
    scenario = step_of(StepWords(given[0], given[1], given[2], given[3], given[4], words))
    _ = scenario.settings()


def simulations(rng: Random, folder: Path) -> None:
    """A small scenario or service with one setting, or one number of its machine, that nothing has."""
    if rng.random() < 0.2:
        key, now = rng.choice(_service_keys())
        words = ["serve", SERVICE, "--requests", "4", "--isl", "64", "--osl", "8", "--rate", "2"]
    else:
        name = rng.choice(("contention:staging", "transformer:decode"))
        key, now = rng.choice(_keys(name))
        words = ["run", name, "--no-record"]
        words += [f"--fault={hostile(rng)}" for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]
        if name != "contention:staging":
            words += [f"--set={one}" for one in ("model=llama_2_7b", "model.shapes.layers=2", "batch.requests=2")]
    words += ["--set", f"{key}={_safe(rng, _value(rng, now))}"]
    run_line([one.replace("\x00", "") for one in words])


def commands(rng: Random, folder: Path) -> None:
    """A whole line of some command."""
    words = shlex.split(rng.choice(LINES))
    file = folder / "file.json"
    if not file.exists():
        file.write_text('{"traceEvents": []}')
    draw = rng.random()
    place = rng.randrange(len(words))
    if draw < 0.3:
        words[place] = str(_safe(rng, scalar(rng)))
    elif draw < 0.6:
        words[place] = _safe(rng, text(rng, words[place]))
    elif draw < 0.7:
        del words[place]
    elif draw < 0.8:
        words.insert(place, rng.choice((*words, "--json", "--set", "--seed", "--out", str(scalar(rng)))))
    elif draw < 0.9:
        key, now = rng.choice(_keys("contention:staging"))
        words += ["--set", f"{key}={_value(rng, now)}"]
    if words and words[0] in WHOLE and "nothing_is_called_so" not in words and "--points" not in words:
        words += ["--jobs", "0"]  # refused: of the whole library it would take minutes, and rightly so
    run_line([one.replace("FILE", str(file)).replace("OUT", str(folder / "out")).replace("\x00", "") for one in words])


def _safe(rng: Random, value: Any) -> str:
    """No number that is large and may be right: what it asks for takes long, and rightly so."""
    found = str(value)
    try:
        number = float(found)
    except ValueError:
        return found
    return "-1" if HEAVY < abs(number) < 1e12 else found


def run_line(words: list[str]) -> None:
    """A line as a shell gives it; raises what `main` would complain of. Nothing is opened, nothing is served, nothing
    is simulated that only the whole library is."""
    from simulator.commands.main import braid

    with _harmless(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        braid.main(words, prog_name="braid", standalone_mode=False)


@contextmanager
def _harmless() -> Iterator[None]:
    import webbrowser
    from http.server import ThreadingHTTPServer
    from unittest.mock import patch

    here = Path.cwd()
    gone = FileNotFoundError(2, "no other process here", "fuzz")  # benchmarks, which are processes of their own
    with (patch.object(webbrowser, "open"), patch("subprocess.run", side_effect=gone),
          patch.object(ThreadingHTTPServer, "serve_forever"),
          patch("simulator.study.library.scenario_names", lambda: [("contention:staging", "")])):  # fmt: skip
        try:
            yield
        finally:
            os.chdir(here)


WORDS: dict[str, Target] = {"settings": settings, "service settings": service_settings, "quantities": quantities,
                            "faults": faults, "step words": steps, "command lines": commands,
                            "simulations": simulations}
_ = ROOT
