"""Steps of all models on all machines as tables: one a machine, what is refused by reason, what lies outside tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from simulator import paths
from simulator.observe.tables import Titled, console, markdown_table, plain_number, show
from simulator.spec.load import load_machine
from simulator.study.steps import CARDS, LOADS, TOKENS, Cell, machines

OUTSIDE = "+"  # behind a number
REFUSED = {"memory": "memory", "mesh": "mesh", "kernels": "no kernels", "other": "refused"}
_HEAD = ("<model", "<kernels", "<precision", *(f">{cards}x {load}" for cards in CARDS for load in LOADS))


def by_machine(cells: Sequence[Cell]) -> dict[str, list[tuple[str, ...]]]:
    """The rows of each machine: model, kernels, precision, then times (ms) or why there is none."""
    rows: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        rows.setdefault(cell.machine, {}).setdefault(cell.model, []).append(cell)
    return {machine: [_row(model, its) for model, its in models.items()] for machine, models in rows.items()}


def _row(model: str, cells: Sequence[Cell]) -> tuple[str, ...]:
    said = [" / ".join(dict.fromkeys(filter(None, words))) or "-"
            for words in ([cell.kernels for cell in cells], [cell.precision for cell in cells])]
    return model, *said, *map(_shown, cells)


def _shown(cell: Cell) -> str:
    if cell.ms is None:
        return REFUSED[cell.refused]
    return plain_number(cell.ms) + OUTSIDE * bool(cell.outside)


def summary(cells: Sequence[Cell]) -> str:
    """One line: how many steps, how many of them simulated, and refused for what."""
    refused = Counter(cell.refused for cell in cells if cell.ms is None)
    causes = ", ".join(f"{count} {REFUSED[cause]}" for cause, count in refused.most_common())
    return (f"{len(cells)} steps of {len({cell.model for cell in cells})} models on "
            f"{len({cell.machine for cell in cells})} machines; {len(cells) - refused.total()} simulated"
            + (f", {refused.total()} refused: {causes}" if causes else ""))


def reasons(cells: Iterable[Cell]) -> list[tuple[str, str, int, str]]:
    """(cause, reason, steps, the first of them) of what is refused, the most frequent first; memory is one reason, and
    one reason of several models is, too."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.ms is None:
            reason = re.sub(rf"\b{re.escape(cell.model)}\b", "it", cell.reason)
            if cell.refused == "memory":
                reason = "weights, cache and activations exceed it"
            found.setdefault((cell.refused, reason), []).append(cell)
    rows = [(REFUSED[cause], reason, len(those), _name(those[0])) for (cause, reason), those in found.items()]
    return sorted(rows, key=lambda row: -row[2])


def beyond(cells: Iterable[Cell]) -> list[tuple[str, str, int, str, str]]:
    """(machine, kernel, steps, the first of them, how it is outside) of kernels larger or smaller than measured."""
    found: dict[tuple[str, str], list[tuple[Cell, str]]] = {}
    for cell in cells:
        for text in cell.outside:
            kernel, _, how = text.partition(": ")
            found.setdefault((cell.machine, kernel), []).append((cell, how))
    return [(machine, kernel, len(those), _name(those[0][0]), those[0][1])
            for (machine, kernel), those in found.items()]


def _name(cell: Cell) -> str:
    return f"{cell.model}, {cell.machine}, {cell.cards}x {cell.load}"


def print_cells(cells: Sequence[Cell]) -> None:
    """A table a machine in the terminal, then reasons and the summary."""
    terminal = console()
    for machine, rows in by_machine(cells).items():
        show(terminal, Titled(machine, _HEAD, rows, "ms"))
    show(terminal, Titled("refused", ("<cause", ">steps", "~reason"),
                          [(cause, str(count), reason) for cause, reason, count, _ in reasons(cells)]))
    show(terminal, f"{summary(cells)}; {OUTSIDE}: kernels outside what was measured")


def markdown(cells: Sequence[Cell]) -> str:
    """results/steps.md; the same cells give the same bytes."""
    there = machines()
    others = [name for name in paths.names("topologies") if name not in there]
    lines = [
        "# Steps of all models on all machines", "",
        f"Written by `braid steps`. TPOT of 1 and of 64 requests in decode, at {TOKENS} cached tokens each, and TTFT of"
        f" a prompt of {TOKENS} tokens, in ms, on {', '.join(map(str, CARDS))} cards, tensor parallel. Kernels are"
        " those of the first software generation of a machine that has them for model and phase, in the precision of"
        " the checkpoint; `a -> b` where there are none of `a` and `b` is the nearest. Nothing here was measured.",
        "", f"{OUTSIDE}: some kernels are larger or smaller than all that their laws were fitted on, as listed below.",
        "", f"{summary(cells)}.", "",
        f"Machines without kernels of a stack that runs any transformer: {', '.join(others) or 'none'}.", ""]
    head = tuple(one[1:] for one in _HEAD)
    for machine, rows in by_machine(cells).items():
        lines += [f"## {load_machine(machine).title} (`{machine}`)", "", markdown_table(head, rows)]
    lines += ["## Refused", "", markdown_table(("cause", "steps", "reason", "as"), [
        (cause, str(count), reason, first) for cause, reason, count, first in reasons(cells)])]
    lines += ["## Kernels outside what was measured", "", markdown_table(("machine", "kernel", "steps", "as", "how"), [
        (machine, kernel, str(count), first, how) for machine, kernel, count, first, how in beyond(cells)])]
    return "\n".join(lines).rstrip("\n") + "\n"
