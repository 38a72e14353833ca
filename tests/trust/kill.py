"""Nothing is lost: commands are killed (SIGKILL) at moments drawn over the time that they take, and started again.

After a kill, each file under its own name is whole, as an unkilled run leaves it, or absent; journals may end in one
broken line. After the same command again there are no temporary files and no doubles, what was kept is not done anew,
and all that it prints and writes is as of an unkilled run, but for how many results it found.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from simulator.observe.tables import markdown_table
from simulator.observe.temporary import MARK

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "results" / "trust" / "kill.md"
HANGS_S = 300
START = ("import sys; sys.path.insert(0, {root!r}); from simulator.serving import kept; kept.WRITTEN_EVERY_S = 0.0; "
         "from simulator.commands.main import main; main()")  # steps of a service are kept as soon as they are known
LAYOUT = "sheets"  # a key that results of a search have, of layouts and not of those that were served
HOW = {"simulated", "known", "kept"}  # keys of JSON that say how much was found


class Case(NamedTuple):
    """A command. words: its arguments; parts: files that keep results, as globs from the folder of a moment; known: the
    key of JSON that says how many of them were found; copied: whether it runs in a copy of Braid that has one file of
    scenarios."""

    name: str
    words: tuple[str, ...]
    parts: tuple[str, ...] = ()
    known: str = ""
    copied: bool = False


STAGING = "contention:staging"
CASES = (
    Case("run", ("run", STAGING, "--out", "out")),
    Case("run again", ("run", STAGING, "--out", "earlier", "--trace-format", "kineto")),
    Case("validate", ("validate",), copied=True),
    Case("sweep", ("sweep", STAGING, "machine.chip.hbm.peak", *(f"1.{tenths} TB/s" for tenths in range(1, 10)),
                   "--json", "--out", "out"), ("out/*/sweep.json",)),
    Case("search", ("search", "--model", "qwen3_8b", "--machine", "dgx_h100", "--gpus", "1", "--isl", "1024", "--osl",
                    "128", "--tpot", "15", "--fix", "stack=vllm", "--fix", "tokens=8192", "--serve", "1", "--json",
                    "--out", "out"), ("out/layouts.*",), "kept"),
    Case("serve", ("serve", "one_server:llama_3_1_70b", "--requests", "16", "--rate", "2", "--isl", "512", "--osl",
                   "32", "--json", "--out", "out"), ("cache/*.json",), "known"),
    Case("whatif", ("whatif", STAGING, "--only", "free,faster", "--json"), ("cache/*.jsonl",)),
)  # fmt: skip


@dataclass
class Tally:
    """What became of the moments of a command. s: it takes so long, at the least; left: kills that left temporary
    names; kept: kills after which something was there that need not be done again."""

    s: float
    moments: int = 0
    left: int = 0
    kept: int = 0
    wrong: list[str] = field(default_factory=list)


def place(case: Case, folder: Path) -> Path:
    """A new folder for a moment, with what is there before the command begins."""
    folder.mkdir()
    if case.copied:
        for name in ("simulator", "topologies", "workloads", "scenarios", "services"):
            shutil.copytree(ROOT / name, folder / "braid" / name, ignore=shutil.ignore_patterns("__pycache__"))
        for kind, stem in (("scenarios", "contention"), ("services", "none")):
            for one in (folder / "braid" / kind).glob("*.py"):
                if one.stem != stem:
                    one.unlink()
    (folder / "earlier").mkdir()
    return folder


def started(case: Case, folder: Path) -> subprocess.Popen[str]:
    """The command, in a process group of its own."""
    root = folder / "braid" if case.copied else ROOT
    environment = os.environ | {"BRAID_CACHE": str(folder / "cache"), "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)
    return subprocess.Popen([sys.executable, "-c", START.format(root=str(root)), *case.words], cwd=folder,
                            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, start_new_session=True)  # fmt: skip


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it has printed on stdout."""
    out, _ = running.communicate(timeout=HANGS_S)
    return running.returncode, out


def killed(case: Case, folder: Path, after_s: float) -> bool:
    """Starts the command and kills it, and all that it started, after so long; False if it had ended by then."""
    running = started(case, folder)
    try:
        running.communicate(timeout=after_s)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return True


def files(folder: Path) -> Iterator[Path]:
    """What commands have written in the folder of a moment, temporary names left out, and what is below these."""
    for name in ("out", "earlier", "cache", "results"):
        for one in sorted((folder / name).rglob("*")):
            if one.is_file() and not any(part.startswith(MARK) for part in one.relative_to(folder).parts):
                yield one


def temporary(folder: Path) -> list[str]:
    """Temporary names that are there."""
    return [str(one.relative_to(folder)) for one in folder.rglob(f"{MARK}*")
            if one.relative_to(folder).parts[0] != "braid"]  # fmt: skip


def _lines(path: Path, read: Callable[[str], Any]) -> list[str]:
    """Lines of a journal; ValueError for a broken one that is not the last."""
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if line]
    for number, line in enumerate(lines, 1):
        try:
            read(line)
        except ValueError:
            if number < len(lines):
                raise
            lines.pop()
    return lines


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(path, use_threads=False)


READERS: Mapping[str, Callable[[Path], Any]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".gz": lambda path: json.loads(gzip.decompress(path.read_bytes())),
    ".parquet": _parquet,
    ".jsonl": lambda path: _lines(path, json.loads),
    ".journal": lambda path: _lines(path, lambda line: json.loads(line.partition(" ")[2])),
    ".md": lambda path: path.read_text(encoding="utf-8"),
    ".py": lambda path: compile(path.read_bytes(), str(path), "exec"),
    ".lock": lambda path: None,
}  # fmt: skip
GROW = {".jsonl", ".journal", ".lock"}  # while a command goes on
OF_MANY = ("cache", "out/layouts.")  # files that have what is known so far, and so differ until the end


def broken(folder: Path, whole: Mapping[str, bytes], before: Mapping[str, bytes]) -> list[str]:
    """Files after a kill that are neither as an unkilled run leaves them, nor as they were before, and not whole."""
    found = []
    for path in files(folder):
        name = str(path.relative_to(folder))
        try:
            READERS[path.suffix](path)
        except Exception as error:
            found.append(f"{name} is broken: {error}")
            continue
        growing = path.suffix in GROW or name.startswith(OF_MANY) or name == "out/search.json"
        if not growing and path.read_bytes() not in (whole.get(name), before.get(name)):
            found.append(f"{name} is whole and is neither of this run nor of an earlier one")
    return found


def texts(folder: Path) -> dict[str, bytes]:
    """All files by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in files(folder)}


def result(path: Path) -> Any:
    """What a file has, as it is compared: without how much of it was found; of lines, in whatever order."""
    if path.suffix == ".json":
        return _without_how(READERS[".json"](path))
    if path.suffix == ".jsonl":
        return sorted(READERS[".jsonl"](path))
    return path.read_bytes() if path.suffix != ".lock" else None


def _without_how(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_how(one) for key, one in value.items() if key not in HOW}
    return [_without_how(one) for one in value] if isinstance(value, list) else value


def printed(out: str) -> Any:
    """What a command has printed, as it is compared."""
    try:
        return _without_how(json.loads(out))
    except ValueError:
        return out


class Reference(NamedTuple):
    """An unkilled run. results: of its files; whole: their bytes; before: files that were there before it; printed: on
    stdout; s: how long it took."""

    results: Mapping[str, Any]
    whole: Mapping[str, bytes]
    before: Mapping[str, bytes]
    printed: Any
    s: float


def reference(case: Case, folder: Path, before: Mapping[str, bytes]) -> Reference:
    """Runs a command to its end, from what an earlier one had left."""
    put(place(case, folder), before)
    since_s = time.monotonic()
    code, out = ended(started(case, folder))
    took_s = time.monotonic() - since_s
    if code:
        raise SystemExit(f"{case.name} ends with exit code {code} without being killed")
    found = {str(path.relative_to(folder)): result(path) for path in files(folder)}
    return Reference(found, texts(folder), before, printed(out), took_s)


def put(folder: Path, some: Mapping[str, bytes]) -> None:
    """Files, by their names."""
    for name, content in some.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def earlier(folder: Path) -> dict[str, bytes]:
    """What another run has left: one of another seed."""
    case = Case("", ("run", STAGING, "--seed", "1", "--out", "earlier", "--trace-format", "kineto"))
    ended(started(case, place(case, folder)))
    return texts(folder)


def moment(case: Case, known: Reference, folder: Path, after_s: float, tally: Tally) -> None:
    """One kill, one look, one more start, and a look at that; nothing where the command had ended by then."""
    since_s = time.monotonic()
    put(place(case, folder), known.before)
    if not killed(case, folder, after_s):
        shutil.rmtree(folder)
        tally.s = min(tally.s, time.monotonic() - since_s)
        return
    tally.moments += 1
    wrong = broken(folder, known.whole, known.before)
    tally.left += bool(temporary(folder))
    parts = [path for glob in case.parts for path in folder.glob(glob) if path.suffix != ".lock"]
    kept = {path: _state(path) for path in parts if not path.name.startswith(MARK)}
    tally.kept += any(kept.values())
    code, out = ended(started(case, folder))
    if code:
        wrong.append(f"the second run ends with exit code {code}")
    wrong += [f"{name} is left" for name in temporary(folder)]
    now = {str(path.relative_to(folder)): path for path in files(folder)}
    if odd := set(now) ^ set(known.results):
        wrong.append(f"files that are there in one run alone: {', '.join(sorted(odd))}")
    wrong += [f"{name} differs from that of an unkilled run"
              for name, path in now.items() if name in known.results and result(path) != known.results[name]]
    if printed(out) != known.printed:
        wrong.append("what it prints differs from an unkilled run")
    if case.known and (few := _values(json.loads(out or "{}"), case.known)) < sum(map(_count, kept.values())):
        wrong.append(f"{few} results were found of what was kept in {', '.join(path.name for path in kept)}")
    wrong += [f"{path.relative_to(folder)}: what was kept is done again" for path, was in kept.items()
              if not _goes_on(path, was)]  # fmt: skip
    tally.wrong += [f"{case.name}, killed after {after_s:.3f} s: {one}" for one in wrong]
    shutil.rmtree(folder)


def _state(path: Path) -> Any:
    """Of a file that keeps results: which it has; of one that has one result, which file it is."""
    if path.name == "sweep.json":
        return path.stat().st_ino
    if path.suffix == ".journal":
        return [line for line in READERS[path.suffix](path) if f'"{LAYOUT}"' in line]
    if path.suffix == ".jsonl":
        return READERS[path.suffix](path)
    if path.suffix == ".parquet":
        return names(path)
    return sorted(READERS[".json"](path))


def names(path: Path) -> list[str]:
    """Of the layouts in the table of a search."""
    return [str(one["hash"]) for one in _parquet(path).to_pylist() if one.get(LAYOUT) is not None]


def _count(was: Any) -> int:
    """Results that a file had."""
    return len(was) if isinstance(was, list) else 1


def _values(value: Any, key: str) -> int:
    """The sum of what is under this key, wherever in JSON."""
    if isinstance(value, dict):
        return sum(one if name == key else _values(one, key) for name, one in value.items())
    return sum(_values(one, key) for one in value) if isinstance(value, list) else 0


def _goes_on(path: Path, was: Any) -> bool:
    """Whether all that was kept is there once."""
    if path.suffix == ".journal":  # it has become part of the table
        return {json.loads(line.partition(" ")[2])[0] for line in was} <= set(names(path.with_suffix(".parquet")))
    now = _state(path)
    if isinstance(was, int):
        return bool(now == was)
    return set(was) <= set(now) and len(now) == len(set(now))


def drawn(draw: random.Random, whole_s: float) -> float:
    """A moment: half of them anywhere, half in the last third, in which files are written."""
    return whole_s * (draw.random() if draw.random() < 0.5 else 1.0 - draw.random() / 3)


def kills(cases: Sequence[Case], moments: int, seed: int, work: Path, limit_s: float = float("inf"),
          say: Callable[[str], None] = lambda text: None) -> dict[str, Tally]:  # fmt: skip
    """So many moments of all cases together, each in turn; what became of them. say: told how far it is."""
    draw, since_s = random.Random(seed), time.monotonic()
    of_earlier = earlier(work / "earlier")
    known = {case: reference(case, work / f"whole-{number}", of_earlier if "earlier" in case.words else {})
             for number, case in enumerate(cases)}
    tallies = {case.name: Tally(one.s) for case, one in known.items()}
    begun_s = time.monotonic()
    for number in range(moments):
        case = cases[number % len(cases)]
        tally = tallies[case.name]
        while tally.moments == number // len(cases):
            moment(case, known[case], work / f"moment-{number}", drawn(draw, tally.s), tally)
        each_s = (time.monotonic() - begun_s) / (number + 1)
        say(f"{number + 1} of {moments} moments, {sum(len(one.wrong) for one in tallies.values())} wrong, "
            f"{each_s * (moments - number - 1):.0f} s left")
        if time.monotonic() - since_s > limit_s:
            break
    return tallies


def markdown(tallies: Mapping[str, Tally], seed: int) -> str:
    """The table of results/."""
    counts = {name: (one.moments, one.left, one.kept, len(one.wrong)) for name, one in tallies.items()}
    counts["all"] = tuple(map(sum, zip(*counts.values(), strict=True)))  # type: ignore[assignment]
    rows = [(name, *map(str, row)) for name, row in counts.items()]
    wrong = "".join(f"* {text}\n" for one in tallies.values() for text in one.wrong)
    head = ("command", "kills", "left temporary files", "had kept results", "wrong")
    return (f"# Killed and started again\n\n`python -m tests.trust.kill --moments {counts['all'][0]} "
            f"--seed {seed}` kills commands with SIGKILL at\nmoments drawn over the time that they take, looks at each "
            "file, and starts them again. Wrong: a file that is\nneither whole nor absent, a temporary one that the "
            "second run leaves, a result that is done again though it was\nkept, and whatever differs then from a run "
            f"that was not killed.\n\n{markdown_table(head, rows)}\n{wrong}")  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.kill", description=__doc__)
    parser.add_argument("--moments", type=int, default=200, help="kills, of all commands together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--time", type=float, default=float("inf"), metavar="S", help="for so many seconds")
    parser.add_argument("--only", default="", metavar="A,B", help=f"of {', '.join(case.name for case in CASES)}")
    asked = parser.parse_args()
    cases = [case for case in CASES if not asked.only or case.name in asked.only.split(",")]
    with TemporaryDirectory(prefix="braid-kill-") as work:
        tallies = kills(cases, asked.moments, asked.seed, Path(work), asked.time,
                        lambda text: print(text, file=sys.stderr, flush=True))  # fmt: skip
    text = markdown(tallies, asked.seed)
    print(text)
    if not asked.only:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(text, encoding="utf-8")
    sys.exit(any(one.wrong for one in tallies.values()))


if __name__ == "__main__":
    main()
