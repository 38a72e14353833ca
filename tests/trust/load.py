"""The largest work that Braid is to do, each command in a process of its own, within a stated peak memory.

    python -m tests.trust.load                       all cases, about an hour; results/trust/load.md
    python -m tests.trust.load --case rows --scale 0.01

A case is not of `braid bench`: that says how fast a part is, in ten minutes; this one says what a whole command takes
of memory where the work is as large as it gets, and whether it told how far it was and what time was left. What a case
writes is in a temporary folder. Rows of cases that are not run stay in the table; --scale below 1 writes none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from simulator.bench.benchmark import environment
from simulator.observe.files import whole_file
from simulator.observe.tables import markdown_table

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "results" / "trust" / "load.md"
RANKS = 32  # of contention:staging
TELLS_S = 15.0  # what lasts longer has to have told how far it is: a line comes every ten seconds
HEAD = ("case", "command", "peak MiB", "ceiling MiB", "held", "CPU s", "wall s", "of the progress that it told")
SERVICE = ("serve", "one_server:llama_3_1_70b")
WIDE = ("--vary", "redundant=0,16,32", "--vary", "cp=1,2", "--vary", "knobs.dispatch_dtype=,bf16", "--vary",
        "residual=replicated,split", "--vary", "precision=,kv=fp8", "--vary", "drafts=0,1,2,3")  # fmt: skip


class Command(NamedTuple):
    """Its words, and the most memory that it may take, in MiB."""

    words: tuple[str, ...]
    ceiling_mib: int


class Case(NamedTuple):
    """name, what it is, and commands that follow each other in one folder. requests: rows of a trace that is there."""

    name: str
    what: str
    commands: tuple[Command, ...]
    requests: int = 0


def cases(scale: float) -> list[Case]:
    """All of them. scale: of their sizes, 1 for those that are promised."""
    requests, rows = round(1e6 * scale), round(1e7 * scale)
    searched = ("search", "--model", "deepseek_r1", "--machine", "dgx_h200", "--gpus", "16", "--isl", "4096", "--osl",
                "1024", "--acceptance", "0.7", "--serve", "0", "--trials", str(max(round(300 * scale), 20)), *WIDE,
                "--out", "found")  # fmt: skip
    return [
        Case("service", f"{requests:,} requests that are drawn, in {45 * requests:,} steps",
             (Command((*SERVICE, "--rate", "2", "--requests", str(requests), "--out", "service"), 4096),)),
        Case("trace", f"{requests:,} requests of a file, a tenth of whose blocks are shared, 32 tokens each",
             (Command((*SERVICE, "--trace", "requests.jsonl", "--out", "traced"), 4096),), requests),
        Case("search", "2,592,000 combinations of axes, of which NSGA-II chooses",
             (Command(searched, 1024),)),
        Case("rows", f"{rows:,} rows of a timeline, on {RANKS} ranks, each by itself: written, read, compared",
             (Command(("run", "contention:staging", "--set", f"batch.gemms={max(rows // RANKS - 1, 1)}", "--ranks",
                       "all", "--out", "rows"), 4096),
              Command(("explain", "rows"), 4096), Command(("compare", "rows", "rows"), 6144),
              Command(("report", "rows"), 4096))),
    ]  # fmt: skip


class Ran(NamedTuple):
    """What a command took. told: the last line that says how far it was and what was left; code: of its exit."""

    peak_mib: float
    cpu_s: float
    wall_s: float
    told: str
    code: int
    error: str


def run(words: Sequence[str], folder: Path) -> Ran:
    """One command in a process of its own; its peak memory and times as the system counts them."""
    since_s, told, error = time.monotonic(), "", ""
    process = subprocess.Popen([sys.executable, "-m", "simulator", *words], cwd=folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8",
                               env=environment() | {"BRAID_CACHE": "off", "OPENBLAS_NUM_THREADS": "1"})  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        error = line.strip()
        print(f"  {error}", file=sys.stderr)
        told = error if " s left" in error and ": 100%" not in error else told
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ran(used.ru_maxrss / 1024, used.ru_utime + used.ru_stime, time.monotonic() - since_s, told,
               process.returncode, error)  # fmt: skip


def holds(ran: Ran, command: Command) -> str:
    """"yes", or what is wrong."""
    if ran.code != 0:
        return f"no: exit code {ran.code}, {ran.error}"
    if ran.peak_mib > command.ceiling_mib:
        return "no: more memory"
    return "yes" if ran.told or ran.wall_s < TELLS_S else "no: nothing told"


def write_requests(path: Path, count: int) -> None:
    """A trace as Mooncake's: two requests a second, of 1024 tokens in two blocks, the first of one in ten prompts."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            first = number % 100 if number % 10 == 0 else 10 * count + number
            row = {"timestamp": 500 * number, "input_length": 1024, "output_length": 32,
                   "hash_ids": [first, 100 + number]}  # fmt: skip
            file.write(json.dumps(row) + "\n")


def measured(case: Case) -> Iterator[list[str]]:
    """Rows of the table, one for each command; a command after one that failed is not run."""
    with tempfile.TemporaryDirectory() as name:
        if case.requests:
            write_requests(Path(name) / "requests.jsonl", case.requests)
        for command in case.commands:
            print(f"{case.name}: braid {' '.join(command.words)}", file=sys.stderr)
            ran = run(command.words, Path(name))
            held = holds(ran, command)
            row = [case.name, f"`braid {' '.join(command.words)}`", f"{ran.peak_mib:,.0f}", f"{command.ceiling_mib:,}",
                   held, f"{ran.cpu_s:,.0f}", f"{ran.wall_s:,.0f}", ran.told.rpartition(": ")[2] or "-"]
            print(f"{case.name}: {' | '.join(row[2:])}", file=sys.stderr)
            yield row
            if ran.code != 0:
                return


def text_of(rows: Sequence[Sequence[str]]) -> str:
    """results/trust/load.md."""
    about = [f"* {case.name}: {case.what}" for case in cases(1.0)]
    return "\n".join(["# Load", "", "Written by `python -m tests.trust.load`: each command is a process of its own,",
                      "nothing kept from before (BRAID_CACHE=off). Ceilings are of a laptop with 16 GiB.", "",
                      markdown_table(HEAD, rows), *about, ""])  # fmt: skip


def kept_rows(without: set[str]) -> list[list[str]]:
    """Rows of the table that is there, of other cases."""
    if not TABLE.is_file():
        return []
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] not in without]


def write_table(rows: list[list[str]], names: Sequence[str]) -> None:
    """results/trust/load.md, in the order of the cases."""
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(TABLE) as part:
        part.write_text(text_of(sorted(rows, key=lambda row: names.index(row[0]))), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs cases and writes the table; 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in cases(1.0)]
    parser.add_argument("--case", action="append", choices=names, help="one of them (repeatable); default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; below 1 writes no table")
    parser.add_argument("--time", type=float, default=float("inf"), help="seconds after which no case begins")
    given = parser.parse_args(arguments)
    since_s, found = time.monotonic(), list[list[str]]()
    for case in cases(given.scale):
        if case.name in (given.case or names) and time.monotonic() - since_s < given.time:
            for row in measured(case):
                found.append(row)
                if given.scale == 1.0:
                    write_table([*found, *kept_rows({row[0] for row in found})], names)
    return int(any(row[4] != "yes" for row in found))


if __name__ == "__main__":
    sys.exit(main())
