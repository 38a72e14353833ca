"""Feeds hostile input to every reader and command of Braid, and tells what was no refusal.

A case is a valid file or line with a few changes, made from (target, seed, number) alone, so that any can be made again
(`--target T --first N --cases 1`). It is accepted, or refused with one of Braid's errors that names the file: all else
is a crash, and so is a case of more than 10 s or a process above the ceiling of memory. A target runs in a process of
its own, which is started again behind a case that ends it.

    python -m tests.trust.fuzz --target all --cases 1000000 --seed 0 --time 1800 --table results/trust/fuzz.md
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import struct
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click

from simulator.errors import BraidError
from tests.trust.limits import limited
from tests.trust.lines import WORDS
from tests.trust.readers import READERS

TARGETS = READERS | WORDS
SHARES = {"quantities": 28, "requests": 20, "service settings": 12, "measured": 6, "space": 6, "faults": 6,
          "fault files": 4, "config": 3, "trace to view": 3, "points": 2, "machine": 1, "settings": 1, "kept": 1,
          "model": 1, "step words": 1, "run folder": 1, "command lines": 0.5, "part": 0.5, "nsight": 0.5,
          "service folder": 0.5, "search folder": 0.5, "simulations": 0.3}  # fmt: skip
"""Of all cases: cheap readers have most of them."""
HANG_S = 10
CEILING_BYTES = 2 << 30
ADDRESS_BYTES = 8 << 30
"""Of addresses that a process may have: numpy, Arrow and threads reserve what they never touch."""
_COUNTS = struct.Struct("qqqqqdqq")  # next case, accepted, refused, crashes, slowest case, its s, peak B, begun


class Hang(BaseException):
    """A case that takes too long: no handler of errors takes it."""


class Vague(Exception):  # noqa: N818
    """A refusal that does not say of what file it speaks, or of nothing."""


@dataclass
class Tally:
    """What became of the cases of one target. crashes: by where, a text with the number of the first."""

    name: str
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    crashed: int = 0
    slowest_s: float = 0.0
    slowest: int = 0
    peak_bytes: int = 0
    cpu_s: float = 0.0
    crashes: dict[str, str] = field(default_factory=dict)


def case(target: str, seed: int, number: int, folder: Path) -> bool:
    """Runs one case; True if it was accepted, False if it was refused. Raises whatever else it comes to."""
    try:
        TARGETS[target](Random(f"{target}:{seed}:{number}"), folder)
    except (BraidError, click.ClickException, click.exceptions.Exit, click.Abort) as error:
        _check_words(target, error, folder)
        return False
    except SystemExit as error:
        if error.code not in (0, 1, 2, None):
            raise Vague(f"exit code {error.code}") from error
        return False
    except OSError as error:  # `main` says "cannot read or write 'FILE': ..."
        if not error.filename and target not in ("command lines", "simulations"):
            raise
        return False
    return True


def _check_words(target: str, error: Exception, folder: Path) -> None:
    """A refusal says something, and of which file."""
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if isinstance(error, click.exceptions.Exit | click.Abort):
        return
    if not said.strip():
        raise Vague(f"{type(error).__name__} says nothing") from error
    if target in READERS and folder.name not in said and target not in ("points", "space", "search folder"):
        raise Vague(f"a refusal names no file: {said[:200]}") from error


def where(error: BaseException) -> str:
    """The type of an error, and the innermost line of Braid that it came from."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if f"{os.sep}simulator{os.sep}" in one.filename]
    place = f"{frames[-1].filename.rpartition('simulator/')[2]}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {place}"


def _worker(target: str, seed: int, last: int, until_s: float, counts: mmap.mmap, pipe: int) -> None:
    """Cases up to `last`, from the one that `counts` says; a line in the pipe for each crash."""
    import faulthandler

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["BRAID_CACHE"] = "off"
    number, accepted, refused, crashed, slowest, slowest_s, peak, _ = _COUNTS.unpack(counts[: _COUNTS.size])
    with tempfile.TemporaryDirectory(prefix="braid-fuzz-") as place:
        os.chdir(place)
        folder = Path(place) / "fuzzed"
        folder.mkdir()
        while number < last and time.monotonic() < until_s:
            counts[: _COUNTS.size] = _COUNTS.pack(number, accepted, refused, crashed, slowest, slowest_s, peak, 1)
            faulthandler.dump_traceback_later(3 * HANG_S, exit=True, file=sys.__stderr__)
            begin_s = time.perf_counter()
            try:
                with limited(HANG_S, Hang):
                    accept = case(target, seed, number, folder)
                accepted, refused = accepted + accept, refused + (not accept)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    break
                crashed += 1
                text = f"{where(error)}\t{number}\t{error}"
                os.write(pipe, (text.replace("\n", " ")[:400] + "\n").encode("utf-8", "replace"))
            took_s, number = time.perf_counter() - begin_s, number + 1
            if took_s > slowest_s:
                slowest, slowest_s = number - 1, took_s
            now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            if now > CEILING_BYTES >= peak:
                os.write(pipe, f"more than 2 GiB\t{number - 1}\t{now >> 20} MiB\n".encode())
                crashed += 1
            peak = max(peak, now)
    counts[: _COUNTS.size] = _COUNTS.pack(number, accepted, refused, crashed, slowest, slowest_s, peak, 0)


def run(target: str, seed: int, first: int, cases: int, until_s: float) -> Tally:
    """Cases of one target in a process, and in another where one ends it."""
    counts = mmap.mmap(-1, 4096)
    counts[: _COUNTS.size] = _COUNTS.pack(first, 0, 0, 0, 0, 0.0, 0, 0)
    tally, last = Tally(target), first + cases
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    while time.monotonic() < until_s:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            try:
                _worker(target, seed, last, until_s, counts, writing)
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                place, number, text = line.rstrip("\n").split("\t", 2)
                tally.crashes.setdefault(place, f"case {number}: {text}")
        _, status = os.waitpid(child, 0)
        number, *rest, inside = _COUNTS.unpack(counts[: _COUNTS.size])
        if inside:  # the process ended in this case
            rest[2] += 1
            tally.crashes.setdefault(f"the process ended, status {status}", f"case {number}")
            number += 1
            counts[: _COUNTS.size] = _COUNTS.pack(number, *rest, 0)
        if number >= last:
            break
    number, tally.accepted, tally.refused, tally.crashed, tally.slowest, tally.slowest_s, tally.peak_bytes, _ = (
        _COUNTS.unpack(counts[: _COUNTS.size]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    tally.cases, tally.cpu_s = number - first, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return tally


def _planned(names: list[str], cases: int) -> dict[str, int]:
    """The cases of each target, by their shares."""
    whole = sum(SHARES[name] for name in names)
    return {name: max(1, round(cases * SHARES[name] / whole)) for name in names}


def table(tallies: list[Tally], seed: int, took_s: float) -> str:
    """The table as Markdown."""
    total = sum(one.cases for one in tallies)
    lines = ["# Hostile input", "",
             f"`python -m tests.trust.fuzz --seed {seed}`: {total:,} cases in {took_s:,.0f} s of one process. A case is"
             " accepted or refused with an error that names what is wrong; all else counts as a crash: a traceback, "
             f"more than {HANG_S} s, more than {CEILING_BYTES >> 30} GiB of resident memory.", "",
             "| target | cases | accepted | refused | crashes | slowest, s | peak, MiB | CPU, s |",
             "|---|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    lines += [f"| {one.name} | {one.cases:,} | {one.accepted:,} | {one.refused:,} | {one.crashed:,} |"
              f" {one.slowest_s:.2f} | {one.peak_bytes >> 20:,} | {one.cpu_s:,.0f} |" for one in tallies]
    sums = [sum(getattr(one, name) for one in tallies) for name in ("cases", "accepted", "refused", "crashed")]
    lines.append(f"| all | {' | '.join(f'{one:,}' for one in sums)} | {max(one.slowest_s for one in tallies):.2f} |"
                 f" {max(one.peak_bytes for one in tallies) >> 20:,} | {sum(one.cpu_s for one in tallies):,.0f} |")
    for one in tallies:
        lines += [f"\n`{one.name}`: {place}: {text}" for place, text in one.crashes.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what the options say, prints a table and what crashed, and ends with 1 if anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="all", help=f"all, or some of {', '.join(TARGETS)}, with commas between")
    parser.add_argument("--cases", type=int, default=10_000, help="in all, shared out among the targets")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time", type=float, default=3600.0, metavar="S", help="stop after so many seconds")
    parser.add_argument("--table", type=Path, help="write the table there, too")
    asked = parser.parse_args()
    names = sorted(TARGETS, key=SHARES.__getitem__) if asked.target == "all" else asked.target.split(",")
    tallies: list[Tally] = []
    begin_s = time.monotonic()
    plan: dict[str, Any] = _planned(names, asked.cases)
    for place, (name, cases) in enumerate(plan.items()):
        tallies.append(run(name, asked.seed, asked.first, cases, begin_s + asked.time))
        one, done = tallies[-1], time.monotonic() - begin_s
        print(f"[{place + 1}/{len(plan)}] {name}: {one.cases:,} cases, {one.accepted:,} accepted, {one.refused:,} "
              f"refused, {one.crashed:,} crashes; {one.cpu_s:.0f} s CPU, slowest {one.slowest_s:.2f} s (case "
              f"{one.slowest}), peak {one.peak_bytes >> 20} MiB; {done:.0f} of at most {asked.time:.0f} s", flush=True)
        for where_, text in one.crashes.items():
            print(f"    {where_}: {text}", flush=True)
        if asked.table:
            asked.table.parent.mkdir(parents=True, exist_ok=True)
            asked.table.write_text(table(tallies, asked.seed, done), encoding="utf-8")
    sys.exit(any(one.crashed for one in tallies))


if __name__ == "__main__":
    main()
