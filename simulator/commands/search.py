"""`braid search`: what to deploy under a service level, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from simulator.commands import options

if TYPE_CHECKING:
    from simulator.search.answer import Answer
    from simulator.search.deployment import Ask, Found
    from simulator.search.kept import Kept
    from simulator.search.search import Outcome

FIRST_S = 10.0  # until the first front is shown; later ones come after twice as long each


class Number(click.FloatRange):
    """In a range; "nan" and "inf" are none."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        found = super().convert(value, parameter, context)
        if not isfinite(found):
            self.fail(f"{value} is not a finite number.", parameter, context)
        return found


@click.command()
@click.option("--model", required=True, metavar="NAME",
              help="Of the library, or a Hugging Face config.json, or its folder.")
@click.option("--machine", required=True, metavar="NAME", help="Of the library, or the path of a .toml file.")
@click.option("--gpus", required=True, metavar="N", help="Cards of all engines together: 16, or 8..64.")
@click.option("--isl", type=click.IntRange(min=1), metavar="N", help="Prompt tokens of a request.")
@click.option("--osl", type=click.IntRange(min=2), metavar="N", help="Its output tokens.")
@click.option("--prefix", type=Number(min=0, max=1, max_open=True), default=0.0, metavar="SHARE",
              help="Share of each prompt that is cached before it comes.")
@click.option("--ttft", type=Number(min=0, min_open=True), default=2000.0, show_default=True, metavar="MS",
              help="Mean time to the first token, at most.")
@click.option("--tpot", type=Number(min=0, min_open=True), default=50.0, show_default=True, metavar="MS",
              help="Mean time of each further token, at most.")
@click.option("--objective", type=click.Choice(["tok_s_per_gpu", "cost", "tok_s_per_user"]), default="tok_s_per_gpu",
              show_default=True, help="What the best are ranked by.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE",
              help="Recorded requests, as of `braid serve`: their mean lengths are searched for, and the best are "
                   "served with them.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N requests of the trace.")
@click.option("--acceptance", type=Number(min=0, max=1), default=0.0, metavar="P",
              help="Probability of a draft token after those before it: drafts (MTP) of 1 to 3 tokens are looked at.")
@click.option("--space", type=click.Path(path_type=Path), metavar="FILE.toml",
              help="Axes with their values, as tp = [4, 8].")
@click.option("--fix", multiple=True, metavar="KEY=VALUE", help="One value of an axis. Repeatable.")
@click.option("--vary", multiple=True, metavar="KEY=A,B", help="Values of an axis (A;B where one has commas). "
              "Repeatable.")
@click.option("--trials", type=click.IntRange(min=1), default=2000, show_default=True, metavar="N",
              help="Layouts that are simulated, about, where there are more than 4000.")
@click.option("--serve", type=click.IntRange(min=0, max=20), default=20, show_default=True, metavar="N",
              help="Serve the best N with requests over time, for their percentiles.")
@click.option("--executor", type=click.Choice(["serial", "processes", "ray"]), default=None,
              help="Where layouts are simulated.  [default: serial, processes where --jobs is above 1]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Simulate N layouts at a time.")
@click.option("--ray-address", metavar="ADDRESS", help="Of a Ray cluster; without it one is started here.")
@click.option("--price", type=Number(min=0, min_open=True), metavar="DOLLARS", help="Of a GPU hour.")
@click.option("--emit", type=click.Choice(["vllm", "sglang", "trtllm"]), default=None,
              help="Print the commands that launch the best deployment of this framework.")
@options.seed
@click.option("--out", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="Write search.json, points.parquet and deployments.py there, and keep what is simulated there: the "
                   "same search goes on after it was stopped. `braid report DIR` makes a page of it.")
@options.force
@options.as_json
def search(model: str, machine: str, gpus: str, isl: int | None, osl: int | None, prefix: float, ttft: float,
           tpot: float, objective: str, trace: Path | None, limit: int | None, acceptance: float, space: Path | None,
           fix: tuple[str, ...], vary: tuple[str, ...], trials: int, serve: int, executor: str | None, jobs: int,
           ray_address: str | None, price: float | None, emit: str | None, seed: int, out: Path | None, force: bool,
           as_json: bool) -> None:
    """Search for what to deploy: meshes, stacks, exchanges, schedules, chunks, prefill together or apart.

    Layouts are made from the model and the machine; what does not divide, has no kernels or no room is refused, and
    counted by reason. Of each layout a few steps are simulated, its batch bisected against TPOT; what its roofline
    keeps from being among the best is not. The best are then served with requests over time, and shown with what bounds
    them and what keeps their batch from growing. The front is the same whatever the executor and the number of jobs.

    Axes are tp, cp, pp, ep ("all": every rank), redundant, o_proj, dense, shared, head, embedding, apart, cards (of an
    engine), stack, exchange, schedule, micro_batches, cores, precision, drafts, residual, tokens (of a group in a
    step), mode (together, apart), and every setting of `braid show transformer:decode`. dp is what the cards leave.
    Precision is the checkpoint's unless it is named, since another one changes what a model answers.

    All layouts are looked at up to 4000. Where there are more, some are chosen (NSGA-II of Optuna, from --seed) until
    --trials are simulated, or the front has stayed the same for ten generations.

    What is simulated is kept in BRAID_CACHE, or in the user's cache folder, or with --out: a search that was stopped
    goes on where it was.

    \b
    Examples:
      # what runs Llama-3.1-70B best on 8 H100 at 50 ms a token
      braid search --model llama_3_1_70b --machine dgx_h100 --gpus 8 --isl 4096 --osl 1024
      # 8 to 16 GPUs, two processes, with what it costs; a page of it
      braid search --model qwen3_235b --machine dgx_h200 --gpus 8..16 --isl 4096 --osl 1024 --jobs 2 --price 3 --out s
      braid report s
      # one stack, prefill and decode on the same engines, keys and values in FP8 or not
      braid search --model llama_3_1_70b --machine dgx_h100 --gpus 8 --isl 1024 --osl 1024 --fix stack=vllm \\
          --fix mode=together --vary precision=,kv=fp8 --emit vllm
      # more layouts than can all be looked at: 600 of them
      braid search --model deepseek_r1 --machine dgx_h200 --gpus 16 --isl 4096 --osl 1024 --trials 600 --serve 0 \\
          --vary redundant=0,1,2 --vary cp=1,2 --vary knobs.dispatch_dtype=,bf16 --vary residual=replicated,split
    """
    from simulator.commands.output import results_folder
    from simulator.search import asked
    from simulator.search.kept import FILES

    how = _Where(executor, jobs, ray_address).checked()
    ask = _ask(model, machine, asked.gpus(gpus), (isl, osl), prefix, (ttft, tpot), (trace, limit), acceptance)
    named = asked.axes(space, fix, vary)
    folder = results_folder(out, force, FILES)
    found, interrupted = _found(ask, named, how, folder.path if folder else None, objective, serve,
                                trials, (trace, limit, seed), price, as_json)  # fmt: skip
    _show(found, folder.path if folder else None, emit, as_json)
    if interrupted:
        from simulator.errors import Interrupted

        raise Interrupted("stopped by Ctrl-C: what is shown is of the layouts so far; the same command goes on")


class _Where:
    """Where the work is done."""

    def __init__(self, executor: str | None, jobs: int, address: str | None) -> None:
        self.executor = executor or ("ray" if address else "processes" if jobs > 1 else "serial")
        self.jobs, self.address = jobs, address

    def checked(self) -> _Where:
        """UsageError for options that nothing would read."""
        if self.address and self.executor != "ray":
            raise click.UsageError(f"--ray-address: of --executor ray, not of {self.executor}")
        if self.jobs > 1 and self.executor == "serial":
            raise click.UsageError(f"--jobs {self.jobs}: --executor serial simulates one layout at a time")
        return self

    def execute(self, work: Callable[[Any], Any], those: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """As an executor."""
        from simulator.study.processes import processes, serial

        if self.executor == "serial":
            return serial(work, those)
        if self.executor == "processes":
            return processes(work, those, self.jobs)
        from simulator.search.executors import on_ray

        return on_ray(work, those, self.address, self.jobs if self.jobs > 1 or not self.address else None, _warn)


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def _ask(model: str, machine: str, cards: tuple[int, int], lengths: tuple[int | None, int | None], prefix: float,
         limits: tuple[float, float], trace: tuple[Path | None, int | None], acceptance: float) -> Ask:
    """From the options; lengths of a trace are the means of its requests."""
    from simulator.search.deployment import Ask

    isl, osl = lengths
    file, most = trace
    if file is not None:
        if isl is not None or osl is not None:
            raise click.UsageError("--isl, --osl: of requests that are drawn; --trace has its own")
        from simulator.serving.traces import read_trace

        requests = read_trace(file, limit=most)
        isl, osl = (max(round(float(some.mean())), least) for some, least in
                    ((requests.input_tokens, 1), (requests.output_tokens, 2)))  # fmt: skip
    if most is not None and file is None:
        raise click.UsageError("--limit: of a recorded trace; give --trace FILE")
    if isl is None or osl is None:
        raise click.UsageError("give --isl and --osl, or --trace FILE")
    return Ask(model, machine, *cards, isl, osl, prefix, *limits, acceptance)


def _found(ask: Ask, named: Any, how: _Where, folder: Path | None, objective: str, count: int,
           trials: int, offered: tuple[Path | None, int | None, int], price: float | None,
           quiet: bool) -> tuple[Answer, bool]:  # fmt: skip
    """The answer, and whether Ctrl-C came before all of it was known."""
    from dataclasses import replace

    from simulator.commands.request import progress_bar
    from simulator.errors import InputError
    from simulator.search.answer import answer, explained
    from simulator.search.evolve import Effort, chosen
    from simulator.search.kept import Kept
    from simulator.search.search import search
    from simulator.search.serve import Requests
    from simulator.search.space import axes_of

    done: list[Found] = []
    shown, interrupted = _Shown(objective, price, quiet), False
    axes, folder = axes_of(ask, named), folder or _cache(ask)
    with Kept(folder, _warn) as kept:
        families = chosen(ask, axes, named, Effort(trials, offered[-1], folder, _warn))
        try:
            with progress_bar(f"{ask.model} on {ask.machine}") as tell:
                shown.tell = tell
                outcome = search(ask, families, how.execute, kept, shown)
            if count and outcome.points:
                best = answer(outcome, objective, price=price, count=count).top
                shown.show(outcome)
                with progress_bar(f"serving the best {len(best)}") as tell:
                    _serve(ask, offered, best, how, kept, done, tell)
        except KeyboardInterrupt:
            interrupted = True
            if shown.outcome is None:
                raise
            outcome = shown.outcome
    found = replace(answer(outcome, objective, done, price), requests=Requests(*offered))
    if not found.points and not done and not interrupted:
        raise InputError(f"no layout of {ask.model} on {ask.machine} does what is asked: {_reasons(found)}")
    return explained(found), interrupted


def _cache(ask: Ask) -> Path | None:
    from hashlib import sha256

    from simulator.study.kept import cache_folder

    folder = cache_folder()
    return folder and folder / f"search-{sha256(repr(ask).encode()).hexdigest()[:16]}"


def _serve(ask: Ask, offered: tuple[Path | None, int | None, int], best: Sequence[Found], how: _Where, kept: Kept,
           done: list[Found], tell: Callable[[float], None]) -> None:
    """The best as their users see them, each added to `done`; what was served before is known."""
    from functools import partial

    from simulator.search.answer import found_object, found_of
    from simulator.search.serve import Requests, name_of, served
    from simulator.study.kept import cache_folder

    requests = Requests(*offered)
    known = {one.words: kept.get(name_of(ask, requests, one)) for one in best}
    done += [found_of(json.loads(row["found"])) for row in known.values() if row]
    left = [one for one in best if not known[one.words]]
    for before, one in how.execute(partial(served, ask, requests, cache_folder()), left):
        kept.put(name_of(ask, requests, before), {"found": json.dumps(found_object(one))})
        done.append(one)
        tell(len(done) / len(best))


def _reasons(found: Answer) -> str:
    from simulator.search.space import counted

    return "; ".join(f"{counted(count)}: {kind} ({found.reasons[kind]})"
                     for kind, count in sorted(found.refused.items(), key=lambda one: -one[1]))  # fmt: skip


class _Shown:
    """What is told while it goes on: the share that is done, and now and then the front so far."""

    def __init__(self, objective: str, price: float | None, quiet: bool) -> None:
        from time import monotonic

        self.outcome: Outcome | None = None
        self.tell: Callable[[float], None] = lambda share: None
        self._objective, self._price, self._quiet = objective, price, quiet
        self._clock, self._begun = monotonic, monotonic()
        self._next_s = FIRST_S

    def __call__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.tell(outcome.share)
        after_s = self._clock() - self._begun
        if after_s >= self._next_s:
            self._next_s = 2.0 * after_s
            self.show(outcome)

    def show(self, outcome: Outcome) -> None:
        """The front so far, where a person reads it."""
        if self._quiet or not outcome.points:
            return
        from simulator.commands.search_tables import so_far
        from simulator.search.answer import answer

        so_far(answer(outcome, self._objective, price=self._price), self._clock() - self._begun)


def _show(found: Answer, folder: Path | None, emit: str | None, as_json: bool) -> None:
    """The answer, as tables or JSON, and in files."""
    from simulator.commands.output import to_json
    from simulator.commands.search_tables import print_answer
    from simulator.search.answer import as_object
    from simulator.search.files import write_files

    launch = _launch(found, emit) if emit else []
    if as_json:
        shown = {name: value for name, value in as_object(found).items() if name != "points"}
        click.echo(to_json(shown | ({"launch": launch} if emit else {})))
    else:
        print_answer(found, folder)
        click.echo("\n".join(launch), nl=bool(launch))
    for path in write_files(found, folder) if folder else []:
        click.echo(f"wrote {path}", err=as_json)


def _launch(found: Answer, framework: str) -> list[str]:
    """The commands that launch the best deployment of a framework."""
    from simulator.search.emit import flags, framework_of

    one = next((one for one in found.top if framework_of(one.deployment.engines.stack) == framework), None)
    if one is None:
        stacks = ", ".join(dict.fromkeys(one.deployment.engines.stack for one in found.top))
        _warn(f"--emit {framework}: none of the best is of it ({stacks}); --fix stack={framework} searches it alone")
        return []
    return flags(one, found.ask, framework)
