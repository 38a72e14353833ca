"""`braid serve`: requests over time through a service; what its users see, and what they waited for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.commands.output import OutputFolder

WORDS = {"requests": "load.requests", "isl": "load.input_tokens", "osl": "load.output_tokens",
         "range_ratio": "load.range_ratio", "rate": "load.rate", "concurrency": "load.concurrency",
         "router": "front.router", "instances": "engines.count", "drafts": "engines.step.batch.drafts",
         "acceptance": "engines.step.batch.acceptance", "precision": "engines.step.knobs.precision"}  # fmt: skip
SWEPT = {"rate": "load.rate", "concurrency": "load.concurrency"}
ROWS = (("requests/s", "request_throughput"), ("tok/s", "output_token_throughput"),
        ("tok/s per GPU", "output_token_throughput_per_gpu"), ("TTFT ms", "time_to_first_token"),
        ("ITL ms", "inter_token_latency"), ("E2E ms", "request_latency"))  # fmt: skip


@click.command()
@click.argument("service", required=False)
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option("--model", metavar="NAME", help="Instead of SERVICE: one engine with this model, as of `braid step`.")
@click.option("--machine", metavar="NAME", help="Its machine.")
@click.option("--mesh", default="", metavar="AXES", help="Its mesh, as tp=8.  [default: the smallest tp that fits]")
@click.option("--stack", default="", metavar="NAME", help="Whose kernels and scheduler: vllm, sglang, trtllm.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE",
              help="Recorded requests: Mooncake or Qwen-Bailian JSON lines, Azure or BurstGPT CSV, a table of lengths.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only its first N requests.")
@click.option("--speedup", type=click.FloatRange(min=0, min_open=True), default=1.0, metavar="X",
              help="Its times are divided by X.")
@click.option("--skip-bad", is_flag=True, help="Leave out lines that are broken, and count them.")
@click.option("--requests", metavar="N", help="Instead of a trace: so many requests,")
@click.option("--isl", metavar="N", help="of so many prompt tokens,")
@click.option("--osl", metavar="N", help="and so many output tokens,")
@click.option("--range-ratio", metavar="R", help="drawn evenly from [R x length, length],")
@click.option("--rate", metavar="X", help="so many a second (Poisson),")
@click.option("--concurrency", metavar="N", help="or N at a time, one for each that ends.")
@click.option("--router", metavar="NAME",
              help="round_robin, random, power_of_two, cache_aware, kv, length_aware.")
@click.option("--instances", metavar="N", help="Engines that are alike.")
@click.option("--drafts", metavar="N", help="Draft tokens of a request in one step (MTP, EAGLE).")
@click.option("--acceptance", metavar="P", help="Probability of a draft token after those before it.")
@click.option("--precision", metavar="MODULE=DTYPE,...", help="As all=fp8 or experts=mxfp4,kv=fp8.")
@click.option("--goodput", default="", metavar="TEXT",
              help='What is promised, in ms: "time_to_first_token:2000 inter_token_latency:50".')
@click.option("--steps", type=click.Choice(["audit", "lattice", "exact"]), default="audit", show_default=True,
              help="Steps interpolated and corrected by some that are simulated, not corrected, or all simulated.")
@click.option("--sweep", type=click.Choice([*SWEPT]), default=None, metavar="KEY",
              help="rate or concurrency takes each VALUE: the latency-throughput curve.")
@click.option("--until", type=click.Choice(["steady"]), default=None,
              help="Stop when the means of TTFT, TPOT and tokens/s are known within 2%, from as many requests as that"
                   " takes, N or a trace at most.")
@click.option("--fault", "faults", multiple=True, metavar="TEXT",
              help="\"30 s: engine 0 lost\", \"about every 60 s: engine * lost\", or a TOML file with a list of these.")
@options.settings
@options.seed
@click.option("--out", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="Write profile_export_aiperf.json, requests.parquet, steps.parquet and trace.json.gz there.")
@options.force
@options.as_json
def serve(service: str | None, values: tuple[str, ...], trace: Path | None, limit: int | None, speedup: float,
          skip_bad: bool, goodput: str, steps: str, sweep: str | None, until: str | None,
          faults: tuple[str, ...], settings: dict[str, str], seed: int, out: Path | None, force: bool, as_json: bool,
          **words: Any) -> None:
    """Simulate requests over time through SERVICE: percentiles of latency, throughput, goodput, what was waited for.

    SERVICE is a name of the library (`braid services`) or FILE.py:FUNCTION; without one --model and --machine
    make a service of one engine. Steps take what the timeline says for their batch: some are simulated, others
    interpolated between them, and some of these are audited; simulated ones are kept in the cache folder of the user
    (BRAID_CACHE names another one, or "off"), so a second run is faster. Metrics are those of AIPerf.

    \b
    Examples:
      braid serve --model llama_3_1_70b --machine dgx_h100 --concurrency 32
      # a service of the library, at 2 requests a second; what it promises
      braid serve one_server:llama_3_1_70b --rate 2 --isl 2048 --osl 256
      braid serve one_server:qwen3_235b --goodput "inter_token_latency:50"
      # a recorded trace
      braid serve one_server:llama_3_1_70b --trace mine.jsonl --limit 1000
      # blocks of prompts in a pool of host memory that engines share
      braid serve one_server:llama_3_1_70b --set pool.size_gib=512
      # until the means are known within 2%
      braid serve one_server:llama_3_1_70b --rate 2 --until steady
      # what users feel when an engine dies (silent: health checks find it)
      braid serve one_server:llama_3_1_70b --fault "20 s: engine 0 lost"
      # a straggler: one slow GPU of eight
      braid serve one_server:llama_3_1_70b --fault "0 s: rank 3 of 0 clock 0.7"
      # the latency-throughput curve
      braid serve one_server:llama_3_1_70b --sweep concurrency 1 4 16 64
    """
    from simulator.commands.output import results_folder
    from simulator.serving.goodput import promises
    from simulator.spec.faults import faults_of

    if sweep and service is not None and words["model"] is not None:
        values, service = (service, *values), None  # the first word is a value
    if bool(sweep) != bool(values):
        raise click.UsageError("--sweep KEY takes VALUES, as in --sweep rate 1 2 4 8")
    if sweep and out is not None:
        raise click.UsageError("--out is of one run: a sweep prints its rows, or writes them as --json")
    _refuse_unread(service, words, trace, {"--limit": limit is not None, "--speedup": speedup != 1.0,
                                           "--skip-bad": skip_bad})  # fmt: skip
    changes = settings | {key: words[name] for name, key in WORDS.items() if words[name] is not None}
    if words["rate"] is None and (words["concurrency"] is not None or sweep == "concurrency"):
        changes["load.rate"] = "0"
    if words["rate"] is not None and words["concurrency"] is not None:
        raise click.UsageError("--rate sends requests at their times, --concurrency one for each that ends: give one")
    if faults and until:
        raise click.UsageError("--until ends a run once its means are steady, which faults disturb: give --requests N")
    promised = promises(goodput) if goodput else {}
    paced = bool(sweep) or words["rate"] is not None or words["concurrency"] is not None
    asked = {"trace": trace, "limit": limit, "speedup": speedup, "skip_bad": skip_bad, "paced": paced,
             "until": until, "endless": until and trace is None and "load.requests" not in changes,
             "faults": faults_of(faults)}  # fmt: skip
    if sweep is None:
        _once(_service(service, words, changes), asked, steps, seed, promised, results_folder(out, force), as_json)
    else:
        _curve(service, words, changes, sweep, values, asked, steps, seed, promised, as_json)


def _refuse_unread(service: str | None, words: dict[str, Any], trace: Path | None, of_trace: dict[str, bool]) -> None:
    """UsageError for options that nothing would read."""
    if service is not None and (given := [f"--{name}" for name in ("mesh", "stack") if words[name]]):
        raise click.UsageError(f"{', '.join(given)}: SERVICE has its own; give --model and --machine instead of it, or "
                               "--set engines.step.layout...")
    if trace is None and (given := [name for name, is_given in of_trace.items() if is_given]):
        raise click.UsageError(f"{', '.join(given)}: of a recorded trace; give --trace FILE")
    drawn = [name for name in ("requests", "isl", "osl", "range_ratio") if words[name] is not None]
    if trace is not None and drawn:
        raise click.UsageError(f"{', '.join('--' + name.replace('_', '-') for name in drawn)}: of requests that are "
                               "drawn; --trace has its own (--limit N takes its first N requests)")


def _service(reference: str | None, words: dict[str, Any], changes: dict[str, str]) -> Any:
    """The service that is meant, with its settings changed."""
    from simulator.serving.launches import one_engine
    from simulator.serving.settings import changed
    from simulator.study.step import StepWords

    own = [words[name] for name in ("model", "machine")]
    if (reference is None) != all(own) or (reference is not None and any(own)):
        raise click.UsageError("give SERVICE, or --model and --machine")
    if reference is not None:
        from simulator.serving.library import load_service

        return changed(load_service(reference), changes)
    step = {key: changes.pop(key) for key in list(changes) if key.partition(".")[0] in ("knobs", "layout", "machine")}
    named = StepWords(words["model"], words["machine"], words["stack"], words["mesh"], "decode", step)
    return changed(one_engine(named), changes)


def _offered(service: Any, asked: dict[str, Any], seed: int) -> Any:
    from simulator.commands.request import progress_bar
    from simulator.serving.offered import drawn, endless, recorded

    if asked["trace"] is None:
        load = endless(service.load) if asked["endless"] else service.load
        return drawn(load, seed, service.engines.cache.block_size)
    with progress_bar(f"reading {asked['trace']}") as tell:
        found = recorded(asked["trace"], service.load, seed, limit=asked["limit"], speedup=asked["speedup"],
                         skip_bad=asked["skip_bad"], paced=asked["paced"], tell=tell)  # fmt: skip
    if found.requests.skipped:
        lines = ", ".join(map(str, found.requests.skipped_lines))
        _warn(f"{asked['trace']}: broken lines were left out: {found.requests.skipped}, the first of them {lines}")
    return found


def _outcome(service: Any, asked: dict[str, Any], steps: Any, seed: int, promised: dict[str, float],
             without: Any = None) -> Any:  # fmt: skip
    """One run, which says now and then how far it is."""
    from simulator.commands.request import progress_bar
    from simulator.serving.loop import Loop
    from simulator.serving.outcome import outcome
    from simulator.serving.until import Until
    from simulator.study.kept import cache_folder

    offered = _offered(service, asked, seed)
    until = Until(offered.concurrency or None) if asked["until"] else None
    with progress_bar(service.name) as tell:
        loop = Loop(service, offered.requests, concurrency=offered.concurrency, steps=steps, seed=seed,
                    folder=cache_folder(), tell=tell, warn=_warn, until=until,
                    faults=asked["faults"])  # fmt: skip
        served = loop.run()
    with progress_bar(f"{service.name}: what its users saw") as tell:
        return outcome(served, promised or None, offered.concurrency or None, tell, without)


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def _once(service: Any, asked: dict[str, Any], steps: str, seed: int, promised: dict[str, float],
          folder: OutputFolder | None, as_json: bool) -> None:
    from simulator.commands.output import to_json
    from simulator.commands.request import progress_bar
    from simulator.errors import Interrupted
    from simulator.paths import installed_version
    from simulator.serving.files import profile_export, write_files
    from simulator.serving.show import print_outcome
    from simulator.study.expected import plain
    from simulator.study.settings import leaves

    without = _outcome(service, asked | {"faults": ()}, steps, seed, promised) if asked["faults"] else None
    if without is not None and without.served.interrupted:
        raise Interrupted("stopped by Ctrl-C in the run without faults: there is nothing to show")
    found = _outcome(service, asked, steps, seed, promised, without)
    config = {"service": service.name, "title": service.title, "seed": seed, "steps": steps,
              "version": installed_version(), "settings": plain(leaves(service))}
    config |= {"faults": [str(one) for one in asked["faults"]]} if asked["faults"] else {}
    if folder is not None:
        with folder.staged() as staged, progress_bar(f"writing {folder.path}") as tell:
            write_files(found, staged, config, tell)
    if as_json:
        click.echo(to_json(profile_export(found, config)))
    else:
        print_outcome(found, f"{service.name}: {service.title}")
        if folder is not None:
            click.echo(f"wrote {folder.path}")
    if found.served.interrupted:
        raise Interrupted("stopped by Ctrl-C: what is shown is of the requests so far")


def _curve(reference: str | None, words: dict[str, Any], changes: dict[str, str], key: str, values: tuple[str, ...],
           asked: dict[str, Any], steps: str, seed: int, promised: dict[str, float], as_json: bool) -> None:
    """A row for every value; the steady state where there is one."""
    from simulator.commands.output import print_table, to_json
    from simulator.errors import Interrupted

    rows, stopped = [], False
    for value in values:
        found = _outcome(_service(reference, words, changes | {SWEPT[key]: value}), asked, steps, seed, promised)
        if stopped := found.served.interrupted:
            break
        metrics = (found.steady or found.whole).metrics
        rows.append({key: value, "state": "steady" if found.steady else "all"}
                    | {name: metrics[metric]["avg"] for name, metric in ROWS if metric in metrics})
    if as_json:
        click.echo(to_json(rows))
    else:
        head = (f">{key}", "<state", *(f">{name}" for name, _ in ROWS))
        print_table(head, [[row[key], row["state"], *(row.get(name) for name, _ in ROWS)] for row in rows])
    if stopped:
        raise Interrupted(f"stopped by Ctrl-C at {key} {value}: what is shown is of the values before it")
