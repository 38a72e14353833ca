"""The same everywhere: results in other processes, folders, locales, Pythons and versions of numpy, byte by byte.

Small commands that have among them dense collectives, drawn routing, live hosts, a service, a sweep and a search are
run in each surrounding, and the hash of all that they print and write is compared with that of this process's own:
of a timeline its columns, of a trace its text, since Arrow and zlib of other versions write the same in other bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from hashlib import sha256
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "results" / "trust" / "same.md"
FEW = ("--set", "model.shapes.layers=6")
SERVICE = ("serve", "one_server:llama_3_1_70b", "--requests", "8", "--rate", "2", "--isl", "512", "--osl", "32")
SEARCH = ("search", "--model", "qwen3_8b", "--machine", "dgx_h100", "--gpus", "1", "--isl", "1024", "--osl", "64",
          "--tpot", "15", "--fix", "stack=vllm", "--fix", "tokens=8192", "--serve", "1")  # fmt: skip
SWEEP = ("sweep", "contention:staging", "machine.chip.hbm.peak", "1.2 TB/s", "3.2 TB/s")
CHEAP = {
    "dense collectives": ("run", "contention:staging", "--trace-format", "kineto"),
    "drawn routing": ("run", "a3_prefill:dp_uneven", *FEW),
}
COMMANDS: Mapping[str, tuple[str, ...]] = CHEAP | {
    "live hosts": ("run", "pplx:efa_ep16", "--kernels"),
    "pushed exchange": ("run", "cm384_decode:exchange_push"),
    "faults": ("run", "a3_prefill:dp", *FEW, "--fault", "0 s: rank 7 clock 0.8",
               "--fault", "15 ms: link rank3.nic0 rate 0.1 for 5 ms"),
    "service": SERVICE, "search": SEARCH, "sweep": SWEEP,
}
PINNED = "simpy>=4.1,<5", "networkx>=3.2", "rich>=13.7", "pydantic>=2.6,<3", "click>=8.1.7", "rich-click>=1.9"
PYTHONS = (("3.11", "numpy==1.26.4", "pyarrow>=15,<18"), ("3.12", "numpy==1.26.4", "pyarrow>=15,<18"),
           ("3.12", "numpy>=2", "pyarrow>=18"), ("3.13", "numpy>=2", "pyarrow>=18"))  # fmt: skip
NO_SIMD = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX2 FMA3"

Hashes = dict[str, str]


class Surrounding(NamedTuple):
    """Where commands run. variables: of the environment; python: another interpreter; folder: what it runs in, below
    the temporary one; root: where Braid is; more: words that each command gets, by its first."""

    name: str
    variables: Mapping[str, str] = {}
    python: str = sys.executable
    folder: str = "here"
    root: Path = ROOT
    more: Mapping[str, Sequence[str]] = {}


HERE = Surrounding("another process")
PARTS = (
    HERE,
    *(Surrounding(f"PYTHONHASHSEED={seed}", {"PYTHONHASHSEED": seed}) for seed in ("0", "1", "random")),
    Surrounding("BRAID_PLAIN=1: nothing compiled", {"BRAID_PLAIN": "1"}),
    Surrounding("LC_ALL=C, no UTF-8 mode", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    Surrounding("another folder", folder="other folder/with signs: µ, ı"),
)
"""Those that cost no more than a run each."""
TIMES = (
    Surrounding("TZ=Pacific/Kiritimati", {"TZ": "Pacific/Kiritimati"}),
    Surrounding("4 threads of BLAS", dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "4")),
    Surrounding("numpy without AVX", {"NPY_DISABLE_CPU_FEATURES": NO_SIMD}),
    Surrounding("--jobs 2", more={"sweep": ("--jobs", "2"), "search": ("--jobs", "2")}),
    Surrounding("python -O, -X dev", {"PYTHONOPTIMIZE": "1", "PYTHONDEVMODE": "1"}),
)


def hashes(commands: Mapping[str, tuple[str, ...]], more: Mapping[str, Sequence[str]]) -> Hashes:
    """Of all that commands print and write, each into a folder of its own in this one, by command and file. What C has
    of the locale is set, as another program that has Braid in it may do."""
    import locale as c_locale

    from simulator.commands.main import main

    c_locale.setlocale(c_locale.LC_ALL, "")
    found = {}
    for number, (name, words) in enumerate(commands.items()):
        printed, out = StringIO(), Path(f"out-{number}")
        for style in ([], ["--json"]):
            with redirect_stdout(printed):
                try:
                    main([*words, *more.get(words[0], ()), "--out", str(out), *style])
                except SystemExit as end:
                    if end.code:
                        raise RuntimeError(f"{name} ended with exit code {end.code}") from None
        found[f"{name}: printed"] = _hash(_without_counts(printed.getvalue()).encode())
        found |= {f"{name}: {path.relative_to(out)}": content(path) for path in sorted(out.rglob("*"))
                  if path.is_file() and not path.name.startswith("layouts.")}  # fmt: skip
    return found


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


def _without_counts(text: str) -> str:
    """Without lines that say how many results of the first time were found the second, and without the version, which
    a checkout has only where it is installed."""
    text = re.sub(r'"version": ?"[^"]*"', '"version": ""', text)
    return "\n".join(line for line in text.splitlines() if not any(
        word in line for word in ("known", '"simulated"', '"kept"', "of them before")))


def content(path: Path) -> str:
    """The hash of what is in a file."""
    if path.suffix == ".gz":
        return _hash(_without_counts(gzip.decompress(path.read_bytes()).decode()).encode())
    if path.suffix == ".json":
        return _hash(_without_counts(path.read_text(encoding="utf-8")).encode())
    if path.suffix != ".parquet":
        return _hash(path.read_bytes())
    from pyarrow import parquet

    table = parquet.read_table(path, use_threads=False)
    found = sha256()
    for field, column in zip(table.schema, table.columns, strict=True):
        found.update(f"{field.name} {field.type} {sorted((field.metadata or {}).items())}".encode())
        found.update(repr(column.to_pylist()).encode())
    return found.hexdigest()


def of(surrounding: Surrounding, work: Path, names: Sequence[str]) -> Hashes | str:
    """What it gives there; why it gives nothing."""
    folder = work / surrounding.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    variables = {key: text for key, text in os.environ.items() if key not in ("BRAID_PLAIN", "PYTHONHASHSEED")}
    variables |= {"PYTHONPATH": str(surrounding.root), "BRAID_CACHE": "off", "COLUMNS": "120", **surrounding.variables}
    words = [surrounding.python, "-m", "tests.trust.same", "--hashes", ",".join(names), json.dumps(surrounding.more)]
    done = subprocess.run(words, cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True,
                          encoding="utf-8", check=False)  # fmt: skip
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it fails"])[-1]
    found: Hashes = json.loads(done.stdout)
    return found


def differing(here: Hashes, there: Hashes | str) -> list[str]:
    """What is not the same there."""
    if isinstance(there, str):
        return [there]
    return [name for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]


def all_surroundings(work: Path, venvs: Path) -> Iterator[Surrounding | tuple[str, str]]:
    """All that there are here, or a name with why it is not here."""
    yield from PARTS
    yield from TIMES
    copy = work / "a copy"
    for name in ("simulator", "topologies", "workloads", "scenarios", "services", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("_compiled", "__pycache__", "data"))
    yield Surrounding("a copy in another folder, with the C file, without compiled modules", root=copy)
    for name in ("tr_TR", "de_DE"):
        yield locale(name, work)
    for version, *packages in PYTHONS:
        yield python(version, packages, venvs)


def locale(name: str, work: Path) -> Surrounding | tuple[str, str]:
    """One that is made here from its definition."""
    full = f"{name}.UTF-8"
    try:
        made = subprocess.run(["localedef", "-i", name, "-f", "UTF-8", str(work / full)], capture_output=True,
                              check=False)
    except OSError as error:
        return full, f"not made: {error}"
    if made.returncode > 1 or not (work / full).exists():
        return full, "not made: localedef has no definition of it"
    return Surrounding(full, {"LC_ALL": full, "LOCPATH": str(work)})


def interpreter(version: str) -> str:
    """The path of a Python of this version, on the PATH or where pyenv has them; OSError where there is none."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for path in filter(None, (shutil.which(f"python{version}"), *map(str, of_pyenv))):
        if subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return path
    raise OSError(f"there is no python{version}")


def python(version: str, packages: Sequence[str], venvs: Path) -> Surrounding | tuple[str, str]:
    """Another Python with these packages, in an environment of its own that is made where it is not there."""
    name = f"Python {version}, {', '.join(packages)}"
    folder = venvs / "".join(sign if sign.isalnum() else "-" for sign in name)
    binary = folder / "bin" / "python"
    if not (folder / "ready").exists():
        try:
            subprocess.run([interpreter(version), "-m", "venv", "--clear", str(folder)], check=True,
                           capture_output=True)
            subprocess.run([str(binary), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages,
                            *PINNED], check=True, capture_output=True)  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            return name, f"not installed here: {str(error)[:100]}"
        (folder / "ready").touch()
    said = subprocess.run([str(binary), "-c", "import sys, numpy, pyarrow; print('Python %d.%d.%d' % sys.version_info[:"
                           "3], 'numpy', numpy.__version__, 'pyarrow', pyarrow.__version__)"], check=True,
                          capture_output=True, text=True)  # fmt: skip
    return Surrounding(said.stdout.strip(), python=str(binary))


def compared(surroundings: Iterator[Surrounding | tuple[str, str]], work: Path, names: Sequence[str],
             say: Callable[[str], None] = lambda text: None) -> list[tuple[str, str]]:  # fmt: skip
    """A row for each surrounding, with "equal" or what differs from this Python's own."""
    here = of(HERE, work, names)
    if isinstance(here, str):
        raise SystemExit(here)
    rows = []
    for one in surroundings:
        if isinstance(one, Surrounding):
            wrong = differing(here, of(one, work, names))
            rows.append((one.name, "differs: " + "; ".join(wrong) if wrong else f"equal ({len(here)} hashes)"))
        else:
            rows.append(one)
        say(": ".join(rows[-1]))
    return rows


def markdown(rows: Sequence[tuple[str, str]], names: Sequence[str]) -> str:
    """The table of results/."""
    from simulator.observe.tables import markdown_table

    commands = "".join(f"* {name}: `braid {' '.join(COMMANDS[name])} --out DIR`\n" for name in names)
    return ("# The same everywhere\n\n`python -m tests.trust.same` runs these commands, twice each, in surroundings of "
            f"many kinds:\n\n{commands}\nEqual: all that is printed and written is, byte by byte; of a timeline its "
            f"columns, of a trace its text.\n\n{markdown_table(('surrounding', 'results'), rows)}")  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.same", description=__doc__)
    parser.add_argument("--hashes", nargs=2, metavar=("COMMANDS", "MORE"), help=argparse.SUPPRESS)
    parser.add_argument("--only", default=",".join(COMMANDS), metavar="A,B", help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--venvs", type=Path, help="a folder to keep the environments of other Pythons in")
    asked = parser.parse_args()
    if asked.hashes:
        chosen = {name: COMMANDS[name] for name in asked.hashes[0].split(",")}
        found = hashes(chosen, json.loads(asked.hashes[1]))
        print(json.dumps(found))
        return
    names = asked.only.split(",")
    with TemporaryDirectory(prefix="braid-same-") as folder:
        work = Path(folder)
        rows = compared(all_surroundings(work, asked.venvs or work / "venvs"), work, names,
                        lambda text: print(text, file=sys.stderr, flush=True))  # fmt: skip
    if names == list(COMMANDS):
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(markdown(rows, names), encoding="utf-8")
    else:
        print(markdown(rows, names))
    sys.exit(any(text.startswith("differs") for _, text in rows))


if __name__ == "__main__":
    main()
