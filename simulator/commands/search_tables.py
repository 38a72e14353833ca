"""Tables of `braid search`: the front as a picture, the best with what bounds them, what was left out."""

from __future__ import annotations

import sys
from pathlib import Path

import rich_click as click

from simulator.observe.scatter import Scatter
from simulator.observe.tables import Cell, Titled, console, show
from simulator.search.answer import Answer
from simulator.search.cost import cost_of
from simulator.search.deployment import Engine, Found
from simulator.search.emit import steps
from simulator.search.files import serve_line
from simulator.search.space import counted
from simulator.search.why import why
from simulator.spec.load import load_machine

LETTERS = "12345"


def so_far(found: Answer, after_s: float) -> None:
    """The front that is known, on stderr."""
    click.echo(f"\nafter {after_s:.0f} s, {found.simulated} of {found.layouts} layouts simulated; the best so far:",
               err=True)  # fmt: skip
    show(console(sys.stderr), _picture(found), _best(found))


def print_answer(found: Answer, folder: Path | None) -> None:
    """All of it on stdout. folder: where files are written, None for nowhere."""
    ask = found.ask
    gpus = str(ask.least_gpus) if ask.least_gpus == ask.most_gpus else f"{ask.least_gpus} to {ask.most_gpus}"
    click.echo(f"{ask.model} on {gpus} GPU{'' if gpus == '1' else 's'} of {ask.machine}, "
               f"{ask.input_tokens:,} tokens in and {ask.output_tokens:,} out, "
               f"TTFT {ask.ttft_ms:g} ms and TPOT {ask.tpot_ms:g} ms at most\n")
    show(console(), _picture(found), _best(found))
    for place in range(len(found.top)):
        click.echo(f"{place + 1}: {why(found, place)}")
    for place, one in enumerate(found.top, 1):
        click.echo(f"\n# {place}: {one.words}")
        click.echo(serve_line(ask, one, place, folder, found.requests))
        click.echo("\n".join(steps(one, ask)))
    _left_out(found)


def _picture(found: Answer) -> Scatter:
    def place(one: Found) -> tuple[float, float]:
        return one.tok_s_per_user, one.tok_s_per_gpu

    marked = [(LETTERS[number], *place(one)) for number, one in enumerate(found.top)]
    return Scatter([place(one) for one in found.points], [place(one) for one in found.front], marked, "tok/s/user",
                   "tok/s/GPU")  # fmt: skip


def _best(found: Answer) -> Titled:
    machine = load_machine(found.ask.machine)
    costs = [cost_of(one, machine, found.dollars_per_gpu_hour) for one in found.top]
    head = ["<", ">tok/s/GPU", ">tok/s/user", ">TTFT ms", ">TPOT ms", ">p99", ">GPUs", ">batch", "<engines"]
    rows: list[list[Cell]] = [
        [str(place), one.tok_s_per_gpu, one.tok_s_per_user, one.ttft_ms, one.tpot_ms, one.tpot_p99_ms or None, one.gpus,
         one.requests, _engines(one)] for place, one in enumerate(found.top, 1)]  # fmt: skip
    for name, values in (("$/M tokens", [one.dollars for one in costs]), ("J/token", [one.joules for one in costs])):
        if any(value is not None for value in values):
            head.insert(-1, f">{name}")
            rows = [[*row[:-1], value, row[-1]] for row, value in zip(rows, values, strict=True)]
    return Titled("the best" if found.top and found.top[0].served else "the best, by steps", head, rows)


def _engines(one: Found) -> str:
    engines, prefill = one.deployment
    first = f"prefill {one.prefill_count} x {_short(prefill)}, decode " if prefill else ""
    return f"{first}{one.count} x {_short(engines)}"


def _short(engine: Engine) -> str:
    settings = " ".join(text for _, text in engine.settings)
    return " ".join(filter(None, (engine.stack, engine.mesh, settings, f"{engine.tokens} tokens")))


def _left_out(found: Answer) -> None:
    before = f" ({found.kept} of them before)" if found.kept else ""
    click.echo(f"\n{counted(found.layouts)}: {found.simulated} simulated{before}, {found.dropped} dropped "
               "that their roofline keeps from being among the best")  # fmt: skip
    rows = [(kind, count, found.reasons.get(kind, "")) for kind, count in
            sorted(found.refused.items(), key=lambda one: -one[1])]  # fmt: skip
    if rows:
        show(console(), Titled("refused", ("<by", ">layouts", "<one of them"), rows))
    for note in found.notes:
        click.echo(note)
