"""An explanation as a person reads it: sentences, and the tables behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import ceil, log10
from typing import IO

from simulator.observe.columns import rank_weights
from simulator.observe.explain import Explanation, Focus, OneWait, WaitedFor, of_batch
from simulator.observe.exposure import Exposure
from simulator.observe.tables import Cell, Titled, console, number, show, time_unit

MOST_ROWS = 15
OFTEN = 0.2  # of the times: a rank that is last less often than that is one of many
WHY_TEXT = {"event": "waits for", "host": "lacks its launch", "peers": "waits for its peers'", "flag": "waits for",
            "cores": "waits for cores held by"}  # fmt: skip
REASON_TEXT = {"cores": "cores were taken", "launch": "compute lacked its launch", "late peer": "a peer was late",
               "stream order": "the compute stream itself was in an exchange", "dependency": "what follows needs it",
               "other task": "compute waited for another task", "no compute": "there was no compute"}


def print_explanation(found: Explanation, file: IO[str] | None = None, width: int | None = None) -> None:
    """Prints an explanation to a terminal, or as plain text to anything else."""
    from rich.text import Text

    terminal = console(file, width)
    show(terminal, *(Text(f"{line}") for line in sentences(found)), Text(""), *_tables(found))


def sentences(found: Explanation) -> list[str]:
    """The run in words, one thought a line: its path, its communication, its waits."""
    lines = [*_path(found), *_communication(found.communication), *_waits(found.waits), *map(one_wait, found.single)]
    if found.parameters and found.focus == Focus():
        best = found.parameters[0]
        lines.append(f"The number that matters most is {best['name']}: twice as good, it promises"
                     f" {best['saves']:.1%} of the run; `braid whatif` tries.")
    return lines


def _path(found: Explanation) -> Iterator[str]:
    makespan = found.makespan_ps
    parts = [f"{length / makespan:.0%} {kind} bound by {bound}" if kind not in ("host", "wait") else
             f"{length / makespan:.0%} {'launches' if kind == 'host' else f'waiting for {bound}'}"
             for (kind, bound), length in islice(found.path.items(), 4)]  # fmt: skip
    over = f"rank {found.path_ranks[0]}" if len(found.path_ranks) == 1 else (
        f"{len(found.path_ranks)} ranks ({_few(map(str, found.path_ranks))})")
    yield f"The run lasts {_time(makespan)}. Its critical path runs over {over}: {', '.join(parts)}."


def _communication(some: Iterable[Exposure]) -> Iterator[str]:
    for one in islice((one for one in some if one.busy_ps > 0.5), 6):
        text = f"{of_batch(one.name, one.micro_batch)} is at work for {_time(one.busy_ps)}"
        if one.hidden_ps > 0.5:
            under = ", ".join(f"{of_batch(*key)} {_time(length)}" for key, length in islice(one.under_ps.items(), 3))
            text += f", {_time(one.hidden_ps)} of it hidden under {under}"
        if one.exposed_ps > 0.5:
            reasons = sorted(one.reasons_ps.items(), key=lambda item: -item[1])
            why = ", ".join(f"{_time(length)} since {REASON_TEXT[reason]}" for reason, length in reasons[:3])
            text += f"; {_time(one.exposed_ps)} exposed: {why}"
        yield text + "."


def _waits(some: Iterable[WaitedFor]) -> Iterator[str]:
    for one in islice(some, 3):
        what = f"{one.who} {WHY_TEXT[one.why]}{f' {one.ended_by}' if one.ended_by else ''}"
        text = f"{what} for {_time(one.total_ps)} in all"
        if one.late:
            rank, times = next(iter(one.late.items()))
            text += (f": rank {rank} is last {times / one.times:.0%} of the times" if times >= OFTEN * one.times else
                     ": no rank is last often")  # fmt: skip
            text += f", behind {'its ' * (times >= OFTEN * one.times)}{one.behind}" if one.behind else ""
        yield text + "."


def one_wait(one: OneWait) -> str:
    """A stretch of waiting in words."""
    rank, name, layer, batch, stream = one.who
    text = (f"Rank {rank}: {of_batch(name, batch)}{f' of layer {layer}' if layer >= 0 else ''} on stream {stream}"
            f" {WHY_TEXT[one.why]}")
    if one.ended_by is not None:
        other, what, its_layer, its_batch, its_stream = one.ended_by
        text += f" {of_batch(what, its_batch)}{f' of layer {its_layer}' if its_layer != layer else ''}"
        text += f" on rank {other}" if other != rank else f" on stream {its_stream}"
    return f"{text}, {_time(one.to_ps - one.from_ps)} from {_instant(one)} on."


def _instant(one: OneWait) -> str:
    """When a stretch begins, to a hundredth of its length."""
    name, unit_ps = time_unit(one.from_ps)
    decimals = max(0, ceil(log10(100 * unit_ps / (one.to_ps - one.from_ps))))
    return f"{one.from_ps / unit_ps:,.{decimals}f} {name}"


def _tables(found: Explanation) -> Iterator[Titled]:
    """The path and the parameters are of the whole run: only where all of it is asked about."""
    whole = found.focus == Focus()
    if whole:
        yield _path_table(found)
    of_whom = "an average rank" if found.focus.rank is None else f"rank {found.focus.rank}"
    if found.communication:
        name, unit_ps = time_unit(found.communication[0].busy_ps)
        some = found.communication[:MOST_ROWS]
        yield Titled("communication", ("<name", ">busy", ">hidden", ">exposed", ">waiting", ">contention"),
                     [_exposure(one, unit_ps) for one in some],
                     f"{name} of {of_whom}; contention: how much longer than alone")  # fmt: skip
        yield Titled("where it hides, and why the rest does not", ("<name", "~hidden under", "~exposed because"),
                     [_reasons(one, unit_ps) for one in some if one.busy_ps > 0.5], f"{name} of {of_whom}")
    if found.waits:
        name, unit_ps = time_unit(found.waits[0].total_ps)
        yield Titled("who waits for whom", ("<who", "<why", "<for", ">times", f">{name}", "~last, behind"),
                     [_wait(one, unit_ps) for one in found.waits[:MOST_ROWS]],
                     f"on {of_whom}")  # fmt: skip
    if whole and found.parameters:
        yield Titled("parameters that matter most", ("<parameter", ">twice saves", ">of the path", "<value", "<kind"),
                     [(one["name"], f"{one['saves']:.1%}", f"{one['share']:.1%}",
                       f"{one['value']:g} {one['unit']}".removesuffix(" 1"), one["kind"])
                      for one in found.parameters])  # fmt: skip


def _path_table(found: Explanation) -> Titled:
    name, unit_ps = time_unit(found.makespan_ps)
    rows: list[tuple[Cell, ...]] = [(kind, bound, length / unit_ps, f"{length / found.makespan_ps:.1%}")
                                    for (kind, bound), length in islice(found.path.items(), MOST_ROWS)]  # fmt: skip
    return Titled("critical path", ("<kind", "<bound by", f">{name}", ">of the path"), rows,
                  f"all of its parts add up to {_time(found.makespan_ps)}")


def _exposure(one: Exposure, unit_ps: float) -> tuple[Cell, ...]:
    times = (one.busy_ps, one.hidden_ps, one.exposed_ps, one.waiting_ps, one.contention_ps)
    return of_batch(one.name, one.micro_batch), *(time / unit_ps for time in times)


def _reasons(one: Exposure, unit_ps: float) -> tuple[Cell, ...]:
    under = [f"{of_batch(*key)} {number(length / unit_ps)}" for key, length in islice(one.under_ps.items(), 3)]
    reasons = sorted(one.reasons_ps.items(), key=lambda item: -item[1])
    why = [f"{reason} {number(length / unit_ps)}" for reason, length in reasons[:3]]
    return of_batch(one.name, one.micro_batch), ", ".join(under) or "-", ", ".join(why) or "-"


def _wait(one: WaitedFor, unit_ps: float) -> tuple[Cell, ...]:
    last = [f"rank {rank} {times / one.times:.0%}" for rank, times in islice(one.late.items(), 2)]
    behind = f"{', '.join(last)}; {one.behind}" if one.behind else ", ".join(last)
    return one.who, one.why, one.ended_by or "-", one.times, one.total_ps / unit_ps, behind or "-"


def explanation_object(found: Explanation) -> Mapping[str, object]:
    """What `explain --json` prints; times in ps."""
    ranks, weights, _ = rank_weights(found.run.columns)
    return {
        "scenario": found.run.name, "makespan_ps": found.makespan_ps, "ranks": int(weights.sum()),
        "simulated_ranks": len(ranks), "focus": vars(found.focus), "words": sentences(found),
        "critical_path": [{"kind": kind, "bound_by": bound, "ps": length}
                          for (kind, bound), length in found.path.items()],
        "critical_path_ranks": [*found.path_ranks],
        "communication": [
            {**vars(one), "reasons_ps": dict(one.reasons_ps),
             "under_ps": [{"block": block, "micro_batch": batch, "ps": length}
                          for (block, batch), length in one.under_ps.items()]} for one in found.communication],
        "waits": [{**vars(one), "late": [{"rank": rank, "times": times} for rank, times in one.late.items()]}
                  for one in found.waits],
        "single_waits": [{"who": _named(one.who), "why": one.why, "from_ps": one.from_ps, "to_ps": one.to_ps,
                          "ended_by": _named(one.ended_by) if one.ended_by else None} for one in found.single],
        "parameters": [dict(one) for one in found.parameters]}  # fmt: skip


def _named(who: tuple[int, str, int, int, str]) -> dict[str, object]:
    return dict(zip(("rank", "name", "layer", "micro_batch", "stream"), who, strict=True))


def _time(time_ps: float) -> str:
    name, unit_ps = time_unit(time_ps)
    return f"{number(time_ps / unit_ps)} {name}"


def _few(texts: Iterable[str]) -> str:
    some = list(texts)
    return ", ".join(some) if len(some) < 7 else f"{', '.join(some[:5])}, ..., {some[-1]}"
